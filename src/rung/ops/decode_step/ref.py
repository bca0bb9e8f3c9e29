"""One token through the decoder made of the smaller ops: the specification of a whole step."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rung.formats.codec import Floats
from rung.ops.decode_step.glue import TorchGlue
from rung.ops.decode_step.network import Network
from rung.ops.decode_step.parts import Cache
from rung.ops.decode_step.weights import Weights


@dataclass(frozen=True)
class State:
    """What ``prepare`` binds."""

    network: Network
    cache: Cache


class Reference:
    """See ``rung.ops.decode_step``."""

    without_torch = False

    def prepare(self, weights: Weights, cache: Cache, *, threads: int) -> State:
        """The parts are bound already; the glue is torch's."""
        return State(Network(weights, TorchGlue(weights.shape), threads), cache)

    def network(self, state: State) -> Network:
        """The network of ``prepare``."""
        return state.network

    @torch.inference_mode()
    def apply(self, state: State, token: int, position: int) -> Floats:
        """Logits [vocabulary] after ``token`` at ``position``."""
        hidden = state.network.layers(torch.tensor([token]), state.cache, position)
        logits: Floats = state.network.logits(hidden)[0].numpy()
        return logits


RUNG = Reference()
