"""Attention of a few query rows over a cache of floats: rows of f32, f16 or bf16, whose length 16 divides."""

from __future__ import annotations

import numba
import numpy as np

from rung.kernels.cpu.compiled import OPTIONS, kernel
from rung.kernels.cpu.decode.cache_layout import (
    BLOCK,
    FLOATS,
    HEAD,
    LAYER,
    ROW,
    SIZE,
    VALUES,
    WINDOW,
    ask_for,
    clear_rows,
    divide_rows,
    weigh_rows,
)
from rung.kernels.isa.generic import read_float, read_int
from rung.kernels.isa.rows import dot, dots, mix, row_width


@numba.njit(**OPTIONS)
def _scores(query, apart, key, stride, out, row, rows, size, count, scale, ahead, kind):
    """q.k of ``rows`` queries with ``count`` keys, times ``scale``: 4 queries and 4 keys at once, 1 and 16, or 1.

    Memory ``ahead`` bytes behind the keys is prefetched.
    """
    if rows == 4:
        for s in range(0, count - 3, 4):
            ask_for(key + stride * s + ahead, 4 * size * row_width(kind))
            dots(query, apart, key + stride * s, stride, size, scale, out + 4 * s, row, kind, 4)
        for s in range(count // 4 * 4, count):
            for other in range(4):
                dot(query + apart * other, key + stride * s, size, scale, out + row * other + 4 * s, kind)
        return
    for number in range(rows):
        q, to = query + apart * number, out + row * number
        for s in range(0, count - 15, 16):
            if number == 0:
                ask_for(key + stride * s + ahead, 16 * size * row_width(kind))
            dots(q, apart, key + stride * s, stride, size, scale, to + 4 * s, row, kind, 1)
        for s in range(count // 16 * 16, count):
            dot(q, key + stride * s, size, scale, to + 4 * s, kind)


@numba.njit(**OPTIONS)
def _mix(value, stride, weights, row, rows, count, out, apart, size, ahead, kind):
    """Add the values times the weights to the results, for four rows or one, 64 or 16 dimensions at a time.

    Memory ``ahead`` bytes behind the values is prefetched.
    """
    width, wide = row_width(kind), size // 64 * 64
    if rows == 4:
        for j in range(0, wide, 64):
            mix(value + width * j, stride, weights, row, count, out + 4 * j, apart, ahead, kind, 4, 4)
        for j in range(wide, size, 16):
            mix(value + width * j, stride, weights, row, count, out + 4 * j, apart, ahead, kind, 4, 1)
        return
    for number in range(rows):
        w, to = weights + row * number, out + apart * number
        for j in range(0, wide, 64):
            mix(value + width * j, stride, w, row, count, to + 4 * j, apart, ahead, kind, 1, 4)
        for j in range(wide, size, 16):
            mix(value + width * j, stride, w, row, count, to + 4 * j, apart, ahead, kind, 1, 1)


@numba.njit(**OPTIONS)
def _attend(query, apart, out, out_apart, rows, position, step, table, head, cache, scores, kind):
    block, stride, size = read_int(cache + BLOCK), read_int(cache + ROW), read_int(cache + SIZE)
    floats, window, values = read_int(cache + FLOATS), read_int(cache + WINDOW), read_int(cache + VALUES)
    at = read_int(cache + LAYER) + head * read_int(cache + HEAD)
    scale, softcap = read_float(floats + 4), read_float(floats + 8)
    start = max(0, position + 1 - window) // 16 * 16 if window > 0 else 0
    end = position + step * (rows - 1) + 1
    whole = (end - start + 15) // 16 * 16
    row = 4 * whole
    first_value = read_int(table + 8 * (start // block)) + at + values + start % block * stride
    s = start
    while s < end:
        count = min(end - s, block - s % block)
        key = read_int(table + 8 * (s // block)) + at + s % block * stride
        after = read_int(table + 8 * (s // block + 1)) + at if s + count < end else first_value
        _scores(query, apart, key, stride, scores + 4 * (s - start), row, rows, size, count, scale, after - key, kind)
        s += count
    weigh_rows(scores, row, rows, position, step, start, window, whole, softcap)
    clear_rows(out, out_apart, rows, size)
    at += values
    s = start
    while s < end:
        count = min(end - s, block - s % block)
        value = read_int(table + 8 * (s // block)) + at + s % block * stride
        after = read_int(table + 8 * (s // block + 1)) + at if s + count < end else value
        _mix(value, stride, scores + 4 * (s - start), row, rows, count, out, out_apart, size, after - value, kind)
        s += count
    divide_rows(out, out_apart, rows, size, scores + rows * row)


@kernel(11)
def attend_f32(query, apart, out, out_apart, rows, position, step, table, head, cache, scores):
    """Attention over a cache of float32; see ``attend_rows``."""
    _attend(query, apart, out, out_apart, rows, position, step, table, head, cache, scores, np.float32(0))


@kernel(11)
def attend_f16(query, apart, out, out_apart, rows, position, step, table, head, cache, scores):
    """Attention over a cache of float16; see ``attend_rows``."""
    _attend(query, apart, out, out_apart, rows, position, step, table, head, cache, scores, 0)


@kernel(11)
def attend_bf16(query, apart, out, out_apart, rows, position, step, table, head, cache, scores):
    """Attention over a cache of bfloat16; see ``attend_rows``."""
    _attend(query, apart, out, out_apart, rows, position, step, table, head, cache, scores, True)
