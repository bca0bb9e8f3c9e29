"""Exceptions in the middle of a call, as Ctrl-C and a notebook's stop button raise them."""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def alarms() -> Iterator[None]:
    """SIGALRM raises ``KeyboardInterrupt`` in the block, as SIGINT does in a program."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def interrupt(call: Callable[[], object], seconds: float) -> bool:
    """Call and interrupt after so many seconds; say whether the call was still at work."""
    try:
        signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
        call()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        return True
    return False


def moments(count: int, longest: float, seed: int = 0) -> list[float]:
    """Random moments, in seconds, in a call that takes ``longest``."""
    random_ = random.Random(seed)
    return [random_.uniform(0, longest) for _ in range(count)]
