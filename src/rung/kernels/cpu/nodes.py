"""Use the memory of several NUMA nodes: a weight lies where the threads are that read it.

The nodes of a machine form two halves. The first half of the rows of each weight is packed by a thread that runs on
the first half of the nodes, so the system puts its pages there. In each step a thread takes chunks of rows from the end
that is near it, and only when those are gone from the other (``chunks``).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numba
import numpy as np
import numpy.typing as npt

from rung.hardware import topology
from rung.kernels.cpu.compiled import OPTIONS
from rung.kernels.isa.generic import read_int
from rung.kernels.isa.scalar import call_number, read_u8


@dataclass(frozen=True)
class Halves:
    """The processors of the nodes with the first half of each weight, and of those with the second."""

    first: frozenset[int]
    second: frozenset[int]


def halves_of(nodes: tuple[frozenset[int], ...]) -> Halves | None:
    """Return how those nodes are divided; None for one node."""
    if len(nodes) < 2:
        return None
    middle = len(nodes) // 2
    return Halves(frozenset().union(*nodes[:middle]), frozenset().union(*nodes[middle:]))


@functools.cache
def halves() -> Halves | None:
    """Return how the nodes that this process may use are divided; None for one, or where no system call tells."""
    if not hasattr(os, "sched_getaffinity") or not _getcpu():
        return None
    return halves_of(topology.of_linux(Path("/"), frozenset(os.sched_getaffinity(0)), None).nodes)


def _getcpu() -> int:
    """The address of the C function that tells on which processor a thread runs; 0 where there is none."""
    try:
        return ctypes.cast(ctypes.CDLL(None).sched_getcpu, ctypes.c_void_p).value or 0
    except (OSError, AttributeError):
        return 0


@dataclass(frozen=True, eq=False)
class NodeTable:
    """Tell a step which end is near a thread: ``words`` hold the address of ``getcpu``, and that of a
    byte for each processor, 1 where it belongs to the second half."""

    words: npt.NDArray[np.int64]
    second: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, halves: Halves, getcpu: int) -> NodeTable:
        """The table of a machine; ``getcpu`` is the address of the C function."""
        second = np.zeros(max(halves.first | halves.second) + 1, np.uint8)
        second[list(halves.second)] = 1
        return cls(np.array([getcpu, second.ctypes.data, second.size], np.int64), second)

    @property
    def address(self) -> int:
        """Where the words lie."""
        return int(self.words.ctypes.data)


@functools.cache
def table() -> NodeTable | None:
    """The table of this machine; None where memory is one."""
    found = halves()
    return None if found is None else NodeTable.of(found, _getcpu())


@numba.njit(**OPTIONS)
def runs_on_second_half(table):
    """Return whether the thread runs on the second half of the nodes; ``table`` is the address of words, or 0."""
    if table == 0:
        return False
    processor = call_number(read_int(table))
    if processor < 0 or processor >= read_int(table + 16):
        return False
    return read_u8(read_int(table + 8) + processor) != 0


@contextlib.contextmanager
def packing_thread(halves: Halves | None) -> Iterator[Callable[[bool], None]]:
    """Let the calling thread write rows of a weight where they are read: call with whether they are of the second half.

    The thread returns to the processors that it came from. A system that refuses to move it costs speed, nothing else.
    """
    if halves is None:
        yield lambda second: None
        return
    before, now = os.sched_getaffinity(0), [False, False]

    def move(second: bool) -> None:
        if now[second]:
            return
        now[:] = [not second, second]
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, halves.second if second else halves.first)

    try:
        yield move
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, before)
