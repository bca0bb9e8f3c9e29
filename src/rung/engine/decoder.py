"""The lean decoder: reads prompts in chunks, then one token after the other, and keeps the cache's count."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rung.core.errors import UsageError
from rung.core.shield import import_whole
from rung.engine.kv_cache import BlockPool, Cache
from rung.formats.codec import Floats
from rung.models.decoder_memory import CHUNK
from rung.ops.decode_step.parts import Pool, SequenceRows
from rung.ops.decode_step.weights import Weights

if TYPE_CHECKING:
    from torch import Tensor


def _nobody(done: int, total: int) -> None:
    """Take the progress that nobody wants to see."""


class Step(Protocol):
    """A rung of ``rung.ops.decode_step``, which says what its attributes mean."""

    @property
    def block(self) -> int:
        """See there."""

    @property
    def same_bytes(self) -> bool:
        """See there."""

    def prepare(self, weights: Weights, pool: Pool, *, threads: int) -> Any:
        """Bind weights to the memory of caches."""

    def apply(self, state: Any, batch: Sequence[SequenceRows]) -> Floats:
        """Return logits [wanted, vocabulary] of a batch."""

    def rows_without_torch(self, state: Any) -> int | None:
        """See there."""


class Decoder:
    """Bound weights with a cache, and the rung that computes with them.

    ``singles``: where prompts are read with torch and few tokens are not, prompts of at most so many tokens are
    read a few tokens at a time as long as torch is not imported: importing it takes longer. A call that fails
    leaves the cache's count as it was, so it can be repeated.
    """

    def __init__(self, weights: Weights, pool: BlockPool, step: Step, threads: int = 1, singles: int = 0) -> None:
        self.pool, self.cache = pool, Cache(pool)
        self._vocabulary, self._step, self._singles = weights.shape.vocabulary, step, singles
        self._state = step.prepare(weights, pool, threads=threads)
        self.weights = weights

    def step(self, token: int) -> Floats:
        """Logits [vocabulary] f32 after one more token. Raises ``ContextTooLong`` or ``UsageError``."""
        self._check([token])
        logits: Floats = self._apply([token], 1)[0].copy()
        self.cache.advance([token])
        return logits

    def _apply(self, ids: Sequence[int], logits: int) -> Floats:
        return self._step.apply(self._state, [SequenceRows(ids, self.cache.length, self.cache, logits)])

    def get_ready(self, count: int) -> bool:
        """Import what a prompt of that many tokens needs, so that it does not count as reading it.

        False where it is read a token at a time, which needs nothing more.
        """
        if self._at_once(count) == CHUNK and self._step.rows_without_torch(self._state) is not None:
            import_whole("rung.ops.decode_step.network")
        return self._at_once(count) > 1

    def prefill(self, ids: Sequence[int], on_read: Callable[[int, int], None] = _nobody) -> Floats:
        """Return logits [vocabulary] f32 after the last of ``ids``, which are read after what the cache holds.

        ``on_read`` is called with (tokens read, tokens to read) before, between and after the chunks. Raises, before
        anything is computed, ``ContextTooLong`` or (no ids, an unknown id) ``UsageError``.
        """
        self._check(ids)
        held = self.cache.length
        try:
            for first, chunk in self._chunks(ids, on_read):
                logits = self._apply(chunk, int(first + len(chunk) == len(ids)))
                self.cache.advance(chunk)
        except BaseException:
            self.cache.truncate(held)
            raise
        on_read(len(ids), len(ids))
        last: Floats = logits[0].copy()
        return last

    def logits(self, ids: Sequence[int]) -> Tensor | Floats:
        """Return logits [positions, vocabulary] f32 after each of ``ids``; raise as ``prefill`` does.

        A tensor, and where torch is not installed an array.
        """
        self._check(ids)
        out = np.empty((len(ids), self._vocabulary), np.float32)
        for first, chunk in self._chunks(ids):
            out[first : first + len(chunk)] = self._apply(chunk, len(chunk))
            self.cache.advance(chunk)
        if find_spec("torch") is None:
            return out
        result: Tensor = import_whole("torch").from_numpy(out)
        return result

    def _at_once(self, count: int) -> int:
        """Return how many tokens of a prompt of ``count`` are read together."""
        few = self._step.rows_without_torch(self._state)
        if few is None or not few or "torch" in sys.modules or count > max(self._singles, few):
            return CHUNK
        return few

    def _chunks(
        self, ids: Sequence[int], on_read: Callable[[int, int], None] = _nobody
    ) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield each chunk with the index of its first id."""
        step = self._at_once(len(ids))
        for first in range(0, len(ids), step):
            on_read(first, len(ids))
            yield first, ids[first : first + step]

    def _check(self, ids: Sequence[int]) -> None:
        if not ids:
            raise UsageError("There is no token to compute", ["the prompt is empty"], ["a prompt with text in it"])
        vocabulary = self._vocabulary
        if min(ids) < 0 or max(ids) >= vocabulary:
            raise UsageError(
                f"Token ids must lie in 0 to {vocabulary - 1}, found {min(ids)} to {max(ids)}",
                [f"the model's vocabulary has {vocabulary} tokens"],
                code="value-out-of-range",
            )
        self.cache.room(self.cache.length, len(ids))
