"""Limit how many requests are taken on: those that are computed, and a queue with an end.

A request that finds the queue full is refused with the time of its turn. When it comes again then, it goes before all
that come for the first time.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass

from rung.server.errors import ApiError

#: Answers that may wait for room beside those that are computed.
MOST_WAITING = 64
#: Of all places one key may have, where there are several keys.
_SHARE = 0.75
#: Ends of answers by which their rate is known, and the seconds between two before there are any.
_ENDS, _FIRST_SECONDS = 64, 2.0
#: Ends in a time that all was busy by which the rate is known after it.
_LEAST_ENDS = 8
#: Turns that are kept at most.
_MOST_TURNS = 4096
#: Seconds for which a turn is kept beyond its time, and the share of the wait for which it is.
_GRACE, _GRACE_SHARE = 2.0, 0.25
#: Seconds after which a request may come again at the earliest.
_LEAST_WAIT = 0.1
#: Of the places of the queue, those that are taken while requests have turns: there is always work, and a place for
#: those that come together, as clients do that count whole seconds. New requests of the same key find no others.
_FILLED = 0.5


@dataclass
class _Turn:
    """The turn of a request that was refused: what it was, whose it is, its answers, when it comes, and until when it
    is kept."""

    request: bytes
    owner: str
    answers: int
    due: float
    until: float


class Admission:
    """Count the answers that are computed or wait. ``shared``: there are several keys, so none may take all places.

    Turns follow each other by the rate at which answers end, which those share who have some. ``parallel`` answers are
    computed at once.
    """

    def __init__(
        self, most_waiting: int = MOST_WAITING, shared: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.most_waiting, self._shared, self._clock = most_waiting, shared, clock
        self.parallel = 1
        self._owners: Counter[str] = Counter()
        #: When everything began to be busy, and the ends since then.
        self._ends: deque[float] = deque(maxlen=_ENDS)
        self._known_seconds: float | None = None
        #: Turns by their number, in the order in which they were given.
        self._turns: dict[int, _Turn] = {}
        self._numbers = itertools.count()

    @property
    def taken(self) -> int:
        """Return how many answers are computed or wait."""
        return self._owners.total()

    @property
    def _filled(self) -> int:
        """Return how many answers are computed or wait while requests have turns."""
        return self.parallel + int(self.most_waiting * _FILLED)

    def enter(self, owner: str, answers: int, request: bytes, is_new: bool = False) -> Ticket:
        """Take a request on. ``request`` is the same when it comes again, as a digest of it is; ``is_new`` says that it
        does not come again, though an equal one may have a turn. Raises ``ApiError`` (503) with the seconds after which
        it has its turn."""
        now = self._clock()
        self._drop_late(now)
        number = None if is_new else self._number(request, now)
        turn = None if number is None else self._turns[number]
        room = self.parallel + self.most_waiting
        share = math.ceil(room * _SHARE) if self._shared else room
        fits = self.taken + answers <= room and self._owners[owner] + answers <= share
        if not fits or not self._has_turn(owner, turn, answers, now):
            raise self._refusal(owner, request, answers, number, now)
        if number is not None:
            del self._turns[number]
        if self.taken < self.parallel <= self.taken + answers:
            self._ends.append(now)
        self._owners[owner] += answers
        return Ticket(self, owner, answers)

    def _number(self, request: bytes, now: float) -> int | None:
        """Return the number of the turn of a request: of equal ones the first that has come, else the first."""
        numbers = [number for number, turn in self._turns.items() if turn.request == request]
        due = (number for number in numbers if self._turns[number].due <= now)
        return next(due, numbers[0] if numbers else None)

    def _has_turn(self, owner: str, turn: _Turn | None, answers: int, now: float) -> bool:
        """Return whether a request for which there is a place may take it before those that have turns: where its own
        has come, or one is left for each turn that has. Of one owner new requests leave more."""
        if turn is not None and turn.due <= now:
            return True
        due = sum(each.answers for each in self._turns.values() if each.due <= now)
        has_others = any(each.owner == owner for each in self._turns.values())
        return self.taken + answers + due <= (self._filled if has_others else self.parallel + self.most_waiting)

    def _refusal(self, owner: str, request: bytes, answers: int, number: int | None, now: float) -> ApiError:
        """Return the refusal of a request, which has a turn from now on: the one of that number, unless it has come."""
        turn = None if number is None else self._turns[number]
        if turn is None or turn.due <= now:
            wait = max(self._wait(owner, number, answers, now), _LEAST_WAIT)
            until = now + math.ceil(wait) + max(_GRACE, wait * _GRACE_SHARE)
            turn = _Turn(request, owner, answers, now + wait, until)
            if number is not None or len(self._turns) < _MOST_TURNS:  # one that is over keeps its place before others
                self._turns[next(self._numbers) if number is None else number] = turn
        room = self.parallel + self.most_waiting
        message = f"{self.taken:,} answers are computed or wait, and there is room for {room:,}."
        return ApiError(503, message, code="queue_full", retry_after=turn.due - now)

    def _wait(self, owner: str, number: int | None, answers: int, now: float) -> float:
        """Return the seconds until the turn of a request: when the queue is as long as it then should be, and those
        before it of its owner have come, between each two one of every other owner."""
        ahead = max(self.taken - self._filled, 0)
        for each, turn in self._turns.items():
            if each == number:
                break
            ahead += turn.answers if turn.owner == owner else 0
        owners = len({owner, *(each.owner for each in self._turns.values())})
        return (ahead + answers) * owners * self.seconds_per_answer(now)

    def _drop_late(self, now: float) -> None:
        """Forget the turns of requests that did not come again."""
        for number in [each for each, turn in self._turns.items() if turn.until < now]:
            del self._turns[number]

    def leave(self, owner: str, answers: int) -> None:
        """Give places back."""
        now = self._clock()
        if self.taken >= self.parallel:
            self._ends.extend([now] * answers)
        self._owners[owner] -= answers
        self._owners += Counter()
        if self.taken < self.parallel:
            if len(self._ends) > _LEAST_ENDS:
                self._known_seconds = self.seconds_per_answer(now)
            self._ends.clear()

    def seconds_per_answer(self, now: float) -> float:
        """Return how long it takes that an answer ends while ``parallel`` of them are computed: by the last ends since
        that is so, else by those of the last time that it was."""
        if len(self._ends) > 1:
            return (now - self._ends[0]) / (len(self._ends) - 1)
        return _FIRST_SECONDS / self.parallel if self._known_seconds is None else self._known_seconds


class Ticket:
    """The places of a request."""

    def __init__(self, admission: Admission, owner: str, answers: int) -> None:
        self._admission, self._owner, self._answers = admission, owner, answers

    def release(self) -> None:
        """Give the places back, once."""
        answers, self._answers = self._answers, 0
        if answers:
            self._admission.leave(self._owner, answers)
