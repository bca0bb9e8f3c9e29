"""Threads that run a program of compiled functions together, with a barrier after each function.

A program is a table of (function, arguments) addresses. Every thread of the team calls every function with
(arguments, thread, threads); the functions divide their work by the counter at the start of their arguments (see
``next_chunk``), so a thread that the system has taken away costs little. A token of a decoder is one program: its
threads meet in compiled code and not in Python, and wait by turning, then by giving way.

A run survives exceptions of the calling thread (Ctrl-C), because whatever counts is counted in compiled code, in one
call: ``lead`` waits until the other threads are there, starts the run and takes part in it. What Python does before
that call only wakes threads. A thread that was woken for nothing goes back to sleep, and one that does not come is
left out: every thread does the same work, whatever their number.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np

from rung.kernels.cpu.compiled import OPTIONS, kernel
from rung.kernels.isa.generic import (
    call_three,
    fetch_add,
    give_way,
    load_acquire,
    read_int,
    replace_if,
    rest,
    write_int,
)

#: Turns of waiting before a thread gives its processor away: 1 to 5 microseconds, by processor. Where another program
#: has the other core, two threads run on one, and each step of a token waits that long (1000 turns: 26 microseconds).
TURNS = 100
#: Turns that a thread waits for the others, or for a run: some 10 milliseconds.
_PATIENCE = 20_000
#: The shared words, by their offset in bytes. The door holds the number of the run, shifted by ``_SHIFT``, plus how
#: many threads wait for it. The door and the arrivals at barriers, which all threads write, have lines of their own.
_DOOR, _ARRIVALS, _STEPS, _COUNT, _BEFORE, _THREADS = 0, 128, 256, 264, 272, 280
_STATE_WORDS = 48
_SHIFT = 16


@numba.njit(**OPTIONS)
def next_chunk(counter):
    """The next chunk of work that no thread has taken: 0, 1, 2 ...; the counter is zero again in the next run."""
    return fetch_add(counter, 1)


@numba.njit(**OPTIONS)
def run_steps(steps, count, arrivals, before, thread, threads):
    """Run ``count`` steps; ``before`` is the number of arrivals at barriers before this run."""
    for index in range(count):
        function, arguments = read_int(steps + 16 * index), read_int(steps + 16 * index + 8)
        call_three(function, arguments, thread, threads)
        awaited = before + (index + 1) * threads
        fetch_add(arrivals, 1)
        turns = 0
        while load_acquire(arrivals) < awaited:
            rest()
            turns += 1
            if turns > TURNS:
                give_way()
        if thread == 0:
            write_int(arguments, 0)


@numba.njit(**OPTIONS)
def _take_part(state, thread):
    steps, count, before = read_int(state + _STEPS), read_int(state + _COUNT), read_int(state + _BEFORE)
    run_steps(steps, count, state + _ARRIVALS, before, thread, read_int(state + _THREADS))


@kernel(4)
def lead(state, steps, count, others):
    """Run a program with those of the ``others`` that come in time, as thread number 0."""
    for index in range(count):  # not zero where a fork has cut a run of its parent
        write_int(read_int(steps + 16 * index + 8), 0)
    write_int(state + _STEPS, steps)
    write_int(state + _COUNT, count)
    write_int(state + _BEFORE, load_acquire(state + _ARRIVALS))
    turns = 0
    while True:
        door = load_acquire(state + _DOOR)
        present = door & ((1 << _SHIFT) - 1)
        if present == others or turns > _PATIENCE:
            write_int(state + _THREADS, present + 1)
            if replace_if(state + _DOOR, door, ((door >> _SHIFT) + 1) << _SHIFT) != 0:
                break
        rest()
        turns += 1
        if turns > TURNS:
            give_way()
    _take_part(state, 0)


@kernel(2)
def follow(state, thread):
    """Take part in the next run, or return when none begins soon."""
    run = fetch_add(state + _DOOR, 1) >> _SHIFT
    turns = 0
    while True:
        door = load_acquire(state + _DOOR)
        if door >> _SHIFT != run:
            _take_part(state, thread)
            return
        if turns > _PATIENCE and replace_if(state + _DOOR, door, door - 1) != 0:
            return
        rest()
        turns += 1
        if turns > TURNS:
            give_way()


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
    """Hold what the threads of a team share."""

    def __init__(self, threads: int) -> None:
        self.state = np.zeros(_STATE_WORDS, dtype=np.int64)
        self.gates = [threading.Lock() for _ in range(threads - 1)]  # each is locked while its thread sleeps or works
        self.open = True

    def wake(self) -> None:
        """Wake the threads that sleep."""
        for gate in self.gates:
            if gate.locked():
                gate.release()


def _work(shared: _Shared, thread: int) -> None:
    gate, state = shared.gates[thread - 1], shared.state.ctypes.data
    while True:
        gate.acquire()
        if not shared.open:
            return
        follow.call(state, thread)


def _dismiss(shared: _Shared) -> None:
    shared.open = False
    shared.wake()


class Team:
    """The calling thread and ``threads - 1`` others, which sleep between runs. One run at a time: others wait."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._shared = _Shared(threads)
        self._turn = threading.RLock()
        self.lead = lead.call
        follow.call  # noqa: B018  compiled here, not in a thread
        for gate in self._shared.gates:
            gate.acquire()
        weakref.finalize(self, _dismiss, self._shared)
        self._start()

    def _start(self) -> None:
        self._others = [
            threading.Thread(target=_work, args=(self._shared, thread), daemon=True, name=f"rung-{thread}")
            for thread in range(1, self.threads)
        ]
        for each in self._others:  # Ctrl-C in ``start`` leaves a daemon asleep, and a team that nobody keeps
            each.start()

    def restart(self) -> None:
        """Start the other threads anew, with the rights that the calling thread has now."""
        with self._turn:
            _dismiss(self._shared)
            for each in self._others:
                each.join()
            self._shared.open = True
            for gate in self._shared.gates:
                gate.acquire(blocking=False)
            self._start()

    def run(self, program: Program) -> None:
        """Run the program to its end."""
        shared = self._shared
        with self._turn:
            shared.wake()
            self.lead(shared.state.ctypes.data, program.steps.ctypes.data, len(program.steps), len(shared.gates))


class Teams:
    """A team for each number of threads, made when it is first asked for.

    Threads do not survive a fork, so a child process makes teams of its own.
    """

    def __init__(self) -> None:
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self._teams: dict[int, Team] = {}
        self._making = threading.Lock()

    def of(self, threads: int) -> Team:
        """The team of that many threads."""
        found = self._teams.get(threads)
        if found is None:
            with self._making:
                found = self._teams.get(threads) or Team(threads)
                self._teams[threads] = found
        return found

    def restart(self) -> None:
        """Start the threads of all teams anew, with the rights that the calling thread has now."""
        with self._making:
            for each in self._teams.values():
                each.restart()
