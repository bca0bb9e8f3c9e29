"""Limit how many requests are taken on: those that are computed, and a queue with an end."""

from __future__ import annotations

import math
import time
from collections import Counter

from rung.server.errors import ApiError

#: Answers that may wait for room beside those that are computed.
MOST_WAITING = 64
#: Of all places one key may have, where there are several keys.
_SHARE = 0.75
#: Weight of the latest answer in the mean of seconds, and the mean before there is any.
_LATEST, _FIRST_SECONDS = 0.2, 2.0


class Admission:
    """Count the answers that are computed or wait. ``shared``: there are several keys, so none may take all places."""

    def __init__(self, most_waiting: int = MOST_WAITING, shared: bool = False) -> None:
        self.most_waiting, self._shared = most_waiting, shared
        #: Answers that are computed at once.
        self.parallel = 1
        self._owners: Counter[str] = Counter()
        self._seconds = _FIRST_SECONDS

    @property
    def taken(self) -> int:
        """Return how many answers are computed or wait."""
        return self._owners.total()

    def enter(self, owner: str, answers: int) -> Ticket:
        """Take a request on. Raises ``ApiError`` (503) with the seconds after which there should be room."""
        room = self.parallel + self.most_waiting
        share = math.ceil(room * _SHARE) if self._shared else room
        if self.taken + answers > room or self._owners[owner] + answers > share:
            wait = math.ceil((self.taken + answers - room + 1) * self._seconds / self.parallel)
            raise ApiError(
                503,
                f"{self.taken:,} answers are computed or wait, and there is room for {room:,}.",
                code="queue_full",
                retry_after=max(wait, 1),
            )
        self._owners[owner] += answers
        return Ticket(self, owner, answers)

    def leave(self, owner: str, answers: int, seconds: float) -> None:
        """Give places back after so many seconds."""
        self._owners[owner] -= answers
        self._owners += Counter()
        self._seconds += _LATEST * (seconds - self._seconds)


class Ticket:
    """The places of a request."""

    def __init__(self, admission: Admission, owner: str, answers: int) -> None:
        self._admission, self._owner, self._answers = admission, owner, answers
        self._begun = time.monotonic()

    def release(self) -> None:
        """Give the places back, once."""
        answers, self._answers = self._answers, 0
        if answers:
            self._admission.leave(self._owner, answers, time.monotonic() - self._begun)
