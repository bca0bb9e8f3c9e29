"""Guess the next tokens from what was said before, so that one step checks several.

Prompt lookup (Saxena, "Prompt Lookup Decoding", 2023): where the last tokens stood before, what followed them there is
guessed to follow again. A guess is checked by computing it as rows of the same step; a token is chosen from each row as
it would be alone, so what is said does not change.
"""

from __future__ import annotations

from collections.abc import Sequence

#: Tokens that must have stood in that order before.
_MATCH = 3
#: Tokens of earlier answers that an owner's guesses come from.
_HISTORY = 1 << 15
#: What stands between two answers: no token.
_BETWEEN = -1
#: How many right and wrong guesses a sequence begins with, and how fast the past counts less.
_PRIOR, _FADE = (1.0, 1.0), 0.9
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


class Guesser:
    """The guesses of one sequence, and how many of them were right."""

    def __init__(self) -> None:
        self._own = Lookup()
        #: Earlier answers of the owner.
        self.history: History | None = None
        self._right, self._wrong = _PRIOR
        self.guessed, self.accepted = 0, 0

    def guess(self, ids: Sequence[int], most: int) -> list[int]:
        """Return up to ``most`` tokens that may follow ``ids``, which go on from the last call's."""
        self._own.extend(ids[self._own.length :])
        last = ids[-_MATCH:]
        found = self._own.following(last, most)
        if not found and self.history is not None:
            found = self.history.following(last, most)
        return found

    @property
    def probability(self) -> float:
        """Return how likely a guess is right if those before it are."""
        return self._right / (self._right + self._wrong)

    def note(self, guessed: int, accepted: int) -> None:
        """Learn from a step in which the first ``accepted`` of ``guessed`` tokens were right."""
        self.guessed += guessed
        self.accepted += accepted
        self._right = _FADE * self._right + accepted
        self._wrong = _FADE * self._wrong + (accepted < guessed)


class StepSeconds:
    """How long steps took, by their rows: up to ``most`` rows."""

    def __init__(self, most: int = 16) -> None:
        self._seconds: dict[int, float] = {}
        self._begun: set[int] = set()
        self._most = most

    def note(self, rows: int, seconds: float) -> None:
        """Learn from a step. The first one of so many rows does not count: a program is built for it.

        What was seen of more rows fades, so that it is tried again when it seemed slow for another reason.
        """
        if rows > self._most:
            return
        if rows not in self._begun:
            self._begun.add(rows)
            return
        self._seconds[rows] = 0.7 * self._seconds.get(rows, seconds) + 0.3 * seconds
        for more in self._seconds.keys() - {rows}:
            if more > rows:
                self._seconds[more] = max(_TRY_AGAIN * self._seconds[more], self._seconds[rows])

    def of(self, rows: int) -> float | None:
        """Return what a step of so many rows is expected to take, or None.

        Where none was seen it lies between those of fewer and of more rows. Where none of more rows was seen either it
        takes as long as one of half as many rows or more, so that it is tried.
        """
        fewer = max((count for count in self._seconds if count <= rows), default=0)
        more = min((count for count in self._seconds if count >= rows), default=0)
        if not fewer or fewer == rows or not more:
            return self._seconds[fewer] if fewer and 2 * fewer >= rows else None
        share = (rows - fewer) / (more - fewer)
        return (1 - share) * self._seconds[fewer] + share * self._seconds[more]


def depth(seconds: StepSeconds, rows: int, tokens: float, probability: float, most: int) -> int:
    """Return how many tokens to guess: those with which a step gives most tokens a second; 0 where none pay.

    The step has ``rows`` rows and gives ``tokens`` tokens without them.
    """
    best, fastest = 0, 0.0
    expected, chance = tokens, 1.0
    for count in range(most + 1):
        took = seconds.of(rows + count)
        if took is None:
            break
        if count:
            chance *= probability
            expected += chance
        if expected / took > fastest * (1.02 if count else 1.0):
            best, fastest = count, expected / took
    return best
