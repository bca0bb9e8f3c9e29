"""Choose what to guess in a step, and how much: from the text so far, else by a draft model."""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Many

from rung.core.errors import OutOfMemory
from rung.engine.decoder import Decoder
from rung.engine.scheduling.kv_cache import Cache
from rung.engine.scheduling.sequence import MOST_ROWS, Sequence
from rung.engine.scheduling.speculation import Acceptance, Candidate, History, StepSeconds, allocate

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


#: Owners whose answers are remembered.
_MOST_OWNERS = 64
#: Steps in a row in which no guess of a draft model pays, after which it reads no more of a sequence.
_USELESS = 8


class Speculator:
    """The guesses for all sequences of a scheduler. Guesses cost rows of a step, and those of a draft model its time:
    as many are made as give most tokens a second by what was measured."""

    def __init__(self, draft: Draft | None = None) -> None:
        self._draft = draft
        self._seconds = StepSeconds()
        self._histories: dict[str, History] = {}  # by owner
        self._sources: dict[Sequence, Acceptance] = {}  # where the guesses of this step come from
        self._saved = 0.0  # seconds that right guesses saved or would have, less those of building programs
        self._token_seconds = 0.0  # of a token of a step without guesses

    def add(self, sequence: Sequence) -> None:
        """Let a sequence have guesses from earlier answers of its owner."""
        if sequence.guesser is not None:
            sequence.guesser.history = self._histories.setdefault(sequence.owner, History())

    def stop(self, sequence: Sequence) -> None:
        """Forget what a draft model has of a sequence that loses its cache."""
        if self._draft is not None:
            self._draft.end(sequence)

    def remember(self, sequence: Sequence) -> None:
        """Keep the answer of a sequence that has ended."""
        if sequence.guesser is not None and sequence.guesser.history is not None:
            sequence.guesser.history.add(sequence.ids[sequence.prompt :])
        while len(self._histories) > _MOST_OWNERS:
            del self._histories[next(iter(self._histories))]

    def recover(self) -> None:
        """Forget what a draft model has after an interrupt in the midst of a call."""
        if self._draft is not None:
            self._draft.recover()

    def note_seconds(self, rows: int, seconds: float) -> None:
        """Learn how long a step without prompts took."""
        self._seconds.note(rows, seconds)

    def note(self, sequence: Sequence, guessed: int, accepted: int) -> None:
        """Learn that the first ``accepted`` of the tokens that were guessed of a sequence in this step are right."""
        source, guesser = self._sources.pop(sequence, None), sequence.guesser
        if source is not None and guesser is not None:
            guesser.foreseen = []
            guesser.guessed += guessed
            guesser.accepted += accepted
            source.note(guessed, accepted)
            self._saved += accepted * self._token_seconds

    def follow(self, read: Many[tuple[Sequence, int]]) -> None:
        """Let a draft model read so many tokens of each sequence, which a step has computed."""
        if self._draft is not None:
            self._draft.read([(each, count) for each, count in read if _may_be_drafted(each)])

    def guess(self, sequences: Many[Sequence], reserve: Callable[[Sequence, int], bool]) -> list[list[int]]:
        """Return the tokens that are guessed of each sequence of a step in which each has one row.

        ``reserve`` makes room in the cache of a sequence for so many tokens, and returns whether there is.
        """
        found: list[list[int]] = [[] for _ in sequences]
        looked_up, sources = self._look(sequences)
        draft_seconds = 0.0 if self._draft is None else self._draft.seconds
        numbers = list(sources)
        candidates = [
            Candidate(
                sources[number].probability,
                len(looked_up[number]) or sequences[number].most_guesses,
                0.0 if looked_up[number] else draft_seconds,
            )
            for number in numbers
        ]
        self._count_proved(sequences)
        counts = allocate(self._seconds, len(sequences), candidates, MOST_ROWS)
        if all(looked_up[number] for number, count in zip(numbers, counts, strict=True) if count):
            counts = self._affordable(counts, sequences)
        drafted: list[tuple[Sequence, int]] = []
        self._sources = {}
        for number, count in zip(numbers, counts, strict=True):
            sequence = sequences[number]
            if not looked_up[number] and self._seconds.of(len(sequences) + 1) is not None:
                self._note_use(sequence, bool(count))
            if count and reserve(sequence, len(sequence.ids) + count):
                self._sources[sequence] = sources[number]
                found[number] = looked_up[number][:count]
                drafted += [] if found[number] else [(sequence, count)]
        if self._draft is not None and drafted:
            by_sequence = dict(zip((each for each, _ in drafted), self._draft.guess(drafted), strict=True))
            found = [guesses or by_sequence.get(each, []) for each, guesses in zip(sequences, found, strict=True)]
        return found

    def _count_proved(self, sequences: Many[Sequence]) -> None:
        """Add what guesses would have saved that were right and not computed."""
        self._token_seconds = (self._seconds.of(len(sequences)) or 0.0) / max(len(sequences), 1)
        for guesser in (each.guesser for each in sequences):
            if guesser is not None:
                self._saved += guesser.proved * self._token_seconds
                guesser.proved = 0

    def _affordable(self, counts: list[int], sequences: Many[Sequence]) -> list[int]:
        """Return the counts of guesses, or none where a program would be built for them that has not paid yet.

        An answer of a few tokens ends before the first program for guesses has paid, and many texts never repeat: so
        guesses are first only compared with what is said. A draft model's cannot be, and are computed.
        """
        rows = len(sequences) + sum(counts)
        if not any(counts) or not self._seconds.is_first(rows):
            return counts
        if self._saved < self._seconds.build:
            return [0] * len(counts)
        self._saved -= self._seconds.build
        return counts

    def _look(self, sequences: Many[Sequence]) -> tuple[list[list[int]], dict[int, Acceptance]]:
        """Return the guesses for each sequence by prompt lookup, and the acceptance of each sequence that a lookup or a
        draft model can guess for."""
        looked_up: list[list[int]] = [[] for _ in sequences]
        sources: dict[int, Acceptance] = {}
        for number, sequence in enumerate(sequences):
            guesser, most = sequence.guesser, min(sequence.most_guesses, MOST_ROWS - len(sequences))
            if guesser is None or most <= 0:
                continue
            looked_up[number] = guesser.guess(sequence.ids, most)
            if looked_up[number]:
                sources[number] = guesser.lookup
            elif self._draft is not None and _may_be_drafted(sequence) and self._draft.is_near(sequence):
                sources[number] = guesser.draft
        return looked_up, sources

    def _note_use(self, sequence: Sequence, pays: bool) -> None:
        """Count the steps in a row in which no guess of a draft model pays."""
        if sequence.guesser is not None:
            sequence.guesser.useless = 0 if pays else sequence.guesser.useless + 1


def _may_be_drafted(sequence: Sequence) -> bool:
    return sequence.guesser is not None and sequence.guesser.useless < _USELESS and not sequence.ended
