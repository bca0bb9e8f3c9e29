"""The functions of a program that computes one token: linears with what stands before and after them, and attention.

Each is a C function ``(arguments, thread, threads)`` for ``team.Program``; its arguments are int64 words, named by
the enumerations below; word 0 is the counter of chunks. Every thread keeps the hidden state for itself and adds and
norms it for itself: that costs a microsecond and saves a barrier. It lies in the thread's *area*: hidden, its norm,
then the activations as the kernels want them.
"""

from __future__ import annotations

from enum import IntEnum

import numba
import numpy as np

from rung.kernels.cpu.chunks import CHUNK_WORDS, take_chunk
from rung.kernels.cpu.compiled import OPTIONS, Kernel, kernel
from rung.kernels.cpu.decode.elementwise import add_to, cap, copy, gate, norm, rotate
from rung.kernels.cpu.nodes import runs_on_second_half
from rung.kernels.cpu.thread_pool import next_chunk
from rung.kernels.isa.generic import (
    call_attend,
    call_fill,
    call_groups,
    load,
    read_float,
    read_int,
)
from rung.kernels.isa.rows import row_width, store_row

#: What a linear does before it: nothing, hidden = source, or hidden += source; then x = norm(hidden).
PLAIN, START, ADD = range(3)
#: What a linear does to its result.
NOTHING, SILU, GELU, CAP = range(4)


class Words(IntEnum):
    """Word numbers that know their place in bytes."""

    @property
    def at(self) -> int:
        return 8 * self.value


class LinearWord(Words):
    """Arguments of ``linear``; addresses unless said otherwise. ``COLUMNS`` is the length of ``SOURCE``.

    ``TABLE`` has ``CHUNKS`` rows as ``chunks.cut`` makes them, with addresses of segments for the weights' numbers;
    ``NODES`` are the words of ``nodes.table``, or 0.
    """

    COUNTER, AREA, AREA_BYTES, COLUMNS, SOURCE, BEFORE, POST_NORM, NORM, EPSILON = range(9)
    FILLS, FILL_COUNT, TABLE, CHUNKS, NODES = range(9, 14)


#: Words of a fill: the kernel of ``activations``, the offset of its panel in the area, and its 9 arguments.
FILL_WORDS = 11


class SegmentWord(Words):
    """One weight of a linear: its panel (offset), result and bias; then its partner.

    The partner (the up projection beside a gate) is computed for the same rows, its groups counted from
    ``UP_GROUP``. ``LOW_RANK`` and ``UP_LOW_RANK`` are what adapters add to both, kernels of ``low_rank.up_rows`` or 0,
    and behind each the panel (offset) with the sums that they spread. Behind the words stand the 16 arguments of each
    of the four kernels, which include the result.
    """

    PANEL, RESULT, BIAS, AFTER, SOFTCAP = range(5)
    UP_PANEL, UP_RESULT, UP_BIAS, UP_GROUP, KERNEL, UP_KERNEL = range(5, 11)
    LOW_RANK, LOW_RANK_PANEL, UP_LOW_RANK, UP_LOW_RANK_PANEL = range(11, 15)


#: Words of a segment: those above and the arguments of its kernels.
SEGMENT_WORDS = len(SegmentWord) + 64


class AttentionWord(Words):
    """Arguments of ``attention``; sizes in values, strides in bytes. ``PARTS`` divide the heads of a key head."""

    COUNTER, POSITION, HEADS, KV_HEADS, SIZE, PARTS, QUERY, Q_NORM, K_NORM, COSINE, SINE = range(11)
    HALF, INTERLEAVED, KEYS, VALUES, HEAD_STRIDE, ROW_STRIDE, WINDOW, FLOATS, AREA, AREA_BYTES, OUT = range(11, 22)
    ATTEND = 22


# Plain numbers: compiled functions take no properties.
_AREA, _AREA_BYTES, _COLUMNS, _SOURCE = (w.at for w in list(LinearWord)[1:5])
_BEFORE, _POST_NORM, _NORM, _EPSILON = (w.at for w in list(LinearWord)[5:9])
_FILLS, _FILL_COUNT, _TABLE, _CHUNKS, _NODES = (w.at for w in list(LinearWord)[9:14])
_PANEL, _RESULT, _BIAS, _AFTER, _SOFTCAP = (w.at for w in list(SegmentWord)[:5])
_UP_PANEL, _UP_RESULT, _UP_BIAS, _UP_GROUP, _KERNEL, _UP_KERNEL = (w.at for w in list(SegmentWord)[5:11])
_LOW_RANK, _LOW_RANK_PANEL, _UP_LOW_RANK, _UP_LOW_RANK_PANEL = (w.at for w in list(SegmentWord)[11:])
_CALL, _UP_CALL, _LOW_RANK_CALL, _UP_LOW_RANK_CALL = (8 * len(SegmentWord) + 128 * number for number in range(4))
_FILL, _CHUNK_BYTES = 8 * FILL_WORDS, 8 * CHUNK_WORDS


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
def _chunk(segment, area, first, last):
    """The groups [first, last) of a segment, with what adapters add, bias and activation."""
    panel, y = area + read_int(segment + _PANEL), read_int(segment + _RESULT)
    call_groups(read_int(segment + _KERNEL), segment + _CALL, panel, first, last)
    low_rank = read_int(segment + _LOW_RANK)
    if low_rank != 0:
        panel = area + read_int(segment + _LOW_RANK_PANEL)
        call_groups(low_rank, segment + _LOW_RANK_CALL, panel, first, last)
    at, count = y + 64 * first, 16 * (last - first)
    bias = read_int(segment + _BIAS)
    if bias != 0:
        add_to(at, bias + 64 * first, count)
    after = read_int(segment + _AFTER)
    if after == 1 or after == 2:
        shift, up_bias = read_int(segment + _UP_GROUP), read_int(segment + _UP_BIAS)
        panel = area + read_int(segment + _UP_PANEL)
        call_groups(read_int(segment + _UP_KERNEL), segment + _UP_CALL, panel, first + shift, last + shift)
        low_rank = read_int(segment + _UP_LOW_RANK)
        if low_rank != 0:
            panel = area + read_int(segment + _UP_LOW_RANK_PANEL)
            call_groups(low_rank, segment + _UP_LOW_RANK_CALL, panel, first + shift, last + shift)
        up_at = read_int(segment + _UP_RESULT) + 64 * (first + shift)
        if up_bias != 0:
            add_to(up_at, up_bias + 64 * (first + shift), count)
        gate(at, up_at, count, after == 2)
    elif after == 3:
        cap(at, count, read_float(read_int(segment + _SOFTCAP)))


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


_POSITION, _HEADS, _KV_HEADS, _SIZE, _PARTS, _QUERY, _Q_NORM = (w.at for w in list(AttentionWord)[1:8])
_K_NORM, _COSINE, _SINE, _HALF, _INTERLEAVED, _KEYS, _VALUES = (w.at for w in list(AttentionWord)[8:15])
_HEAD_STRIDE, _ROW_STRIDE, _WINDOW, _FLOATS, _A_AREA, _A_AREA_BYTES, _OUT, _ATTEND = (
    w.at for w in list(AttentionWord)[15:]
)


@numba.njit(**OPTIONS)
def _turn(head, weight, args, epsilon):
    """The norm of one head, where the model has one, and its rotation; in place."""
    if weight != 0:
        norm(head, weight, head, read_int(args + _SIZE), epsilon)
    half, interleaved = read_int(args + _HALF), read_int(args + _INTERLEAVED) != 0
    rotate(head, read_int(args + _COSINE), read_int(args + _SINE), half, interleaved)


@numba.njit(**OPTIONS)
def _write_row(to, values, count, kind):
    for j in range(0, count, 16):
        store_row(to + row_width(kind) * j, load(values + 4 * j), kind)


@numba.njit(**OPTIONS)
def _unit(args, kv_head, part, scratch, kind):
    heads, kv_heads, size = read_int(args + _HEADS), read_int(args + _KV_HEADS), read_int(args + _SIZE)
    floats, position = read_int(args + _FLOATS), read_int(read_int(args + _POSITION))
    epsilon = read_float(floats)
    stride, base = read_int(args + _ROW_STRIDE), kv_head * read_int(args + _HEAD_STRIDE)
    keys, values = read_int(args + _KEYS) + base, read_int(args + _VALUES) + base
    query = read_int(args + _QUERY)
    key = query + 4 * size * (heads + kv_head)
    copy(scratch, key, size)  # several parts may do this at once: each in its own memory, the same into the cache
    _turn(scratch, read_int(args + _K_NORM), args, epsilon)
    _write_row(keys + stride * position, scratch, size, kind)
    _write_row(values + stride * position, key + 4 * size * kv_heads, size, kind)
    count = heads // kv_heads // read_int(args + _PARTS)
    first = kv_head * (heads // kv_heads) + part * count
    for head in range(first, first + count):
        _turn(query + 4 * size * head, read_int(args + _Q_NORM), args, epsilon)
    window, seen = read_int(args + _WINDOW), position + 1
    start = max(0, seen - window) if window > 0 else 0
    at, out = query + 4 * size * first, read_int(args + _OUT) + 4 * size * first
    rows, scores, behind = seen - start, scratch + 4 * size, start * stride
    keys, values = keys + behind, values + behind
    call_attend(read_int(args + _ATTEND), at, keys, values, stride, rows, count, size, floats, scores, out)


@numba.njit(**OPTIONS)
def _attention(args, thread, kind):
    scratch = read_int(args + _A_AREA) + thread * read_int(args + _A_AREA_BYTES)
    parts = read_int(args + _PARTS)
    units = read_int(args + _KV_HEADS) * parts
    index = next_chunk(args)
    while index < units:
        _unit(args, index // parts, index % parts, scratch, kind)
        index = next_chunk(args)


@kernel(3)
def attention_f32(args, thread, threads):
    """See ``AttentionWord``; a cache of float32."""
    _attention(args, thread, np.float32(0))


@kernel(3)
def attention_f16(args, thread, threads):
    """See ``AttentionWord``; a cache of float16."""
    _attention(args, thread, 0)


#: By dtype of the cache: norms and rotates one token's heads, writes its key and value, attends.
attention: dict[str, Kernel] = {"f32": attention_f32, "f16": attention_f16}
