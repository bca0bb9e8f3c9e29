"""CPython 3.11: how something is done in threads that run already, by what their states say is to be called there.

The state of a thread has a place for a tracer and one for a profiler: C functions that the interpreter calls before the
next line, call or return. Python fills those of the thread that asks, CPython's own functions those of any. A place
that is taken, by a debugger say or by coverage, stays as it is.

A state is gone when its thread has ended, so nothing may let other threads run while one is at hand. One call of C does
not (unless somebody has set an audit hook written in Python), and therefore all this is chains of C functions, gone
through at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import operator
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from ctypes import PYFUNCTYPE, c_int, c_size_t, c_ulong, c_void_p
from itertools import accumulate, chain, compress, cycle, repeat, starmap, takewhile
from types import FrameType
from typing import Any


class _State(ctypes.Structure):
    """``PyThreadState`` (Include/cpython/pystate.h of 3.11) up to what is asked of it."""

    _fields_ = [
        *((name, c_size_t) for name in ("previous", "next", "interpreter")),
        *((name, c_int) for name in ("initialized", "static", "left", "limit", "headroom", "tracing", "event")),
        *((name, c_size_t) for name in ("frame", "profiler", "tracer", "profiler_object", "tracer_object")),
        *((name, c_size_t) for name in ("type", "value", "traceback", "handled", "dictionary")),
        ("held", c_int),
        ("injected", c_size_t),
        ("thread", c_ulong),
    ]


def _function(name: str, *types: Any) -> Any:
    """A function of CPython, by the types of what it returns and takes. It keeps the interpreter's lock."""
    return PYFUNCTYPE(*types)((name, ctypes.pythonapi))


_own = _function("PyThreadState_Get", c_size_t)
_interpreter = _function("PyInterpreterState_Get", c_size_t)
_first = _function("PyInterpreterState_ThreadHead", c_size_t, c_size_t)
_next = _function("PyThreadState_Next", c_size_t, c_size_t)
#: The places, each with what fills it.
_PLACES = {"tracer": "_PyEval_SetTrace", "profiler": "_PyEval_SetProfile"}
_Called = PYFUNCTYPE(c_int, c_void_p, c_void_p, c_int, c_void_p)


@contextlib.contextmanager
def reached(do: Callable[[], None]) -> Iterator[None]:
    """In the block ``do`` is called once in each other thread that runs already, before its next instruction.

    Where a thread has a tracer of its own it is called at the next call or return, and not where it has both.
    """
    if _State.from_address(_own()).thread != threading.get_ident():  # a build whose states are made otherwise
        yield
        return
    called = _address(_calling(do))
    _at_once(_exchanged("tracer", 0, called), _looking(called, True), _exchanged("profiler", 0, called))
    try:
        yield
    finally:
        _at_once(_looking(called, False), _exchanged("tracer", called, 0), _exchanged("profiler", called, 0))


@functools.cache
def _calling(do: Callable[[], None]) -> Any:
    """Return a function for the interpreter to call in a thread: it calls ``do`` once. It is kept for ever, for a
    thread may be in it."""

    def calling(*event: Any) -> int:
        own, called = _own(), _address(_calling(do))
        state = _State.from_address(own)
        if state.tracer == called:
            _no_closer(sys._getframe(1))
        for slot in _PLACES:
            if getattr(state, slot) == called:
                _fill(slot)(own, 0, 0)
        do()
        return 0

    return _Called(calling)


@functools.cache
def _fill(slot: str) -> Any:
    """The function that fills a place: it takes a state, what is to be called, and an object for it."""
    return _function(_PLACES[slot], c_int, c_size_t, c_size_t, c_size_t)


def _address(called: Any) -> int:
    return ctypes.cast(called, c_void_p).value or 0


def _others() -> Iterator[int]:
    """The states of the other threads, looked for one by one."""
    every = accumulate(chain(map(_first, [_interpreter()]), repeat(None)), _next)
    return filter(_own().__ne__, takewhile(bool, every))


def _fields(name: str) -> Iterator[int]:
    """Yield what the states of the other threads say, one by one."""
    return map(operator.attrgetter(name), map(_State.from_address, _others()))


def _exchanged(slot: str, was: int, now: int) -> Iterator[Any]:
    """Puts something in that place of each other thread in which ``was`` is (0: nothing)."""
    return map(_fill(slot), compress(_others(), map(was.__eq__, _fields(slot))), repeat(now), repeat(0))


def _looking(called: int, closely: bool) -> Iterator[Any]:
    """Has this tracer called before each instruction of the frame that a thread is in, or at new lines again."""
    threads = compress(_fields("thread"), map(called.__eq__, _fields("tracer")))
    frames = map(dict.get, cycle(starmap(sys._current_frames, [()])), threads)
    return map(setattr, filter(None, frames), repeat("f_trace_opcodes"), repeat(closely))


def _no_closer(frame: FrameType | None) -> None:
    """Takes that back in the thread itself, wherever it has come to from there."""
    while frame is not None:
        frame.f_trace_opcodes = False
        frame = frame.f_back


def _at_once(*steps: Iterator[Any]) -> None:
    """Goes through the steps in one call of C, during which no other thread runs, nor what collecting garbage calls."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        deque(chain.from_iterable(steps), maxlen=0)
    finally:
        if collecting:
            gc.enable()
