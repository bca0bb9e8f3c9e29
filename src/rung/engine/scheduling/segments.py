"""Layers of one model that a GPU and the processor share: each computes those that it holds with a rung of its own.

::

    tokens ─► embedding ─► first segment ─► hidden states, f32 ─► second segment, norm, head ─► logits
              processor    one device       over the bus          the other

What else crosses the bus depends on where the GPU is: with the first layers it takes rows of the embedding, with the
last ones it gives logits.

A segment is a run of layers on one device: a bound rung of ``decode_step`` for these layers, and with the last of them
the head. The embedding is looked up by the processor, whose memory has the file. Keys and values of a layer lie where
the layer is, in one pool whose groups are those of a device (``rung.engine.scheduling.kv_cache``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rung.formats.codec import Floats
from rung.ops.decode_step.parts import Pool, SequenceRows
from rung.ops.decode_step.weights import Weights
from rung.ops.token_choice import Row
from rung.run.binding import Step


@dataclass(frozen=True)
class Segment:
    """The layers [first, last) of a model on one device, with the rung that computes them."""

    first: int
    last: int
    step: Step


class SegmentedStep:
    """A step of ``rung.ops.decode_step`` whose layers lie on several devices of this machine, in the order of
    ``segments``. The state is that of no device: each bound rung keeps its own."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = tuple(segments)

    @property
    def names(self) -> str:
        """Return the names of the rungs."""
        return "+".join(each.step.rung.name for each in self._segments)

    @property
    def block(self) -> int:
        """See there."""
        (block,) = {each.step.block for each in self._segments}
        return block

    def prepare(self, weights: Weights, pool: Pool, *, threads: int) -> Weights:
        """See there."""
        for each in self._segments:
            each.step.prepare(weights.part(each.first, each.last), pool, threads=threads)
        return weights

    def same_bytes(self, state: Weights) -> bool:
        """See there."""
        return all(each.step.same_bytes(each.step) for each in self._segments)

    def rows_without_torch(self, state: Weights) -> int | None:
        """See there: no number needs torch."""
        return None

    def look_ahead(self, state: Weights) -> int:
        """Return 0: tokens are chosen from the logits."""
        return 0

    def choose(self, state: Weights, rows: SequenceRows, settings: Sequence[Row]) -> Sequence[int]:
        """Return nothing: tokens are chosen from the logits."""
        return ()

    def apply(self, state: Weights, batch: Sequence[SequenceRows]) -> Floats:
        """Return logits [outputs, vocabulary] of a batch."""
        tokens = [token for each in batch for token in each.tokens]
        hidden: Any = state.look_up.rows(tokens) * np.float32(state.shape.embedding_scale)
        *others, last = self._segments
        for each in others:
            hidden = each.step.through(each.step, batch, hidden)
        return last.step.finish(last.step, batch, hidden)
