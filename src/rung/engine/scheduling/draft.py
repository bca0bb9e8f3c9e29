"""A smaller model that guesses what a larger one says next (Leviathan, Kalman and Matias, "Fast Inference from
Transformers via Speculative Decoding", ICML 2023).

Its guess is its likeliest token. The larger model checks guesses as rows of its own step and chooses its tokens as
without them, drawn ones too, so what is said does not change.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Many

from rung.core.errors import OutOfMemory
from rung.engine.decoder import Decoder
from rung.engine.scheduling.kv_cache import Cache
from rung.engine.scheduling.sequence import Sequence

#: Tokens that a sequence may be behind and still be guessed for, and those that it reads in a step to catch up.
_NEAR, _CATCH_UP = 8, 32


class Draft:
    """A decoder that keeps a cache for each sequence of a larger model that it guesses for.

    Both know the first ``vocabulary`` tokens. ``failed`` is called with the error of a call that failed; no more is
    guessed then.
    """

    def __init__(self, decoder: Decoder, vocabulary: int, failed: Callable[[Exception], None]) -> None:
        self._decoder, self._vocabulary, self._failed = decoder, vocabulary, failed
        self._caches: dict[Sequence, Cache] = {}
        self._works = True
        self._rounds = 0
        #: Seconds of computing a token for each sequence, about; 0 before that is known.
        self.seconds = 0.0

    def is_near(self, sequence: Sequence) -> bool:
        """Return whether it has read enough of a sequence to guess what follows."""
        cache = self._caches.get(sequence)
        return self._works and cache is not None and len(sequence.ids) - self._agree(cache, sequence) <= _NEAR

    def read(self, sequences: Many[tuple[Sequence, int]]) -> None:
        """Read on in sequences that the larger model has read so many tokens of in a step."""
        if not self._works:
            return
        batch = []
        for sequence, count in sequences:
            cache = self._cache(sequence)
            known = 0 if cache is None else self._agree(cache, sequence)
            ids = sequence.ids[known : min(sequence.computed, known + max(count, _CATCH_UP))]
            if cache is not None and len(ids) > _NEAR and self._reserve(cache, known, ids):
                batch.append((cache, ids, 0, None))
        if batch:
            self._compute(batch)

    def guess(self, requests: Many[tuple[Sequence, int]]) -> list[list[int]]:
        """Return up to so many tokens that may follow each of some sequences."""
        found: list[list[int]] = [[] for _ in requests]
        left = list(range(len(requests)))
        while left and self._works:
            batch, numbers = [], []
            for number in left:
                sequence, _ = requests[number]
                cache, ids = self._caches[sequence], [*sequence.ids, *found[number]]
                if self._reserve(cache, cache.length, ids[cache.length :]):
                    batch.append((cache, ids[cache.length :], 1, None))
                    numbers.append(number)
            started = time.perf_counter()
            tokens = self._compute(batch) if batch else []
            self._measure(time.perf_counter() - started)
            for number, token in zip(numbers, tokens, strict=False):
                found[number].append(token)
            left = [number for number in numbers if len(found[number]) < requests[number][1]] if tokens else []
        return found

    def end(self, sequence: Sequence) -> None:
        """Give the cache of a sequence back; what was read of it is kept for others."""
        cache = self._caches.pop(sequence, None)
        if cache is not None:
            self._decoder.end(cache, sequence.owner, share=sequence.shares)

    def recover(self) -> None:
        """Forget all sequences after an interrupt in the midst of a call."""
        self._caches = {}
        self._decoder.recover(())

    def _cache(self, sequence: Sequence) -> Cache | None:
        """Return the cache of a sequence, a new one where there is room for it."""
        if sequence not in self._caches:
            cache = self._decoder.begin(sequence.ids[: self._decoder.context], sequence.owner, sequence.shares)
            if cache is None:
                return None
            self._caches[sequence] = cache
        return self._caches[sequence]

    def _agree(self, cache: Cache, sequence: Sequence) -> int:
        """Forget what a sequence did not say, and its last token, which is computed with the next one."""
        known = min(cache.shared(sequence.ids), len(sequence.ids) - 1)
        if known < cache.length:
            cache.truncate(known)
        return cache.length

    def _reserve(self, cache: Cache, known: int, ids: Many[int]) -> bool:
        """Make room for tokens after those that are known; return whether they can be computed."""
        if known + len(ids) > self._decoder.context or max(ids) >= self._vocabulary:
            return False
        try:
            self._decoder.reserve(cache, known + len(ids))
        except OutOfMemory:
            return False
        return True

    def _compute(self, batch: Many[tuple[Cache, Many[int], int, None]]) -> list[int]:
        """Compute tokens; return the likeliest token of each row of logits, none where the call failed."""
        try:
            self._decoder.get_ready(max(len(ids) for _, ids, _, _ in batch))
            logits = self._decoder.compute(batch)
        except Exception as error:
            self._works = False
            self._failed(error)
            return []
        for cache, ids, _, _ in batch:
            cache.advance(ids)
        return [int(row[: self._vocabulary].argmax()) for row in logits]

    def _measure(self, seconds: float) -> None:
        """Learn how long a round takes; the first ones build programs."""
        self._rounds += 1
        if self._rounds > 2:
            self.seconds = 0.7 * self.seconds + 0.3 * seconds if self.seconds else seconds
