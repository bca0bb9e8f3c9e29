"""How keys and values lie in a cache, and what attention computes whatever they are stored in.

A cache is a pool of blocks of positions. In a block the keys of each head follow each other, the values of all heads
lie behind the keys, and layers behind one another; the blocks of a sequence are named by its *block table*, int64
addresses. ``CacheWord`` says how a layer lies in a block. Queries and results are f32.

An answer must not depend on what is computed beside it. Scores are added in one order whatever the number of queries,
sums of weights and values begin at a position that 16 divides, and positions that a query does not see weigh exactly 0:
a query gives the same bytes alone, in a chunk of a prompt and beside other sequences.
"""

from __future__ import annotations

from enum import IntEnum

import numba
import numpy as np

from rung.kernels.cpu.compiled import OPTIONS
from rung.kernels.isa.generic import (
    add,
    cache_ahead,
    exponential,
    larger,
    largest,
    load,
    multiply,
    prefetch,
    read_float,
    read_int,
    spread,
    store,
    tangent,
    total,
    write_float,
    zero,
)

_LOWEST = np.float32(-3.0e38)
_ONE = np.float32(1.0)

#: Query rows that are computed together: a row of the cache is converted once for them.
QUAD = 4


class CacheWord(IntEnum):
    """How a layer lies in a cache, int64 words.

    ``BLOCK`` are the positions of a block, a multiple of 16, ``LAYER`` the bytes before the layer in a block,
    ``VALUES`` those from a key to its value, ``HEAD`` and ``ROW`` those between heads and between positions; ``SIZE``
    the values of a head, ``WINDOW`` the positions that a query sees, 0 for all; ``FLOATS`` the address of epsilon (of
    the norms of q and k), scale and softcap (0 for none), f32; ``ATTEND`` that of the kernel in ``attend_rows``. Of a
    cache in blocks of 32 values, ``QUANTIZE`` is the address of the kernel that quantizes queries, and ``TILE`` how
    many of them the level multiplies at once.
    """

    BLOCK, LAYER, VALUES, HEAD, ROW, SIZE, WINDOW, FLOATS, ATTEND, QUANTIZE, TILE = range(11)


BLOCK, LAYER, VALUES, HEAD, ROW, SIZE, WINDOW, FLOATS, ATTEND, QUANTIZE, TILE = (8 * word for word in CacheWord)


class RunWord(IntEnum):
    """A run: ``COUNT`` (up to ``QUAD``) query tokens of a sequence that follow each other in the batch from ``ROW`` on.

    The first stands at ``POSITION`` of the sequence with the block table at ``TABLE``.
    """

    ROW, COUNT, POSITION, TABLE = range(4)


RUN_WORDS = len(RunWord)


def padded(count: int) -> int:
    """Entries of a row of scores for that many positions: a multiple of 16."""
    return (count + 15) // 16 * 16


def score_floats(context: int, size: int) -> int:
    """Float32 of a thread's scores in a context of so many positions, with what heads of ``size`` values need beside
    them: sums, and of a cache in blocks of 32 values quantized queries (10 int32 or float32 for each 32 values) and
    weights times the scales of 64 positions."""
    return QUAD * padded(context) + 16 + padded(QUAD * 10 * -(-size // 32)) + QUAD * 64


@numba.njit(**OPTIONS)
def ask_for(address, count):
    """Ask for memory that is read next: where blocks lie apart, no processor finds that out by itself."""
    for line in range(0, count, 64):
        prefetch(address + line)


_POSITION, _TABLE = 8 * RunWord.POSITION, 8 * RunWord.TABLE


@numba.njit(**OPTIONS)
def blocks_ahead(cache):
    """Return how many blocks before they are read keys and values of a head are prefetched: 1 to 4.

    A core reads 4 kB of a head of 64 in 90 ns, less than memory takes to answer: with so many bytes, attention over
    eight sequences waited half of the time (Zen 5).
    """
    return min(4, max(1, cache_ahead() // read_int(cache + HEAD)))


@numba.njit(**OPTIONS)
def block_ahead(table, number, first, last, cache, head, next_run, next_head):
    """Return where what is read as block ``number`` begins: keys of the blocks [first, last) of a head, then values.

    After them come the keys of the head of the run that is computed next.
    """
    keys = read_int(cache + LAYER) + head * read_int(cache + HEAD)
    if number < last:
        return read_int(table + 8 * number) + keys
    number += first - last
    if number < last:
        return read_int(table + 8 * number) + keys + read_int(cache + VALUES)
    block, window, position = read_int(cache + BLOCK), read_int(cache + WINDOW), read_int(next_run + _POSITION)
    start = max(0, position + 1 - window) if window > 0 else 0
    number = min(start // block + number - last, position // block)
    return (
        read_int(read_int(next_run + _TABLE) + 8 * number)
        + read_int(cache + LAYER)
        + next_head * read_int(cache + HEAD)
    )


@numba.njit(**OPTIONS)
def _cap(scores, count, softcap):
    """softcap * tanh(score / softcap), over whole vectors."""
    outer, inner = spread(softcap), spread(_ONE / softcap)
    for j in range(0, count, 16):
        store(scores + 4 * j, multiply(tangent(multiply(load(scores + 4 * j), inner)), outer))


@numba.njit(**OPTIONS)
def _weigh(scores, first, last, whole):
    """exp(score - the highest) for the positions [first, last), in place, 0 for the rest of ``whole``; 1 / their
    sum."""
    for s in range(first):
        write_float(scores + 4 * s, _LOWEST)
    for s in range(last, whole):
        write_float(scores + 4 * s, _LOWEST)
    top = load(scores)
    for j in range(64, 4 * whole, 64):
        top = larger(top, load(scores + j))
    highest = spread(-largest(top))
    for j in range(0, 4 * whole, 64):
        store(scores + j, exponential(add(load(scores + j), highest)))
    for s in range(first):
        write_float(scores + 4 * s, np.float32(0))
    for s in range(last, whole):
        write_float(scores + 4 * s, np.float32(0))
    summed = zero()
    for j in range(0, 4 * whole, 64):
        summed = add(summed, load(scores + j))
    return _ONE / total(summed)


@numba.njit(**OPTIONS)
def weigh_rows(scores, row, rows, position, step, start, window, whole, softcap):
    """Turn the scores of rows, ``row`` bytes from each other and from position ``start`` on, into weights.

    What they are divided by in the end is written behind them, as its inverse.
    """
    for number in range(rows):
        last = position + step * number + 1
        first = max(start, last - window) if window > 0 else 0
        mine = scores + row * number
        if softcap > 0:
            _cap(mine, whole, softcap)
        write_float(scores + row * rows + 4 * number, _weigh(mine, first - start, last - start, whole))


@numba.njit(**OPTIONS)
def clear_rows(out, apart, rows, size):
    """Results of zeros."""
    for number in range(rows):
        for j in range(0, 4 * size, 64):
            store(out + apart * number + j, zero())


@numba.njit(**OPTIONS)
def divide_rows(out, apart, rows, size, inverses):
    """Results times the inverses of their sums of weights."""
    for number in range(rows):
        inverse, to = spread(read_float(inverses + 4 * number)), out + apart * number
        for j in range(0, 4 * size, 64):
            store(to + j, multiply(load(to + j), inverse))
