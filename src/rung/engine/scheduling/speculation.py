"""Guess the next tokens from what was said before, so that one step checks several.

Prompt lookup (Saxena, "Prompt Lookup Decoding", 2023): where the last tokens stood before, what followed them there is
guessed to follow again. A guess is checked by computing it as rows of the same step; a token is chosen from each row as
it would be alone, so what is said does not change.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

#: Tokens that must have stood in that order before.
_MATCH = 3
#: Tokens of earlier answers that an owner's guesses come from.
_HISTORY = 1 << 15
#: What stands between two answers: no token.
_BETWEEN = -1
#: How many right and wrong guesses a sequence begins with, and how fast the past counts less.
_PRIOR, _FADE = (1.0, 1.0), 0.9
#: How much faster a step must be for more guesses.
_GAIN = 1.02
#: Seconds until a program of another number of rows is written and its kernels are loaded, before any was measured; and
#: the most that counts, as what is compiled once is on disk afterwards.
_BUILD, _MOST_BUILD = 0.015, 0.05
#: By how much the time of a step fades with each step of fewer rows.
_TRY_AGAIN = 0.997


class Lookup:
    """Where each ``_MATCH`` tokens of a growing text stood last."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._ends: dict[tuple[int, ...], tuple[int, int]] = {}  # where the last two of each ended

    def extend(self, ids: Sequence[int]) -> None:
        """Append tokens."""
        first = max(len(self._ids), _MATCH - 1)
        self._ids += ids
        for end in range(first + 1, len(self._ids) + 1):
            key = tuple(self._ids[end - _MATCH : end])
            self._ends[key] = end, self._ends.get(key, (0, 0))[0]

    @property
    def length(self) -> int:
        """Return the number of tokens."""
        return len(self._ids)

    def following(self, last: Sequence[int], most: int) -> list[int]:
        """Return ``most`` tokens that followed the tokens ``last`` when they stood before the end of the text.

        Where that is nearer to the end the tokens since then are repeated. None where they have not stood there.
        """
        for end in self._ends.get(tuple(last), (0, 0)):
            if 0 < end < len(self._ids) and self._ids[end] != _BETWEEN:
                period = len(self._ids) - end
                return [self._ids[end + number % period] for number in range(most)]
        return []


class History:
    """The last answers of an owner: one to two times ``_HISTORY`` tokens."""

    def __init__(self) -> None:
        self._newer, self._older = Lookup(), Lookup()

    def add(self, ids: Sequence[int]) -> None:
        """Remember an answer."""
        if self._newer.length > _HISTORY:
            self._newer, self._older = Lookup(), self._newer
        self._newer.extend([*ids, _BETWEEN])

    def following(self, last: Sequence[int], most: int) -> list[int]:
        """Return up to ``most`` tokens that followed the tokens ``last`` when an answer had them last."""
        found = self._newer.following(last, most) or self._older.following(last, most)
        return found[: found.index(_BETWEEN)] if _BETWEEN in found else found


class Acceptance:
    """How often guesses were right; what was long ago counts less."""

    def __init__(self) -> None:
        self._right, self._wrong = _PRIOR

    @property
    def probability(self) -> float:
        """Return how likely a guess is right if those before it are."""
        return self._right / (self._right + self._wrong)

    def note(self, guessed: int, accepted: int) -> None:
        """Learn from a step in which the first ``accepted`` of ``guessed`` tokens were right."""
        self._right = _FADE * self._right + accepted
        self._wrong = _FADE * self._wrong + (accepted < guessed)


class Guesser:
    """The guesses of one sequence from what was said, and how many were right; those of a draft model apart."""

    def __init__(self) -> None:
        self._own = Lookup()
        #: Earlier answers of the owner.
        self.history: History | None = None
        self.lookup, self.draft = Acceptance(), Acceptance()
        #: How often in a row no guess of a draft model paid.
        self.useless = 0
        self.guessed, self.accepted = 0, 0
        #: Tokens that followed before and were not computed as guesses: they prove what guesses would gain.
        self.foreseen: list[int] = []
        self.proved = 0

    def guess(self, ids: Sequence[int], most: int) -> list[int]:
        """Return up to ``most`` tokens that may follow ``ids``, which go on from the last call's."""
        self._prove(ids[self._own.length :])
        self._own.extend(ids[self._own.length :])
        last = ids[-_MATCH:]
        found = self._own.following(last, most)
        if not found and self.history is not None:
            found = self.history.following(last, most)
        self.foreseen = found
        return found

    def _prove(self, ids: Sequence[int]) -> None:
        """Learn from tokens that were foreseen, and not computed as guesses."""
        for token, foreseen in zip(ids, self.foreseen, strict=False):
            right = token == foreseen
            self.lookup.note(1, int(right))
            self.proved += right
            if not right:
                break


class StepSeconds:
    """How long steps took, by their rows: up to ``most`` rows."""

    def __init__(self, most: int = 16) -> None:
        self._seconds: dict[int, float] = {}
        self._begun: set[int] = set()
        self._most = most
        #: How much longer the first step of a number of rows takes.
        self.build = _BUILD

    def note(self, rows: int, seconds: float) -> None:
        """Learn from a step. The first one of so many rows does not count: a program is built for it.

        What was seen of more rows fades, so that it is tried again when it seemed slow for another reason.
        """
        if rows > self._most:
            return
        if rows not in self._begun:
            if (expected := self.of(rows)) is not None:
                self.build = 0.5 * (self.build + min(max(seconds - expected, 0.0), _MOST_BUILD))
            self._begun.add(rows)
            return
        self._seconds[rows] = 0.7 * self._seconds.get(rows, seconds) + 0.3 * seconds
        for more in self._seconds.keys() - {rows}:
            if more > rows:
                self._seconds[more] = max(_TRY_AGAIN * self._seconds[more], self._seconds[rows])

    def is_first(self, rows: int) -> bool:
        """Return whether a step of so many rows would be the first, for which a program is built."""
        return rows not in self._begun

    def of(self, rows: int) -> float | None:
        """Return the expected seconds of a step of so many rows, or None.

        Where none was seen it lies between those of fewer and of more rows. Where none of more rows was seen either it
        takes as long as one of half as many rows or more, so that it is tried.
        """
        fewer = max((count for count in self._seconds if count <= rows), default=0)
        more = min((count for count in self._seconds if count >= rows), default=0)
        if not fewer or fewer == rows or not more:
            return self._seconds[fewer] if fewer and 2 * fewer >= rows else None
        share = (rows - fewer) / (more - fewer)
        return (1 - share) * self._seconds[fewer] + share * self._seconds[more]


class Candidate(NamedTuple):
    """A sequence of which up to ``most`` tokens may be guessed, each right with ``probability`` if those before are.

    Computing the guesses takes ``seconds`` for each round, in which every such sequence gets one.
    """

    probability: float
    most: int
    seconds: float = 0.0


def allocate(seconds: StepSeconds, rows: int, candidates: Sequence[Candidate], most_rows: int) -> list[int]:
    """Return how many tokens to guess of each candidate: those with which a step gives most tokens a second.

    A step has ``rows`` rows and gives as many tokens without guesses; it has at most ``most_rows`` with them.
    """
    free = [each if not each.seconds else each._replace(most=0) for each in candidates]
    return max(
        (_allocate(seconds, rows, drafts, most_rows) for drafts in (candidates, free)), key=lambda found: found[0]
    )[1]


def _allocate(
    seconds: StepSeconds, rows: int, candidates: Sequence[Candidate], most_rows: int
) -> tuple[float, list[int]]:
    """Return tokens a second and the guesses; the next guess is always one of those that are likeliest to be right."""
    counts = [0] * len(candidates)
    best = list(counts)
    chances = [each.probability for each in candidates]
    tokens, took = float(rows), seconds.of(rows)
    fastest = tokens / took if took else 0.0
    for row in range(rows + 1, most_rows + 1):
        left = [number for number, each in enumerate(candidates) if counts[number] < each.most]
        if (took := seconds.of(row)) is None or not left:
            break
        number = max(left, key=chances.__getitem__)
        counts[number] += 1
        tokens += chances[number]
        chances[number] *= candidates[number].probability
        guessing = max(count * each.seconds for count, each in zip(counts, candidates, strict=True))
        if tokens / (took + guessing) > _GAIN * fastest:
            best, fastest = list(counts), tokens / (took + guessing)
    return fastest, best
