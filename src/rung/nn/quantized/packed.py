"""Weights that are held only as a rung packed them, for networks that answer and are not trained or saved."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rung.core.shield import Workers
from rung.nn.layers import QuantEmbedding
from rung.nn.quantized import binding
from rung.nn.quantized.weight import QuantWeight, tensors
from rung.run.binding import Linear


class PackedWeight(QuantWeight):
    """A weight whose parts were let go when it was packed: it has no parameters. Whoever asks for its parts gets them
    restored, bit for bit, which takes as long as packing did."""

    def __init__(self, weight: QuantWeight, linear: Linear) -> None:
        nn.Module.__init__(self)
        self.format, self.shape, self.dtype, self.assigned_db = weight.format, weight.shape, weight.dtype, None
        self._packed = linear

    def parts(self) -> dict[str, Tensor]:
        """The parts as new tensors, by the names of ``Encoded.parts``."""
        return tensors(self._packed.encoded(), "cpu")

    @property
    def codes(self) -> Tensor:
        """The part with the codes, restored."""
        return self.parts()["data"]

    @property
    def device(self) -> torch.device:
        """Where it is multiplied: on the CPU."""
        return torch.device("cpu")

    def linear(self, x: Tensor) -> Linear:
        """The packed weight, whatever the dtype of x."""
        return self._packed


def pack(network: nn.Module, dtype: str, threads: int) -> None:
    """Packs the weights of a network on a CPU for activations in ``dtype``, several at a time, and lets go of what is
    stored of them; weights that rungs read as they are stored stay, and those whose rows are looked up, too."""
    looked_up = {id(layer.stored) for layer in network.modules() if isinstance(layer, QuantEmbedding)}
    uses: dict[QuantWeight, list[tuple[nn.Module, str]]] = {}
    for owner in network.modules():
        for name, weight in owner.named_children():
            if isinstance(weight, QuantWeight) and id(weight) not in looked_up:
                uses.setdefault(weight, []).append((owner, name))

    def one(_: int) -> None:
        weight, found = uses.popitem()  # nothing else holds it when it is packed
        linear = binding.pack(weight.encoded(), weight.device, dtype, threads)
        if linear.packing != "stored":
            packed = PackedWeight(weight, linear)
            for owner, name in found:
                setattr(owner, name, packed)

    with Workers(threads) as pool:
        pool.map(one, range(len(uses)))
