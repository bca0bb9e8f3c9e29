"""One token through the decoder made of the smaller ops: the specification of a whole step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rung.ops.decode_step.glue import TorchGlue
from rung.ops.decode_step.network import Network
from rung.ops.decode_step.parts import Cache


@dataclass(frozen=True)
class State:
    """What ``prepare`` binds."""

    network: Network
    cache: Cache


class Reference:
    """See ``rung.ops.decode_step``."""

    def prepare(self, network: Network, cache: Cache, *, threads: int) -> State:
        """The parts are bound already, with their threads; the glue is torch's."""
        network.glue = TorchGlue(network.shape)
        return State(network, cache)

    @torch.inference_mode()
    def apply(self, state: State, token: int, position: int) -> Tensor:
        """Logits [vocabulary] after ``token`` at ``position``."""
        hidden = state.network.layers(torch.tensor([token]), state.cache, position)
        return state.network.logits(hidden)[0]


RUNG = Reference()
