"""One sequence without a scheduler: for calibration, measuring and tests, which want logits of chosen tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Self, TypeVar

import numpy as np

from rung.engine.decoder import check_ids
from rung.engine.scheduling.scheduler import Backend
from rung.formats.codec import Floats

B = TypeVar("B", bound=Backend[Any])


class SequenceReader(Generic[B]):
    """Read tokens of one sequence, which goes on from call to call; a context manager that gives the cache back.

    A call that fails leaves ``cache`` as it was, so it can be repeated, or empty where a window has moved on. Each
    raises, before anything is computed, ``UsageError`` for no ids or unknown ones, and ``ContextTooLong``.
    """

    def __init__(self, backend: B) -> None:
        found = backend.begin((), "", False)
        assert found is not None, "the pool of caches is full"
        self.backend, self.cache = backend, found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.backend.end(self.cache, "", share=False)

    def step(self, token: int) -> Floats:
        """Return logits [vocabulary] f32 after one more token."""
        return self.prefill([token])

    def prefill(self, ids: Sequence[int]) -> Floats:
        """Return logits [vocabulary] f32 after the last of ``ids``."""
        last: Floats = self._read(ids, each=False)[-1]
        return last

    def logits(self, ids: Sequence[int]) -> Floats:
        """Return logits [tokens, vocabulary] f32 after each of ``ids``."""
        return self._read(ids, each=True)

    def _read(self, ids: Sequence[int], each: bool) -> Floats:
        check_ids(ids, self.backend.vocabulary)
        begun = self.cache.length
        self.cache.room(begun, len(ids))
        size, found = self.backend.chunk(len(ids)), []
        try:
            for first in range(0, len(ids), size):
                part = ids[first : first + size]
                self.backend.reserve(self.cache, begun + first + len(part))
                self.backend.get_ready(len(part))
                count = len(part) if each else int(first + size >= len(ids))
                found.append(self.backend.compute([(self.cache, part, count, None)]).copy())
                self.cache.advance(part)
        except BaseException:
            self.cache.truncate(begun)
            raise
        return found[0] if len(found) == 1 else np.concatenate(found)
