"""In force in every thread: torch's modes belong to the thread that entered them, so each thread enters its own.

Threads that start while a simulation is in force enter it when they start, the work of thread pools when it is taken
up, whenever the pool began.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import thread as pool
from typing import Any

from rung.run.simulate.patches import Patches


class _Inside(threading.local):
    def __init__(self) -> None:
        self.entered: set[Callable[[], contextlib.AbstractContextManager[Any]]] = set()


_inside = _Inside()


def install(enter: Callable[[], contextlib.AbstractContextManager[Any]], patches: Patches) -> None:
    """Puts it in force: ``enter`` makes the mode of a thread."""
    start, run = threading.Thread._bootstrap_inner, pool._WorkItem.run  # type: ignore[attr-defined]

    def started(thread: threading.Thread) -> None:
        with entered(enter):
            start(thread)

    def taken_up(item: Any, *args: Any) -> None:
        with entered(enter):
            run(item, *args)

    patches.set(threading.Thread, "_bootstrap_inner", started)
    patches.set(pool._WorkItem, "run", taken_up)


@contextlib.contextmanager
def entered(enter: Callable[[], contextlib.AbstractContextManager[Any]]) -> Any:
    """The mode in force in this thread while in the block, entered once."""
    if enter in _inside.entered:
        yield
        return
    _inside.entered.add(enter)
    try:
        with enter():
            yield
    finally:
        _inside.entered.remove(enter)
