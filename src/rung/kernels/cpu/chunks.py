"""Cut the work of a step into chunks, which threads take one after the other: large ones first, then ever smaller ones.

A fast core takes more chunks than a slow one, and at the end of a step, when every thread waits for the last, only
small ones are at work. Where weights lie on two halves of a machine (``nodes``), chunks are cut from both ends: threads
of each half begin at theirs and meet in between.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numba
import numpy as np
import numpy.typing as npt

from rung.kernels.cpu.compiled import OPTIONS
from rung.kernels.isa.generic import fetch_add

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
