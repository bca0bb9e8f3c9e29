"""Limit how many requests are taken on: those that are computed, and a queue with an end."""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Callable

from rung.server.errors import ApiError

#: Answers that may wait for room beside those that are computed.
MOST_WAITING = 64
#: Of all places one key may have, where there are several keys.
_SHARE = 0.75
#: Ends of answers by which their rate is known, and the seconds between two before there are any.
_ENDS, _FIRST_SECONDS = 64, 2.0
#: Seconds without an end after which earlier ones say nothing of the rate.
_QUIET = 60.0


class Admission:
    """Count the answers that are computed or wait. ``shared``: there are several keys, so none may take all places.

    A refusal says when there will be a place, by the rate at which answers end: the first one that becomes free is for
    whoever was refused first, so each refusal names a later time than the one before it.
    """

    def __init__(
        self, most_waiting: int = MOST_WAITING, shared: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.most_waiting, self._shared, self._clock = most_waiting, shared, clock
        #: Answers that are computed at once.
        self.parallel = 1
        self._owners: Counter[str] = Counter()
        self._ends: deque[float] = deque(maxlen=_ENDS)
        #: When the last place will be free that a refusal has named by its clock.
        self._promised = 0.0

    @property
    def taken(self) -> int:
        """Return how many answers are computed or wait."""
        return self._owners.total()

    def enter(self, owner: str, answers: int) -> Ticket:
        """Take a request on. Raises ``ApiError`` (503) with the seconds after which there should be room."""
        room = self.parallel + self.most_waiting
        share = math.ceil(room * _SHARE) if self._shared else room
        if self.taken + answers > room or self._owners[owner] + answers > share:
            now = self._clock()
            self._promised = max(self._promised, now) + answers * self.seconds_per_answer(now)
            wait = math.ceil(self._promised - now)
            raise ApiError(
                503,
                f"{self.taken:,} answers are computed or wait, and there is room for {room:,}.",
                code="queue_full",
                retry_after=max(wait, 1),
            )
        self._owners[owner] += answers
        return Ticket(self, owner, answers)

    def leave(self, owner: str, answers: int) -> None:
        """Give places back."""
        self._owners[owner] -= answers
        self._owners += Counter()
        self._ends.extend([self._clock()] * answers)

    def seconds_per_answer(self, now: float) -> float:
        """Return how long it takes that an answer ends, by the last of them; all places are taken."""
        ends = [each for each in self._ends if now - each < _QUIET]
        if len(ends) < 2:
            return _FIRST_SECONDS / self.parallel
        return (now - ends[0]) / len(ends)


class Ticket:
    """The places of a request."""

    def __init__(self, admission: Admission, owner: str, answers: int) -> None:
        self._admission, self._owner, self._answers = admission, owner, answers

    def release(self) -> None:
        """Give the places back, once."""
        answers, self._answers = self._answers, 0
        if answers:
            self._admission.leave(self._owner, answers)
