"""In force in every thread: what torch sees of operations belongs to a thread, so each thread is brought to it.

Threads that start while a simulation is in force enter it when they start, the work of thread pools when it is taken
up, and threads that run already before the next instruction of Python that they carry out.
"""

from __future__ import annotations

import _thread
import contextlib
import functools
import sys
import threading
from collections.abc import Callable
from concurrent.futures import thread as pool  # the program's: rung itself uses ``core.shield.Workers``
from typing import Any

from rung.simulation.dispatch.patches import Patches

#: What starts a thread, by the names of all versions of Python: ``threading`` comes here too.
_STARTING = ("start_new_thread", "start_new", "start_joinable_thread")


class _Inside(threading.local):
    def __init__(self) -> None:
        self.entered: set[Callable[[], contextlib.AbstractContextManager[Any]]] = set()


_inside = _Inside()


def install(enter: Callable[[], contextlib.AbstractContextManager[Any]], patches: Patches) -> None:
    """Puts it in force in threads and work that start from now on: ``enter`` makes the block of a thread."""

    def inside(run: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(run)
        def entering(*args: Any, **kwargs: Any) -> Any:
            with entered(enter):
                return run(*args, **kwargs)

        return entering

    def starting(start: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(start)
        def started(function: Any, *args: Any, **kwargs: Any) -> Any:
            return start(inside(function) if callable(function) else function, *args, **kwargs)

        return started

    for name in _STARTING:
        if hasattr(_thread, name):
            patches.set(_thread, name, starting(getattr(_thread, name)))
    patches.set(pool._WorkItem, "run", inside(pool._WorkItem.run))


@contextlib.contextmanager
def entered(enter: Callable[[], contextlib.AbstractContextManager[Any]]) -> Any:
    """The block in force in this thread while in this one, entered once."""
    if enter in _inside.entered:
        yield
        return
    _inside.entered.add(enter)
    try:
        with enter():
            yield
    finally:
        _inside.entered.remove(enter)


def reached(do: Callable[[], None]) -> contextlib.AbstractContextManager[None]:
    """A block: ``do`` is called once in each other thread that runs already, before it does anything else in Python.

    Threads that do nothing until the block ends are not reached, nor is any on a Python without CPython's lock.
    """
    locked = getattr(sys, "_is_gil_enabled", lambda: True)()
    if sys.implementation.name != "cpython" or not locked:
        return contextlib.nullcontext()
    if sys.version_info >= (3, 12):
        from rung.simulation.dispatch import threads_py312 as way
    else:
        from rung.simulation.dispatch import threads_py311 as way
    return way.reached(do)
