"""Runs a compiled function on several threads at once, on the threads that torch computes with.

torch on Linux brings GNU OpenMP (or LLVM's, which answers to the same names). Its threads wait by turning for a
while after torch has used them; a second pool would wait for the same processors. Where there is none, a ``Team``
of our own does the work.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rung.kernels.cpu.compiled import kernel
from rung.kernels.cpu.team import Program, Team
from rung.kernels.simd.scalar import call_address, call_number, read_i64

Words = npt.NDArray[np.int64]


@kernel(1)
def _enter(words):
    """What OpenMP calls on each thread: ``words`` are the address that tells its number, the function, its argument,
    and how many threads there are."""
    call_address(read_i64(words + 8), (read_i64(words + 16), call_number(read_i64(words)), read_i64(words + 24)))


@functools.cache
def _openmp() -> tuple[Callable[..., None], int] | None:
    """``GOMP_parallel`` and the address of ``omp_get_thread_num`` of the OpenMP library in this process."""
    try:
        mapped = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    paths = dict.fromkeys(line.split(maxsplit=5)[-1] for line in mapped if "/" in line)
    for path in paths:
        if Path(path).name.split(".")[0].split("-")[0] not in ("libgomp", "libomp", "libiomp5"):
            continue
        library = ctypes.CDLL(path)
        if hasattr(library, "GOMP_parallel") and hasattr(library, "omp_get_thread_num"):
            start = library.GOMP_parallel
            start.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
            start.restype = None
            return start, ctypes.cast(library.omp_get_thread_num, ctypes.c_void_p).value or 0
    return None


@functools.cache
def _team(threads: int) -> Team:
    return Team(threads)


def run(function: int, words: Words, threads: int) -> None:
    """Calls the compiled function at that address as ``f(words, thread, threads)`` on every thread at once.

    The first word is a counter that the function divides its work by; it must be 0. Whether every thread gets to
    run is up to the system, so a function must not wait for another thread.
    """
    found = _openmp()
    if found is not None:
        start, number = found
        entered = np.array([number, function, words.ctypes.data, threads], np.int64)
        start(_enter.address, entered.ctypes.data, threads, 0)
        return
    _team(threads).run(Program.of([(function, words)]))
