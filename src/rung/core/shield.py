"""Work that an interrupt must not cut in two: imports of large packages, compiling, and what threads do meanwhile.

``threading.Thread``, ``Condition`` and ``concurrent.futures`` are no help here: ``KeyboardInterrupt`` between their
lines leaves a lock taken, and other threads, or the end of the process, wait for it for ever. Instead one call of C
each is used: ``_thread.start_new_thread``, a lock, and ``queue.SimpleQueue``.
"""

from __future__ import annotations

import _thread
import atexit
import importlib
import queue
import sys
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

#: A lock for each thread that works; it is free again when the thread has ended.
_working: set[_thread.LockType] = set()


class Outcome(Generic[T]):
    """What a call that another thread makes comes to."""

    def __init__(self) -> None:
        self._box: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
        self._found: tuple[T | None, BaseException | None] | None = None

    def fill(self, call: Callable[[], T]) -> None:
        """Make the call and keep what it returns or raises."""
        try:
            found: tuple[T | None, BaseException | None] = call(), None
        except BaseException as error:
            found = None, error
        self._box.put(found)

    def result(self) -> T:
        """Wait, and return what the call returned; raise what it raised."""
        if self._found is None:
            self._found = self._box.get()
        value, error = self._found
        if error is not None:
            raise error
        return value  # type: ignore[return-value]  # the call returned it


class Workers:
    """Threads that make calls in the order in which they are submitted; a context manager that ends them.

    An interrupt may come anywhere. Calls that no thread has begun when the block is left are dropped.
    """

    def __init__(self, count: int) -> None:
        self._count, self._open = count, False
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._working: set[_thread.LockType] = set()

    def submit(self, call: Callable[..., T], *given: Any) -> Outcome[T]:
        """Have ``call(*given)`` made; return where its outcome will be."""
        if not self._open:
            self._open = True
            for _ in range(self._count):
                _thread.start_new_thread(self._work, ())  # nobody waits for it: an interrupt may have cut ``close``
        outcome: Outcome[T] = Outcome()
        self._calls.put(lambda: outcome.fill(lambda: call(*given)))
        return outcome

    def close(self) -> None:
        """Drop the calls that have not begun, and wait for those that have."""
        self._open = False
        for _ in range(self._count):
            self._calls.put(None)
        for lock in list(self._working):
            lock.acquire()

    def _work(self) -> None:
        """Make calls. A thread counts itself, as nothing interrupts it: the one that started it may be cut short."""
        lock = _thread.allocate_lock()
        with lock:
            self._working.add(lock)
            while (call := self._calls.get()) is not None:
                if self._open:
                    call()
                del call
            self._working.discard(lock)


def _start(work: Callable[[], None]) -> None:
    """Start a thread; the process does not end before it. Only the thread itself, which nothing interrupts, counts."""

    def run() -> None:
        lock = _thread.allocate_lock()
        with lock:
            _working.add(lock)
            work()
            _working.discard(lock)

    _thread.start_new_thread(run, ())


@atexit.register
def _wait() -> None:
    for lock in list(_working):
        lock.acquire()


def shielded(call: Callable[[], T]) -> T:
    """Call, and let nothing cut the call short: Ctrl-C raises here at once, while the call goes on to its end.

    Python raises ``KeyboardInterrupt`` in the main thread, and packages that it hits while they are imported or while
    they compile stay broken for the process; so from there the call is made in a thread of its own. The caller must
    hold no lock that the call takes.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    outcome: Outcome[T] = Outcome()
    _start(lambda: outcome.fill(call))
    return outcome.result()


def import_whole(name: str) -> Any:
    """Import a module that takes long; Ctrl-C does not stop half-way through it. Return it."""
    found = sys.modules.get(name)
    if found is not None and not getattr(found.__spec__, "_initializing", False):
        return found
    return shielded(lambda: importlib.import_module(name))
