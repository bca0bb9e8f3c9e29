"""Work that an interrupt must not cut in two: imports of large packages, compiling, and what threads do meanwhile.

``threading.Thread``, ``Condition`` and ``concurrent.futures`` are no help here: ``KeyboardInterrupt`` between their
lines leaves a lock taken, and other threads, or the end of the process, wait for it for ever. Instead one call of C
each is used: ``_thread.start_new_thread``, a lock, and ``queue.SimpleQueue``.
"""

from __future__ import annotations

import _thread
import atexit
import functools
import importlib
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Generic, NoReturn, Self, TypeVar

S = TypeVar("S")
T = TypeVar("T")

#: A lock for each thread that works; it is free again when the thread has ended.
_working: set[_thread.LockType] = set()


class Outcome(Generic[T]):
    """Hold what a call that another thread makes comes to. One thread at a time may wait for it."""

    def __init__(self) -> None:
        self._found: tuple[T | None, BaseException | None] | None = None
        self._coming = _thread.allocate_lock()
        self._coming.acquire()

    def fill(self, call: Callable[[], T]) -> None:
        """Make the call and keep what it returns or raises."""
        try:
            self._found = call(), None
        except BaseException as error:
            self._found = None, error
        self._coming.release()

    @property
    def done(self) -> bool:
        """Return whether the call has ended."""
        return self._found is not None

    def result(self, timeout: float = -1) -> T:
        """Wait, and return what the call returned; raise what it raised, or ``TimeoutError`` after so many seconds."""
        if self._found is None and not self._coming.acquire(timeout=timeout):
            raise TimeoutError
        assert self._found is not None
        value, error = self._found
        if error is not None:
            raise error
        return value  # type: ignore[return-value]  # the call returned it


class _Line:
    """Hold what workers share: the calls in order, whether they are still to be made, and a lock for each that
    works."""

    def __init__(self) -> None:
        self.calls: queue.SimpleQueue[Any] = queue.SimpleQueue()  # (outcome, call), then anything else: the end
        self.open = True
        self.working: set[_thread.LockType] = set()
        self.holder: weakref.ref[Workers] | None = None


def _dropped() -> NoReturn:
    raise RuntimeError("the workers were closed before they began this call")


def _work(line: _Line) -> None:
    """Make calls. A thread counts itself, as nothing interrupts it: the one that started it may be cut short."""
    lock = _thread.allocate_lock()
    with lock:
        line.working.add(lock)
        while isinstance(taken := line.calls.get(), tuple):
            outcome, call = taken
            outcome.fill(call if line.open else _dropped)
            del taken, outcome, call
        line.calls.put(None)  # the other threads end as well
        line.working.discard(lock)


class Workers:
    """Threads that make calls in the order in which they are submitted; a context manager that ends them.

    An interrupt may come anywhere. Calls that no thread has begun when the block is left are dropped.
    """

    def __init__(self, count: int) -> None:
        self._count, self._started, self._line = count, 0, _Line()
        # not ``__del__``, in which an interrupt would be lost: the queue is told by C
        self._line.holder = weakref.ref(self, self._line.calls.put)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def open(self) -> bool:
        """Return whether somebody still waits for what the calls return."""
        return self._line.open

    def submit(self, call: Callable[..., T], *args: Any, **options: Any) -> Outcome[T]:
        """Have ``call(*args, **options)`` made; return where its outcome will be."""
        if not self.open:
            raise RuntimeError("the workers are closed")
        while self._started < self._count:  # an interrupt between the two lines costs an idle thread
            _thread.start_new_thread(_work, (self._line,))
            self._started += 1
        outcome: Outcome[T] = Outcome()
        self._line.calls.put((outcome, functools.partial(call, *args, **options)))
        return outcome

    def map(self, call: Callable[[S], T], items: Iterable[S]) -> list[T]:
        """Call with each item, and return what came of it in their order; raise what the first that fails raises."""
        return [outcome.result() for outcome in [self.submit(call, item) for item in items]]

    def close(self) -> None:
        """Drop the calls that have not begun, and wait for those that have."""
        self._line.open = False
        self._line.calls.put(None)
        for lock in list(self._line.working):
            lock.acquire()


def _start(work: Callable[[], None]) -> None:
    """Start a thread; the process does not end before it. Only the thread itself, which nothing interrupts, counts."""

    def run() -> None:
        lock = _thread.allocate_lock()
        with lock:
            _working.add(lock)
            work()
            _working.discard(lock)

    _thread.start_new_thread(run, ())


def in_background(call: Callable[[], T]) -> Outcome[T]:
    """Make a call in a thread of its own, and return where its outcome will be. The process does not end before it."""
    outcome: Outcome[T] = Outcome()
    begun = _thread.allocate_lock()
    begun.acquire()

    def work() -> None:
        begun.release()
        outcome.fill(call)

    _start(work)
    begun.acquire()  # the thread has counted itself
    return outcome


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
