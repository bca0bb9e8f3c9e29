"""Threads that run a program of compiled functions together, with a barrier after each function.

A program is a table of (function, arguments) addresses. Every thread of the team calls every function with
(arguments, thread, threads); the functions divide their work by the counter at the start of their arguments (see
``next_chunk``), so a thread that the system has taken away costs little. A token of a decoder is one program: its
threads meet in compiled code and not in Python, and wait by turning, then by giving way.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numba import types

from rung.kernels.cpu.compiled import OPTIONS
from rung.kernels.simd.generic import call_three, fetch_add, give_way, load_acquire, read_int, rest, write_int

#: Turns of waiting before a thread gives its processor away: about 50 microseconds.
_TURNS = 1000
_WORD = 8


@numba.njit(**OPTIONS)
def next_chunk(counter):
    """The next chunk of work that no thread has taken: 0, 1, 2 ...; the counter is zero again in the next run."""
    return fetch_add(counter, 1)


@numba.njit(types.void(*[types.int64] * 6), **OPTIONS)
def run_steps(steps, count, arrivals, before, thread, threads):
    """Runs ``count`` steps; ``before`` is the number of arrivals at barriers before this run."""
    for index in range(count):
        function, arguments = read_int(steps + 16 * index), read_int(steps + 16 * index + 8)
        call_three(function, arguments, thread, threads)
        awaited = before + (index + 1) * threads
        fetch_add(arrivals, 1)
        turns = 0
        while load_acquire(arrivals) < awaited:
            rest()
            turns += 1
            if turns > _TURNS:
                give_way()
        if thread == 0:
            write_int(arguments, 0)


@dataclass(frozen=True)
class Program:
    """Steps in order: addresses of functions and of their arguments, whose first word is their counter.

    ``keep`` holds whatever the addresses point to.
    """

    steps: np.ndarray
    keep: tuple[Any, ...]

    @classmethod
    def of(cls, steps: Sequence[tuple[int, np.ndarray]], *keep: Any) -> Program:
        """From (address of a function, its int64 arguments)."""
        table = np.array([[function, arguments.ctypes.data] for function, arguments in steps], dtype=np.int64)
        return cls(table, (*(arguments for _, arguments in steps), *keep))


class _Shared:
    """What the threads of a team share."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.arrivals = np.zeros(1, dtype=np.int64)
        self.before = 0
        self.program: Program | None = None
        self.gates = [threading.Semaphore(0) for _ in range(threads - 1)]

    def take_part(self, thread: int) -> None:
        """Runs the present program as thread number ``thread``."""
        program = self.program
        assert program is not None
        address = self.arrivals.ctypes.data
        run_steps(program.steps.ctypes.data, len(program.steps), address, self.before, thread, self.threads)


def _work(shared: _Shared, thread: int) -> None:
    gate = shared.gates[thread - 1]
    while True:
        gate.acquire()
        if shared.program is None:
            return
        shared.take_part(thread)


def _dismiss(shared: _Shared) -> None:
    shared.program = None
    for gate in shared.gates:
        gate.release()


class Team:
    """The calling thread and ``threads - 1`` others, which sleep between runs. One run at a time: others wait."""

    def __init__(self, threads: int) -> None:
        self._shared = _Shared(threads)
        self._turn = threading.Lock()
        for thread in range(1, threads):
            threading.Thread(target=_work, args=(self._shared, thread), daemon=True, name=f"rung-{thread}").start()
        weakref.finalize(self, _dismiss, self._shared)

    @property
    def threads(self) -> int:
        """Threads in all."""
        return self._shared.threads

    def run(self, program: Program) -> None:
        """Runs the program to its end."""
        shared = self._shared
        with self._turn:
            shared.program = program
            for gate in shared.gates:
                gate.release()
            shared.take_part(0)
            shared.before += len(program.steps) * shared.threads
