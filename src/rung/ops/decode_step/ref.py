"""A step of the decoder made of the smaller ops, a sequence after the other: the specification of the others."""

from __future__ import annotations

from collections.abc import Sequence

from rung.formats.codec import Floats
from rung.ops.decode_step.network import Network, TorchGlue
from rung.ops.decode_step.parts import Pool, SequenceRows, read_each
from rung.ops.decode_step.weights import Weights


class Reference:
    """See ``rung.ops.decode_step``."""

    block = 0

    def prepare(self, weights: Weights, pool: Pool, *, threads: int) -> Network:
        """The parts are bound already; the glue is torch's."""
        return Network(weights, TorchGlue(weights.shape), threads)

    def same_bytes(self, state: Network) -> bool:
        """Return False: libraries multiply."""
        return False

    def rows_without_torch(self, state: Network) -> int | None:
        """Return 0: the network is torch's."""
        return 0

    def look_ahead(self, state: Network) -> int:
        """Return 0: tokens are chosen from the logits."""
        return 0

    def apply(self, state: Network, batch: Sequence[SequenceRows]) -> Floats:
        """Return logits [outputs, vocabulary] f32."""
        return read_each(state, batch)


RUNG = Reference()
