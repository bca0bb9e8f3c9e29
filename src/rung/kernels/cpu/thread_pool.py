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

import ctypes
import functools
import os
import sys
import threading
import time
import weakref
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from rung.kernels.cpu.compiled import OPTIONS, kernel
from rung.kernels.isa.generic import (
    add,
    call_three,
    fetch_add,
    give_way,
    load,
    load_acquire,
    read_int,
    replace_if,
    rest,
    total,
    write_float,
    write_int,
    zero,
)
from rung.kernels.isa.scalar import call_address, call_number, read_i64

#: A chunk is this share of what each thread would get of the rest: smaller ones cost more turns at the counter, with
#: larger ones a core of a third of the speed holds the others up (``benchmarks/cpu_chunks.py``).
_SHARE = 2
#: int64 of a chunk in the table that a step reads: a number of the caller's, first and last group.
CHUNK_WORDS = 3
_FROM_END = 1 << 32


def sizes(groups: int, threads: int) -> list[int]:
    """Return sizes of chunks in the order in which they are taken; they add up to ``groups``.

    >>> sizes(32, 2)
    [8, 6, 4, 3, 2, 2, 1, 1, 1, 1, 1, 1, 1]
    """
    found, left = [], groups
    while left > 0:
        found.append(max(1, left // (_SHARE * threads)))
        left -= found[-1]
    return found


@functools.lru_cache(256)
def cut(groups: tuple[int, ...], threads: int, from_both_ends: bool = False) -> npt.NDArray[np.int64]:
    """Return the chunks of several weights with so many groups of rows: [chunks, (weight, first, last)], not to be
    written to.

    From both ends: the first half of each weight lies before the second half of any.

    >>> cut((3, 2), 1).tolist()
    [[0, 0, 2], [0, 2, 3], [1, 0, 1], [1, 1, 2]]
    """
    parts = [(weight, 0, count) for weight, count in enumerate(groups)]
    order = sizes(sum(groups), threads)
    if from_both_ends:
        half = sum(count // 2 for count in groups)
        parts = [(weight, 0, count // 2) for weight, count in enumerate(groups)]
        parts += [(weight, count // 2, count) for weight, count in reversed(list(enumerate(groups)))]
        each = -(-threads // 2)
        order = sizes(half, each) + sizes(sum(groups) - half, each)[::-1]
    chunks = np.array(list(_divide(parts, order)), np.int64).reshape(-1, CHUNK_WORDS)
    chunks.flags.writeable = False
    return chunks


def _divide(parts: Sequence[tuple[int, int, int]], order: Sequence[int]) -> list[tuple[int, int, int]]:
    """Cut parts of weights to these sizes; a chunk ends where its weight does."""
    found: list[tuple[int, int, int]] = []
    left = list(order)
    for weight, first, last in parts:
        while first < last:
            count = min(left[0], last - first)
            found.append((weight, first, first + count))
            first += count
            left[0] -= count
            if left[0] == 0:
                left.pop(0)
    return found


@numba.njit(**OPTIONS)
def take_chunk(counter, chunks, from_end):
    """Return the number of a chunk that no thread has taken, the first or the last one; ``chunks`` if none is left.

    The word at ``counter`` counts both: low the chunks taken from the start, high those from the end.
    """
    taken = fetch_add(counter, _FROM_END if from_end else 1)
    at_start, at_end = taken & (_FROM_END - 1), taken >> 32
    if at_start + at_end >= chunks:
        return chunks
    return chunks - 1 - at_end if from_end else at_start


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
        for thread in range(1, threads):  # Ctrl-C in ``start`` leaves a daemon asleep, and a team that nobody keeps
            threading.Thread(target=_work, args=(self._shared, thread), daemon=True, name=f"rung-{thread}").start()

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


_NUMBERS = ("omp_get_thread_num", "omp_get_num_threads")


@kernel(1)
def enter(words):
    """Run on each OpenMP thread: ``words`` are the address of the function that returns its number, the function to
    call, its argument, and the number of threads."""
    call_address(read_i64(words + 8), (read_i64(words + 16), call_number(read_i64(words)), read_i64(words + 24)))


@kernel(1)
def _enter_program(words):
    """The same for a whole program: the addresses that tell the thread's number and the number of threads, then the
    steps, their count, and the arrivals at barriers."""
    thread, threads = call_number(read_i64(words)), call_number(read_i64(words + 8))
    run_steps(read_i64(words + 16), read_i64(words + 24), words + 32, 0, thread, threads)


def openmp() -> tuple[Callable[..., None], int, int] | None:
    """Return ``GOMP_parallel`` of the OpenMP library in this process, and the addresses of ``omp_get_thread_num`` and
    ``omp_get_num_threads``. Torch may bring one after the first tokens."""
    if _forked:
        return None
    return find_openmp(_torch_is_whole())


def _torch_is_whole() -> bool:
    return hasattr(sys.modules.get("torch"), "get_num_threads")


def process_threads() -> int:
    """Return how many threads compute where nobody says: torch's where it is imported, else the processor's that this
    process may use."""
    if _torch_is_whole():
        return int(sys.modules["torch"].get_num_threads())
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


#: Whether this process is the child of a fork, made when OpenMP was in use.
_forked = False


def _after_fork() -> None:
    """Leave OpenMP: its threads were the parent's, and a call would wait for them for ever."""
    global _forked
    _forked = _forked or find_openmp.cache_info().currsize > 0 or _torch_is_whole()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@functools.cache
def find_openmp(with_torch: bool) -> tuple[Callable[..., None], int, int] | None:
    """Do as ``openmp``, and look once for a process ``with_torch`` and once without."""
    try:
        mapped = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    paths = dict.fromkeys(line.split(maxsplit=5)[-1] for line in mapped if "/" in line)
    # torch's own first: packages bring copies (sentencepiece, for one), whose threads would wait beside torch's
    for path in sorted(paths, key=lambda path: {"torch", "torch.libs"}.isdisjoint(Path(path).parts)):
        if Path(path).name.split(".")[0].split("-")[0] not in ("libgomp", "libomp", "libiomp5"):
            continue
        library = ctypes.CDLL(path)
        if all(hasattr(library, name) for name in ("GOMP_parallel", *_NUMBERS)):
            start = library.GOMP_parallel
            start.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
            start.restype = None
            number, count = (ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0 for name in _NUMBERS)
            return start, number, count
    return None


#: The teams of this process.
TEAMS = Teams()


def run(function: int, words: Sequence[int], threads: int) -> None:
    """Calls the compiled function at that address as ``f(words, thread, threads)`` on every thread at once.

    The function reads a copy of the words. The first is a counter that it divides its work by; it must be 0. Whether
    every thread gets to run is up to the system, so a function must not wait for another thread.
    """
    found = openmp()
    if found is None:
        TEAMS.of(threads).run(Program.of([(function, np.array(words, np.int64))]))
        return
    start, number, _ = found
    arguments = array("q", (number, function, 0, threads, *words))
    address = arguments.buffer_info()[0]
    arguments[2] = address + 4 * arguments.itemsize
    start(enter.address, address, threads, 0)


def run_program(program: Program, threads: int) -> None:
    """Runs a program on at most ``threads`` threads at once; its functions may count on a barrier after each."""
    found = openmp()
    if found is None:
        TEAMS.of(threads).run(program)
        return
    start, number, count = found
    words = np.array([number, count, program.steps.ctypes.data, len(program.steps), 0], np.int64)
    start(_enter_program.address, words.ctypes.data, threads, 0)


#: Bytes that are read in one step, steps of a turn, and how often each number of threads takes its turn.
STEP, STEPS, _TURNS = 8 << 20, 8, 4
#: Bytes of what a chunk is counted in.
_GROUP = 16 << 10


@kernel(3)
def read_chunks(words, thread, threads):
    """Words: counter, chunks, their ends (counted in groups), data, bytes of a group, and a place for each sum."""
    chunks, ends, data, size = read_int(words + 8), read_int(words + 16), read_int(words + 24), read_int(words + 32)
    sums, chunk = (zero(), zero(), zero(), zero()), take_chunk(words, chunks, False)
    while chunk < chunks:
        first = read_int(ends + 8 * chunk)
        for address in range(data + first * size, data + read_int(ends + 8 * chunk + 8) * size, 256):
            sums = (
                add(sums[0], load(address)),
                add(sums[1], load(address + 64)),
                add(sums[2], load(address + 128)),
                add(sums[3], load(address + 192)),
            )
        chunk = take_chunk(words, chunks, False)
    whole = add(add(sums[0], sums[1]), add(sums[2], sums[3]))
    write_float(read_int(words + 40) + 64 * thread, total(whole))


def rates(counts: Sequence[int]) -> dict[str, float]:
    """Return bytes a second by number of threads (as text, for JSON); the best of some turns, taken alternately."""
    data = np.ones(STEP * STEPS // 4, np.float32)
    programs = {count: reading(data, count) for count in counts}
    teams = {count: Team(count) for count in counts}
    best = dict.fromkeys(counts, 0.0)
    for turn in range(1 + _TURNS):
        for count in counts:
            start = time.perf_counter()
            teams[count].run(programs[count])
            if turn:  # the first one wakes the threads and touches the memory
                best[count] = max(best[count], data.nbytes / (time.perf_counter() - start))
    return {str(count): rate for count, rate in best.items()}


def reading(data: np.ndarray, threads: int) -> Program:
    """The program that reads the data in ``STEPS`` steps; last in what it keeps, the sums of each thread."""
    groups = STEP // _GROUP
    ends = np.concatenate([[0], np.cumsum(sizes(groups, threads))]).astype(np.int64)
    sums = np.zeros(16 * threads, np.float32)
    steps = [
        np.array(
            [0, len(ends) - 1, ends.ctypes.data, data.ctypes.data + STEP * step, _GROUP, sums.ctypes.data], np.int64
        )
        for step in range(STEPS)
    ]
    return Program.of([(read_chunks.address, words) for words in steps], data, ends, sums)
