"""Attention of one query token over a cache, for the query heads that share a key head.

All addresses are bytes. Queries and results are f32 [heads, size] without gaps; keys and values are rows of
``size`` f32, f16 or bf16 values, ``stride`` bytes apart; ``size`` is a multiple of 16. Scores take ``heads`` rows of
``padded(count)`` f32. Sixteen lanes at a time, four heads at a time: a row of the cache is converted once for them.
"""

from __future__ import annotations

import numba
import numpy as np

from rung.kernels.cpu.compiled import OPTIONS, Kernel, kernel
from rung.kernels.isa.generic import (
    add,
    exponential,
    fetch_add,
    larger,
    largest,
    load,
    multiply,
    read_float,
    read_int,
    spread,
    store,
    tangent,
    total,
    write_float,
    zero,
)
from rung.kernels.isa.rows import dot, dots, mix, row_width
from rung.kernels.isa.scalar import call_address

_LOWEST = np.float32(-3.0e38)
_ONE = np.float32(1.0)


def padded(count: int) -> int:
    """Entries of a row of scores for that many positions: a multiple of 16."""
    return (count + 15) // 16 * 16


@numba.njit(**OPTIONS)
def _scores(query, apart, key, stride, out, row, heads, size, count, scale, kind):
    """q.k of ``heads`` queries with ``count`` keys, times ``scale``: 4 queries and 4 keys at once, 1 and 16, or 1."""
    head = 0
    while head + 4 <= heads:
        q, to = query + apart * head, out + row * head
        for s in range(0, count - 3, 4):
            dots(q, apart, key + stride * s, stride, size, scale, to + 4 * s, row, kind, 4)
        for s in range(count // 4 * 4, count):
            for other in range(4):
                dot(q + apart * other, key + stride * s, size, scale, to + row * other + 4 * s, kind)
        head += 4
    while head < heads:
        q, to = query + apart * head, out + row * head
        for s in range(0, count - 15, 16):
            dots(q, apart, key + stride * s, stride, size, scale, to + 4 * s, row, kind, 1)
        for s in range(count // 16 * 16, count):
            dot(q, key + stride * s, size, scale, to + 4 * s, kind)
        head += 1


@numba.njit(**OPTIONS)
def _cap(scores, count, softcap):
    """softcap * tanh(score / softcap), over whole vectors."""
    outer, inner = spread(softcap), spread(_ONE / softcap)
    for j in range(0, count, 16):
        store(scores + 4 * j, multiply(tangent(multiply(load(scores + 4 * j), inner)), outer))


@numba.njit(**OPTIONS)
def _weights(scores, first, last, whole):
    """exp(score) over its sum for the positions [first, last), in place, and nearly zero for the rest of ``whole``."""
    for s in range(first):
        write_float(scores + 4 * s, _LOWEST)
    for s in range(last, whole):
        write_float(scores + 4 * s, _LOWEST)
    top = load(scores)
    for j in range(64, 4 * whole, 64):
        top = larger(top, load(scores + j))
    highest = spread(-largest(top))
    summed = zero()
    for j in range(0, 4 * whole, 64):
        weight = exponential(add(load(scores + j), highest))
        store(scores + j, weight)
        summed = add(summed, weight)
    inverse = spread(_ONE / total(summed))
    for j in range(0, 4 * whole, 64):
        store(scores + j, multiply(load(scores + j), inverse))


@numba.njit(**OPTIONS)
def _mix(value, stride, weights, row, heads, count, out, apart, size, kind):
    """The sums of the values weighted with the scores, for four heads or one, 64 or 16 dimensions at a time."""
    width, wide = row_width(kind), size // 64 * 64
    head = 0
    while head + 4 <= heads:
        w, to = weights + row * head, out + apart * head
        for j in range(0, wide, 64):
            mix(value + width * j, stride, w, row, count, to + 4 * j, apart, kind, 4, 4)
        for j in range(wide, size, 16):
            mix(value + width * j, stride, w, row, count, to + 4 * j, apart, kind, 4, 1)
        head += 4
    while head < heads:
        w, to = weights + row * head, out + apart * head
        for j in range(0, wide, 64):
            mix(value + width * j, stride, w, row, count, to + 4 * j, apart, kind, 1, 4)
        for j in range(wide, size, 16):
            mix(value + width * j, stride, w, row, count, to + 4 * j, apart, kind, 1, 1)
        head += 1


@numba.njit(**OPTIONS)
def _attend(query, key, value, stride, count, heads, size, floats, scores, out, kind):
    whole, softcap, apart = (count + 15) // 16 * 16, read_float(floats + 8), 4 * size
    row = 4 * whole
    _scores(query, apart, key, stride, scores, row, heads, size, count, read_float(floats + 4), kind)
    for head in range(heads):
        if softcap > 0:
            _cap(scores + row * head, count, softcap)
        _weights(scores + row * head, 0, count, whole)
    _mix(value, stride, scores, row, heads, count, out, apart, size, kind)


@kernel(10)
def attend_f32(query, key, value, stride, count, heads, size, floats, scores, out):
    """Attention of a query over a cache of float32; see ``one_query``."""
    _attend(query, key, value, stride, count, heads, size, floats, scores, out, _ONE)


@kernel(10)
def attend_f16(query, key, value, stride, count, heads, size, floats, scores, out):
    """Attention of a query over a cache of float16; see ``one_query``."""
    _attend(query, key, value, stride, count, heads, size, floats, scores, out, 1)


@kernel(10)
def attend_bf16(query, key, value, stride, count, heads, size, floats, scores, out):
    """Attention of a query over a cache of bfloat16; see ``one_query``."""
    _attend(query, key, value, stride, count, heads, size, floats, scores, out, True)


#: By dtype of the cache: ``attend(query, key, value, stride, count, heads, size, floats, scores, out)``. ``key`` and
#: ``value`` are the first of ``count`` rows that are seen; ``floats`` are epsilon (of the norms, not used here), scale
#: and softcap, 0 for none.
one_query: dict[str, Kernel] = {"f32": attend_f32, "f16": attend_f16, "bf16": attend_bf16}


#: Query heads of a key head that a thread takes at a time: a row of the cache is converted once for them.
QUAD = 4


@kernel(3)
def attend_heads(words, thread, threads):
    """key heads, keys, values, bytes between their heads; then ``one_query``'s arguments for all heads, but keys and
    values, its address, and the bytes of a thread's scores: a function for ``parallel.run``.
    """
    kv_heads, keys, values, between = (
        read_int(words + 8),
        read_int(words + 16),
        read_int(words + 24),
        read_int(words + 32),
    )
    query, stride, count, heads = read_int(words + 40), read_int(words + 48), read_int(words + 56), read_int(words + 64)
    size, floats, scores, out = read_int(words + 72), read_int(words + 80), read_int(words + 88), read_int(words + 96)
    one, mine = read_int(words + 104), scores + thread * read_int(words + 112)
    quads = (heads + QUAD - 1) // QUAD
    while True:
        unit = fetch_add(words, 1)
        if unit >= kv_heads * quads:
            break
        head, first = unit // quads, unit % quads * QUAD
        at, past = 4 * size * (head * heads + first), between * head
        few = min(QUAD, heads - first)
        call_address(one, (query + at, keys + past, values + past, stride, count, few, size, floats, mine, out + at))


#: Queries that are computed together, and of which each has its own key positions.
BLOCK = 4


@numba.njit(**OPTIONS)
def _attend_block(query, apart, key, value, stride, start, queries, size, window, floats, scores, out, out_apart, kind):
    first = max(0, start + 1 - window) if window > 0 else 0
    count = start + queries - first
    whole, softcap = (count + 15) // 16 * 16, read_float(floats + 8)
    row, behind = 4 * whole, first * stride
    _scores(query, apart, key + behind, stride, scores, row, queries, size, count, read_float(floats + 4), kind)
    for number in range(queries):
        at, last = scores + row * number, start + number + 1 - first
        if softcap > 0:
            _cap(at, count, softcap)
        _weights(at, max(0, last - window) if window > 0 else 0, last, whole)
    _mix(value + behind, stride, scores, row, queries, count, out, out_apart, size, kind)


@kernel(13)
def attend_block_f32(q, apart, key, value, stride, start, queries, size, window, floats, scores, out, out_apart):
    """Attention of some queries over a cache of float32; see ``query_block``."""
    _attend_block(
        q, apart, key, value, stride, start, queries, size, window, floats, scores, out, out_apart, np.float32(0)
    )


@kernel(13)
def attend_block_f16(q, apart, key, value, stride, start, queries, size, window, floats, scores, out, out_apart):
    """Attention of some queries over a cache of float16; see ``query_block``."""
    _attend_block(q, apart, key, value, stride, start, queries, size, window, floats, scores, out, out_apart, 0)


@kernel(13)
def attend_block_bf16(q, apart, key, value, stride, start, queries, size, window, floats, scores, out, out_apart):
    """Attention of some queries over a cache of bfloat16; see ``query_block``."""
    _attend_block(q, apart, key, value, stride, start, queries, size, window, floats, scores, out, out_apart, True)


#: By dtype of the cache: up to BLOCK queries of one head at positions ``start`` and on, ``apart`` bytes apart,
#: over keys and values from position 0. ``window`` is 0 for none; scores take BLOCK rows of ``padded(start + BLOCK)``.
query_block: dict[str, Kernel] = {
    "f32": attend_block_f32,
    "f16": attend_block_f16,
    "bf16": attend_block_bf16,
}
