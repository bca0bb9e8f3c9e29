"""The lean decoder: reads prompts in chunks, then one token after the other, and keeps the cache's count."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rung.core.errors import UsageError
from rung.core.shield import import_whole
from rung.engine.kv_cache import Cache
from rung.formats.codec import Floats
from rung.models.decoder_memory import CHUNK
from rung.ops.decode_step.parts import Reader
from rung.ops.decode_step.weights import Weights

if TYPE_CHECKING:
    from torch import Tensor


def _nobody(done: int, total: int) -> None:
    """Take the progress that nobody wants to see."""


class Step(Protocol):
    """A rung of ``rung.ops.decode_step``."""

    @property
    def without_torch(self) -> bool:
        """Return whether ``prepare`` and ``apply`` need no torch."""

    def prepare(self, weights: Weights, cache: Any, *, threads: int) -> Any:
        """Binds weights to a cache."""

    def apply(self, state: Any, token: int, position: int) -> Floats:
        """Logits [vocabulary] after one token."""

    def reads_without_torch(self, state: Any) -> bool:
        """Return whether the reader needs no torch."""

    def reader(self, state: Any) -> Reader:
        """Return what reads many tokens at once."""


class Decoder:
    """Bound weights with a cache, and the rung that computes single tokens.

    ``singles``: where prompts are read with torch and single tokens are not, prompts of at most so many tokens are
    read one token after the other as long as torch is not imported: importing it takes longer. A call that fails
    leaves the cache's count as it was, so it can be repeated.
    """

    def __init__(self, weights: Weights, cache: Cache, step: Step, threads: int = 1, singles: int = 0) -> None:
        self.cache = cache
        self._vocabulary, self._step, self._singles = weights.shape.vocabulary, step, singles
        self._state = step.prepare(weights, cache, threads=threads)
        self.weights = weights

    def step(self, token: int) -> Floats:
        """Logits [vocabulary] f32 after one more token. Raises ``ContextTooLong`` or ``UsageError``."""
        self._check([token])
        logits = self._step.apply(self._state, token, self.cache.length)
        self.cache.advance([token])
        return logits

    def get_ready(self, count: int) -> bool:
        """Imports and binds what a prompt of that many tokens needs, so that it does not count as reading it.

        False where it is read a token at a time, which needs nothing more.
        """
        together = not self._one_by_one(count)
        if together:
            if not self._step.reads_without_torch(self._state):
                import_whole("rung.ops.decode_step.network")
            self._step.reader(self._state)
        return together

    def prefill(self, ids: Sequence[int], on_read: Callable[[int, int], None] = _nobody) -> Floats:
        """Return logits [vocabulary] f32 after the last of ``ids``, which are read after what the cache holds.

        ``on_read`` is called with (tokens read, tokens to read) before, between and after the chunks. Raises, before
        anything is computed, ``ContextTooLong`` or (no ids, an unknown id) ``UsageError``.
        """
        self._check(ids)
        if self._one_by_one(len(ids)):
            return self._steps(ids)
        for _, hidden in self._chunks(ids, on_read):  # noqa: B007  the last chunk's is used
            pass
        logits: Floats = self._step.reader(self._state).logits(hidden[-1:])[0]
        return logits

    def logits(self, ids: Sequence[int]) -> Tensor | Floats:
        """Return logits [positions, vocabulary] f32 after each of ``ids``; raise as ``prefill`` does.

        A tensor, and where torch is not installed an array.
        """
        self._check(ids)
        out = np.empty((len(ids), self._vocabulary), np.float32)
        for first, hidden in self._chunks(ids):
            found = self._step.reader(self._state).logits(hidden)
            out[first : first + len(found)] = found
        if find_spec("torch") is None:
            return out
        result: Tensor = import_whole("torch").from_numpy(out)
        return result

    def _one_by_one(self, count: int) -> bool:
        if count > self._singles or not self._step.without_torch or "torch" in sys.modules:
            return False
        return not self._step.reads_without_torch(self._state)

    def _steps(self, ids: Sequence[int]) -> Floats:
        held = self.cache.length
        try:
            for token in ids:
                logits = self.step(token)
        except BaseException:
            self.cache.truncate(held)
            raise
        return logits

    def _chunks(self, ids: Sequence[int], on_read: Callable[[int, int], None] = _nobody) -> Iterator[tuple[int, Any]]:
        """For each chunk the index of its first id and the hidden states [T, hidden] after the last layer."""
        reader = self._step.reader(self._state)
        for first in range(0, len(ids), CHUNK):
            on_read(first, len(ids))
            chunk = ids[first : first + CHUNK]
            hidden = reader.read(chunk, self.cache, self.cache.length)
            self.cache.advance(chunk)
            yield first, hidden
        on_read(len(ids), len(ids))

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
