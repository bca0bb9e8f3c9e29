"""The linears of a program that computes a few tokens: products with what stands before and after them.

Each function is a C function ``(arguments, thread, threads)`` for ``thread_pool.Program``; its arguments are int64
words, named by the enumerations below; word 0 is the counter of chunks. Of a single token every thread keeps the hidden
state for itself and adds and norms it for itself: that costs a microsecond and saves a barrier. It lies in the thread's
*area*: hidden, its norm, then the activations as the kernels want them. Of several tokens ``rows.prepare_rows`` does
that before, and all threads share one area of activations.
"""

from __future__ import annotations

from enum import IntEnum

import numba

from rung.kernels.cpu.chunks import CHUNK_WORDS, take_chunk
from rung.kernels.cpu.compiled import OPTIONS, kernel
from rung.kernels.cpu.decode.elementwise import add_to, cap, copy, gate, norm
from rung.kernels.cpu.decode.rows import FILL_WORDS
from rung.kernels.cpu.nodes import runs_on_second_half
from rung.kernels.isa.generic import call_fill, call_groups, read_float, read_int

#: What a linear does before it: nothing, hidden = source, or hidden += source; then x = norm(hidden).
PLAIN, START, ADD = range(3)
#: What a linear does to its result.
NOTHING, SILU, GELU, CAP = range(4)


class LinearWord(IntEnum):
    """Arguments of ``linear``; addresses unless said otherwise. ``COLUMNS`` is the length of ``SOURCE``.

    ``AREA_BYTES`` is 0 where threads share the area. ``TABLE`` has ``CHUNKS`` rows as ``chunks.cut`` makes them, with
    addresses of segments for the weights' numbers; ``NODES`` are the words of ``nodes.table``, or 0.
    """

    COUNTER, AREA, AREA_BYTES, COLUMNS, SOURCE, BEFORE, POST_NORM, NORM, EPSILON = range(9)
    FILLS, FILL_COUNT, TABLE, CHUNKS, NODES = range(9, 14)


class SegmentWord(IntEnum):
    """One weight of a linear: rows of activations, its result with the bytes between rows, bias, and what follows.

    ``CALLS`` are the calls of kernels that make the result, one for a panel of rows, then those for what adapters add.
    The partner (the up projection beside a gate) is computed for the same rows, its groups counted from ``UP_GROUP``;
    its result has the same bytes between rows.
    """

    ROWS, RESULT, APART, BIAS, AFTER, SOFTCAP, CALLS, COUNT = range(8)
    UP_RESULT, UP_BIAS, UP_GROUP, UP_CALLS, UP_COUNT = range(8, 13)


SEGMENT_WORDS = len(SegmentWord)
#: Words of a call: the kernel, the offset of its panel in the area, and its 16 arguments, which include the result.
CALL_WORDS = 18

_AREA, _AREA_BYTES, _COLUMNS, _SOURCE, _BEFORE, _POST_NORM, _NORM, _EPSILON = (8 * w for w in list(LinearWord)[1:9])
_FILLS, _FILL_COUNT, _TABLE, _CHUNKS, _NODES = (8 * w for w in list(LinearWord)[9:14])
_ROWS, _RESULT, _APART, _BIAS, _AFTER, _SOFTCAP, _CALLS, _COUNT = (8 * w for w in list(SegmentWord)[:8])
_UP_RESULT, _UP_BIAS, _UP_GROUP, _UP_CALLS, _UP_COUNT = (8 * w for w in list(SegmentWord)[8:])
_FILL, _CALL, _CHUNK_BYTES = 8 * FILL_WORDS, 8 * CALL_WORDS, 8 * CHUNK_WORDS


@numba.njit(**OPTIONS)
def _prepare(args, area):
    """Brings the hidden state up to date and fills the panels of the activations; each thread for itself."""
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


@numba.njit(**OPTIONS)
def _call(calls, count, area, first, last):
    for call in range(calls, calls + _CALL * count, _CALL):
        call_groups(read_int(call), call + 16, area + read_int(call + 8), first, last)


@numba.njit(**OPTIONS)
def _chunk(segment, area, first, last):
    """The groups [first, last) of a segment, with what adapters add, bias and activation."""
    rows, apart = read_int(segment + _ROWS), read_int(segment + _APART)
    _call(read_int(segment + _CALLS), read_int(segment + _COUNT), area, first, last)
    at, count = read_int(segment + _RESULT) + 64 * first, 16 * (last - first)
    bias = read_int(segment + _BIAS)
    if bias != 0:
        for row in range(rows):
            add_to(at + apart * row, bias + 64 * first, count)
    after = read_int(segment + _AFTER)
    if after == 1 or after == 2:
        shift, up_bias = read_int(segment + _UP_GROUP), read_int(segment + _UP_BIAS)
        _call(read_int(segment + _UP_CALLS), read_int(segment + _UP_COUNT), area, first + shift, last + shift)
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
    _prepare(args, area)
    chunks, from_end = read_int(args + _CHUNKS), runs_on_second_half(read_int(args + _NODES))
    chunk = take_chunk(args, chunks, from_end)
    while chunk < chunks:
        entry = read_int(args + _TABLE) + _CHUNK_BYTES * chunk
        _chunk(read_int(entry), area, read_int(entry + 8), read_int(entry + 16))
        chunk = take_chunk(args, chunks, from_end)
