"""Decide who computes with a model: several threads, or several answers of one thread, may use it."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: Seconds without a token after which an answer of another thread no longer keeps the model to itself.
_IDLE = 0.2
#: Seconds between two looks at whether the model is free.
_LOOK = 0.002
_numbers = itertools.count(1)


def new_owner() -> int:
    """Return a number that names an answer."""
    return next(_numbers)


class Turns:
    """Let one answer compute at a time, and remember whose tokens the cache holds.

    An answer keeps the model to itself until it ends or nobody asks it for a token: two threads that answer at once do
    so one after the other. An answer that another one came between finds out, and has to read its tokens again.
    """

    def __init__(self) -> None:
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._lock = threading.RLock()
        self._owner, self._thread, self._until = 0, 0, 0.0

    def compute(self, owner: int, call: Callable[[bool], T]) -> T:
        """Call as soon as the model is free, with whether the cache is as ``owner`` left it."""
        if self._process != os.getpid():  # a fork: its parent's threads, which may hold the lock, are not here
            self._start()
        while True:
            with self._lock:
                if self._is_free(owner):
                    unchanged = self._owner == owner
                    self._owner, self._thread = owner, threading.get_ident()
                    try:
                        return call(unchanged)
                    finally:
                        self._until = time.monotonic() + _IDLE
            time.sleep(_LOOK)

    def end(self, owner: int) -> None:
        """Let other threads compute: this answer asks for no more tokens."""
        if self._owner == owner:
            self._until = 0.0

    def _is_free(self, owner: int) -> bool:
        return owner == self._owner or self._thread == threading.get_ident() or time.monotonic() >= self._until
