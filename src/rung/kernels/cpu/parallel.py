"""Runs a compiled function on several threads at once, on the threads that torch computes with.

torch on Linux brings GNU OpenMP (or LLVM's, which answers to the same names). Its threads wait by turning for a
while after torch has used them; a second pool would wait for the same processors. Where there is none, a ``Team``
of our own does the work.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from rung.kernels.cpu.compiled import kernel
from rung.kernels.cpu.thread_pool import Program, Teams, run_steps
from rung.kernels.isa.scalar import call_address, call_number, read_i64

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
