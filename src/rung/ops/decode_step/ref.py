"""One token through the decoder made of the smaller ops: the specification of a whole step."""

from __future__ import annotations

from dataclasses import dataclass

from rung.formats.codec import Floats
from rung.ops.decode_step.glue import TorchGlue
from rung.ops.decode_step.network import Network
from rung.ops.decode_step.parts import Cache
from rung.ops.decode_step.weights import Weights


@dataclass(frozen=True)
class State:
    """Hold what ``prepare`` binds."""

    network: Network
    cache: Cache


class Reference:
    """See ``rung.ops.decode_step``."""

    without_torch = False

    def prepare(self, weights: Weights, cache: Cache, *, threads: int) -> State:
        """The parts are bound already; the glue is torch's."""
        return State(Network(weights, TorchGlue(weights.shape), threads), cache)

    def reads_without_torch(self, state: State) -> bool:
        """Return False: the network is torch's."""
        return False

    def reader(self, state: State) -> Network:
        """Return the network of ``prepare``."""
        return state.network

    def apply(self, state: State, token: int, position: int) -> Floats:
        """Return logits [vocabulary] after ``token`` at ``position``."""
        logits: Floats = state.network.logits(state.network.read([token], state.cache, position))[0]
        return logits


RUNG = Reference()
