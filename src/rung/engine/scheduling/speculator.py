"""Choose what to guess in a step, and how much: from what was said before, else by a draft model."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many

from rung.engine.scheduling.draft import Draft
from rung.engine.scheduling.sequence import Sequence
from rung.engine.scheduling.speculation import Acceptance, Candidate, History, StepSeconds, allocate

#: Owners whose answers are remembered.
_MOST_OWNERS = 64
#: Rows of a step with guesses: more are computed another way.
_MOST_ROWS = 16
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
        counts = allocate(self._seconds, len(sequences), candidates, _MOST_ROWS)
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
            guesser, most = sequence.guesser, min(sequence.most_guesses, _MOST_ROWS - len(sequences))
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
