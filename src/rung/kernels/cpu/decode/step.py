"""The linears of a program that computes a few tokens: products with what stands before and after them.

Each function is a C function ``(arguments, thread, threads)`` for ``thread_pool.Program``; its arguments are int64
words, named by the enumerations below; word 0 is the counter of chunks. Of a single token every thread keeps the hidden
state for itself and adds and norms it for itself: that costs a microsecond and saves a barrier. It lies in the thread's
*area*: hidden, its norm, then the activations as the kernels want them. Of several tokens ``rows.prepare_rows`` does
that before, and all threads share one area of activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol

import numba
import numpy as np
import numpy.typing as npt

from rung.kernels.cpu.compiled import OPTIONS, kernel
from rung.kernels.cpu.decode.elementwise import add_to, cap, copy, gate, norm
from rung.kernels.cpu.decode.rows import FILL_WORDS
from rung.kernels.cpu.nodes import runs_on_second_half
from rung.kernels.cpu.thread_pool import CHUNK_WORDS, TURNS, take_chunk
from rung.kernels.isa.generic import (
    call_eight,
    call_fill,
    call_groups,
    fetch_add,
    give_way,
    load_acquire,
    read_float,
    read_int,
    rest,
)

#: What a linear does before it: nothing, hidden = source, or hidden += source; then x = norm(hidden).
PLAIN, START, ADD = range(3)
#: What a linear does to its result.
NOTHING, SILU, GELU, CAP = range(4)


class LinearWord(IntEnum):
    """Arguments of ``linear``; addresses unless said otherwise. ``COLUMNS`` is the length of ``SOURCE``.

    ``AREA_BYTES`` is 0 where threads share the area. ``TABLE`` has ``CHUNKS`` rows as ``chunks.cut`` makes them, with
    addresses of segments for the weights' numbers; ``NODES`` are the words of ``nodes.table``, or 0.

    ``ADAPTERS`` are the ``AdapterWord`` of the batch. ``CHANGES`` has for each of ``WEIGHTS`` weights and each row the
    ``low_rank.ChangeWord`` of what an adapter changes, or 0; ``SUMS`` are two counters, 0 when a program begins: parts
    of their sums that a thread has taken, and those that are there. ``SOURCE_APART`` are the bytes between the rows of
    ``SOURCE``.
    """

    COUNTER, AREA, AREA_BYTES, COLUMNS, SOURCE, BEFORE, POST_NORM, NORM, EPSILON = range(9)
    FILLS, FILL_COUNT, TABLE, CHUNKS, NODES = range(9, 14)
    ADAPTERS, CHANGES, WEIGHTS, SUMS, SOURCE_APART = range(14, 19)


class AdapterWord(IntEnum):
    """The adapters of a batch: how many parts of ``RANKS`` sums a weight has at most, 0 where no row has an adapter;
    the memory of the sums, with the bytes between rows and between weights; bytes between the weights of a table of
    changes."""

    PARTS, SUMS, ROW_BYTES, WEIGHT_BYTES, TABLE_BYTES = range(5)


class SegmentWord(IntEnum):
    """One weight of a linear: rows of activations, its result with the bytes between rows, bias, and what follows.

    ``CALLS`` are the calls of kernels that make the result, one for a panel of rows; ``NUMBER`` is that of the weight
    among those of the linear. The partner (the up projection beside a gate) is computed for the same rows, its groups
    counted from ``UP_GROUP``; its result has the same bytes between rows.
    """

    ROWS, RESULT, APART, BIAS, AFTER, SOFTCAP, CALLS, COUNT, NUMBER = range(9)
    UP_RESULT, UP_BIAS, UP_GROUP, UP_CALLS, UP_COUNT, UP_NUMBER = range(9, 15)


SEGMENT_WORDS = len(SegmentWord)
#: Words of a call: the kernel, the offset of its panel in the area, and its 16 arguments, which include the result.
CALL_WORDS = 18
#: Sums of an adapter that a thread makes at a time.
RANKS = 16

_AREA, _AREA_BYTES, _COLUMNS, _SOURCE, _BEFORE, _POST_NORM, _NORM, _EPSILON = (8 * w for w in list(LinearWord)[1:9])
_FILLS, _FILL_COUNT, _TABLE, _CHUNKS, _NODES = (8 * w for w in list(LinearWord)[9:14])
_ADAPTERS, _CHANGES, _WEIGHTS, _COUNTERS, _SOURCE_APART = (8 * w for w in list(LinearWord)[14:])
_PARTS, _SUMS, _ROW_BYTES, _WEIGHT_BYTES, _TABLE_BYTES = (8 * w for w in AdapterWord)
_ROWS, _RESULT, _APART, _BIAS, _AFTER, _SOFTCAP, _CALLS, _COUNT, _NUMBER = (8 * w for w in list(SegmentWord)[:9])
_UP_RESULT, _UP_BIAS, _UP_GROUP, _UP_CALLS, _UP_COUNT, _UP_NUMBER = (8 * w for w in list(SegmentWord)[9:])
_FILL, _CALL, _CHUNK_BYTES = 8 * FILL_WORDS, 8 * CALL_WORDS, 8 * CHUNK_WORDS


@numba.njit(**OPTIONS)
def _prepare(args, area):
    """Brings the hidden state up to date and fills the panels of the activations; each thread for itself.

    Returns the address of the activations.
    """
    columns, x, before = read_int(args + _COLUMNS), read_int(args + _SOURCE), read_int(args + _BEFORE)
    if before != 0:
        scratch, epsilon = area + 4 * columns, read_float(read_int(args + _EPSILON))
        if before == 1:
            copy(area, x, columns)
        else:
            post_norm = read_int(args + _POST_NORM)
            if post_norm != 0:
                norm(x, post_norm, scratch, columns, epsilon)
                add_to(area, scratch, columns)
            else:
                add_to(area, x, columns)
        norm(area, read_int(args + _NORM), scratch, columns, epsilon)
        x = scratch
    fills = read_int(args + _FILLS)
    for index in range(read_int(args + _FILL_COUNT)):
        fill = fills + _FILL * index
        call_fill(read_int(fill), fill + 16, x, area + read_int(fill + 8))
    return x


@numba.njit(**OPTIONS)
def _same(changes, row, rows):
    """The first row after ``row`` that another change is added to."""
    last = row + 1
    while last < rows and read_int(changes + 8 * last) == read_int(changes + 8 * row):
        last += 1
    return last


@numba.njit(**OPTIONS)
def _sum_changes(args, x):
    """Compute the sums of adapters, with the other threads: they are there when the first results are."""
    adapters, rows = read_int(args + _ADAPTERS), read_int(read_int(read_int(args + _TABLE)) + _ROWS)
    parts, apart = read_int(adapters + _PARTS), read_int(args + _SOURCE_APART)
    row_bytes = read_int(adapters + _ROW_BYTES)
    taken = read_int(args + _COUNTERS)
    number = fetch_add(taken, 1)
    while number < parts * read_int(args + _WEIGHTS):
        weight, first = number // parts, number % parts * RANKS
        changes = read_int(args + _CHANGES) + weight * read_int(adapters + _TABLE_BYTES)
        sums = read_int(adapters + _SUMS) + weight * read_int(adapters + _WEIGHT_BYTES)
        row = 0
        while row < rows:
            last, change = _same(changes, row, rows), read_int(changes + 8 * row)
            if change != 0:
                at, low = x + apart * row, sums + row_bytes * row
                call_eight(read_int(change), change, at, apart, last - row, low, row_bytes, first, first + RANKS)
            row = last
        fetch_add(taken + 8, 1)
        number = fetch_add(taken, 1)


@numba.njit(**OPTIONS)
def _add_changes(args, weight, result, apart, rows, first, last):
    """Adds what adapters change to the groups [first, last) of a weight's result, once all sums are there."""
    adapters, turns = read_int(args + _ADAPTERS), 0
    while load_acquire(read_int(args + _COUNTERS) + 8) < read_int(adapters + _PARTS) * read_int(args + _WEIGHTS):
        rest()
        turns += 1
        if turns > TURNS:
            give_way()
    changes = read_int(args + _CHANGES) + weight * read_int(adapters + _TABLE_BYTES)
    sums, row_bytes = (
        read_int(adapters + _SUMS) + weight * read_int(adapters + _WEIGHT_BYTES),
        read_int(adapters + _ROW_BYTES),
    )
    row = 0
    while row < rows:
        until, change = _same(changes, row, rows), read_int(changes + 8 * row)
        if change != 0:
            low, y = sums + row_bytes * row, result + apart * row
            call_eight(read_int(change + 8), change, low, row_bytes, until - row, y, apart, first, last)
        row = until


@numba.njit(**OPTIONS)
def _call(calls, count, area, first, last):
    for call in range(calls, calls + _CALL * count, _CALL):
        call_groups(read_int(call), call + 16, area + read_int(call + 8), first, last)


@numba.njit(**OPTIONS)
def _chunk(args, segment, area, first, last):
    """The groups [first, last) of a segment, with what adapters add, bias and activation."""
    rows, apart = read_int(segment + _ROWS), read_int(segment + _APART)
    adapted = read_int(read_int(args + _ADAPTERS) + _PARTS) != 0
    _call(read_int(segment + _CALLS), read_int(segment + _COUNT), area, first, last)
    if adapted:
        _add_changes(args, read_int(segment + _NUMBER), read_int(segment + _RESULT), apart, rows, first, last)
    at, count = read_int(segment + _RESULT) + 64 * first, 16 * (last - first)
    bias = read_int(segment + _BIAS)
    if bias != 0:
        for row in range(rows):
            add_to(at + apart * row, bias + 64 * first, count)
    after = read_int(segment + _AFTER)
    if after == 1 or after == 2:
        shift, up_bias = read_int(segment + _UP_GROUP), read_int(segment + _UP_BIAS)
        _call(read_int(segment + _UP_CALLS), read_int(segment + _UP_COUNT), area, first + shift, last + shift)
        if adapted:
            number, result = read_int(segment + _UP_NUMBER), read_int(segment + _UP_RESULT)
            _add_changes(args, number, result, apart, rows, first + shift, last + shift)
        up_at = read_int(segment + _UP_RESULT) + 64 * (first + shift)
        for row in range(0, apart * rows, apart):
            if up_bias != 0:
                add_to(up_at + row, up_bias + 64 * (first + shift), count)
            gate(at + row, up_at + row, count, after == 2)
    elif after == 3:
        softcap = read_float(read_int(segment + _SOFTCAP))
        for row in range(rows):
            cap(at + apart * row, count, softcap)


@kernel(3)
def linear(args, thread, threads):
    """See ``LinearWord``: some weights times the same activations, a chunk of groups of rows at a time."""
    area = read_int(args + _AREA) + thread * read_int(args + _AREA_BYTES)
    x = _prepare(args, area)
    if read_int(read_int(args + _ADAPTERS) + _PARTS) != 0:
        _sum_changes(args, x)
    chunks, from_end = read_int(args + _CHUNKS), runs_on_second_half(read_int(args + _NODES))
    chunk = take_chunk(args, chunks, from_end)
    while chunk < chunks:
        entry = read_int(args + _TABLE) + _CHUNK_BYTES * chunk
        _chunk(args, read_int(entry), area, read_int(entry + 8), read_int(entry + 16))
        chunk = take_chunk(args, chunks, from_end)


#: Weights that a program multiplies with the same activations, at most: q, k and v.
_TOGETHER = 3


class Changes(Protocol):
    """The changes of an adapter: ``number`` is its own, ``addresses`` int64 [weights] of the ``low_rank.ChangeWord`` of
    each weight, 0 where it changes nothing, and ``sums`` the most sums that one has."""

    number: int
    addresses: npt.NDArray[np.int64]
    sums: int


class AdapterTable:
    """The adapters of the rows of a program, for up to ``rows`` rows and so many ``weights``; see ``AdapterWord``.

    ``first`` is the number of the first weight among those that an adapter knows.
    """

    def __init__(self, weights: int, rows: int, first: int = 0) -> None:
        self._here = slice(first, first + weights)
        self.words = np.zeros(len(AdapterWord), np.int64)
        self._changes = np.zeros((weights, rows), np.int64)
        self._counters = np.zeros((weights, 2), np.int64)
        self._sums = np.zeros(0, np.float32)
        self._numbers: list[int] = []
        self.words[AdapterWord.TABLE_BYTES] = self._changes.strides[0]

    def changes(self, weight: int) -> int:
        """Return the address of the changes of a weight and those after it, by row."""
        return int(self._changes[weight:].ctypes.data)

    def counters(self, weight: int) -> int:
        """Return the address of the counters of a linear whose first weight this is."""
        return int(self._counters[weight:].ctypes.data)

    def fill(self, adapters: Sequence[Changes | None]) -> None:
        """Write the adapters of the rows of the next program; call it before each run."""
        numbers = [0 if each is None else each.number for each in adapters]
        if numbers != self._numbers:
            self._write(adapters)
            self._numbers = numbers
        if self.words[AdapterWord.PARTS]:
            self._counters[:] = 0

    def _write(self, adapters: Sequence[Changes | None]) -> None:
        for row, each in enumerate(adapters):
            self._changes[:, row] = 0 if each is None else each.addresses[self._here]
        parts = -(-max(0 if each is None else each.sums for each in adapters) // RANKS)
        rows, width = self._changes.shape[1], parts * RANKS
        if self._sums.size < _TOGETHER * rows * width:
            self._sums = np.zeros(_TOGETHER * rows * width, np.float32)
        self.words[AdapterWord.PARTS], self.words[AdapterWord.SUMS] = parts, self._sums.ctypes.data
        self.words[AdapterWord.ROW_BYTES], self.words[AdapterWord.WEIGHT_BYTES] = 4 * width, 4 * rows * width
