"""Attention of one query token over a cache, for the query heads that share a key head.

All addresses are bytes. Queries and results are f32 [heads, size] without gaps; keys and values are rows of
``size`` f32 or f16 values, ``stride`` bytes apart; ``size`` is a multiple of 16. Scores take ``heads`` rows of
``padded(count)`` f32. Sixteen lanes at a time, four heads at a time: a row of the cache is converted once for them.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from rung.kernels.cpu.compiled import Kernel, kernel
from rung.kernels.simd.generic import (
    add,
    exponential,
    larger,
    largest,
    load,
    load_row,
    load_spread,
    multiply,
    multiply_add,
    read_float,
    row_width,
    spread,
    store,
    tangent,
    total,
    write_float,
    zero,
)

OPTIONS: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "boundscheck": False}
_LOWEST = np.float32(-3.0e38)
_ONE = np.float32(1.0)


def padded(count: int) -> int:
    """Entries of a row of scores for that many positions: a multiple of 16."""
    return (count + 15) // 16 * 16


@numba.njit(**OPTIONS)
def _scores(query, key, stride, out, row, heads, size, count, scale, kind):  # type: ignore[no-untyped-def]
    """q.k of ``heads`` queries with ``count`` keys, times ``scale``."""
    width = row_width(kind)
    head = 0
    while head + 4 <= heads:
        q = query + 4 * size * head
        for s in range(count):
            k = key + stride * s
            a, b, c, d = zero(), zero(), zero(), zero()
            for j in range(0, size, 16):
                x = load_row(k + width * j, kind)
                at = q + 4 * j
                a = multiply_add(x, load(at), a)
                b = multiply_add(x, load(at + 4 * size), b)
                c = multiply_add(x, load(at + 8 * size), c)
                d = multiply_add(x, load(at + 12 * size), d)
            to = out + row * head + 4 * s
            write_float(to, total(a) * scale)
            write_float(to + row, total(b) * scale)
            write_float(to + 2 * row, total(c) * scale)
            write_float(to + 3 * row, total(d) * scale)
        head += 4
    while head < heads:
        q = query + 4 * size * head
        for s in range(count):
            k = key + stride * s
            a = zero()
            for j in range(0, size, 16):
                a = multiply_add(load_row(k + width * j, kind), load(q + 4 * j), a)
            write_float(out + row * head + 4 * s, total(a) * scale)
        head += 1


@numba.njit(**OPTIONS)
def _cap(scores, count, softcap):  # type: ignore[no-untyped-def]
    """softcap * tanh(score / softcap), over whole vectors."""
    outer, inner = spread(softcap), spread(_ONE / softcap)
    for j in range(0, count, 16):
        store(scores + 4 * j, multiply(tangent(multiply(load(scores + 4 * j), inner)), outer))


@numba.njit(**OPTIONS)
def _weights(scores, count):  # type: ignore[no-untyped-def]
    """exp(score - the largest score) in place, zeros after ``count``; returns one over their sum."""
    whole = (count + 15) // 16 * 16
    for s in range(count, whole):
        write_float(scores + 4 * s, _LOWEST)
    top = load(scores)
    for j in range(16, whole, 16):
        top = larger(top, load(scores + 4 * j))
    highest = spread(-largest(top))
    summed = zero()
    for j in range(0, whole, 16):
        weight = exponential(add(load(scores + 4 * j), highest))
        store(scores + 4 * j, weight)
        summed = add(summed, weight)
    return _ONE / total(summed)


@numba.njit(**OPTIONS)
def _mix_four(value, stride, weights, row, count, out, size, kind):  # type: ignore[no-untyped-def]
    """The sums of the values weighted with the scores, for four heads, 32 dimensions at a time."""
    width = row_width(kind)
    for j in range(0, size, 32):
        a0, a1, b0, b1 = zero(), zero(), zero(), zero()
        c0, c1, d0, d1 = zero(), zero(), zero(), zero()
        second = min(j + 16, size - 16)
        for s in range(count):
            v = value + stride * s
            x0, x1 = load_row(v + width * j, kind), load_row(v + width * second, kind)
            at = weights + 4 * s
            w = load_spread(at)
            a0, a1 = multiply_add(x0, w, a0), multiply_add(x1, w, a1)
            w = load_spread(at + row)
            b0, b1 = multiply_add(x0, w, b0), multiply_add(x1, w, b1)
            w = load_spread(at + 2 * row)
            c0, c1 = multiply_add(x0, w, c0), multiply_add(x1, w, c1)
            w = load_spread(at + 3 * row)
            d0, d1 = multiply_add(x0, w, d0), multiply_add(x1, w, d1)
        store(out + 4 * j, a0)
        store(out + 4 * second, a1)
        store(out + 4 * (size + j), b0)
        store(out + 4 * (size + second), b1)
        store(out + 4 * (2 * size + j), c0)
        store(out + 4 * (2 * size + second), c1)
        store(out + 4 * (3 * size + j), d0)
        store(out + 4 * (3 * size + second), d1)


@numba.njit(**OPTIONS)
def _mix_one(value, stride, weights, count, out, size, kind):  # type: ignore[no-untyped-def]
    """The same for one head, 64 or 16 dimensions at a time."""
    width = row_width(kind)
    j = 0
    while j + 64 <= size:
        a, b, c, d = zero(), zero(), zero(), zero()
        for s in range(count):
            v, w = value + stride * s + width * j, load_spread(weights + 4 * s)
            a = multiply_add(load_row(v, kind), w, a)
            b = multiply_add(load_row(v + 16 * width, kind), w, b)
            c = multiply_add(load_row(v + 32 * width, kind), w, c)
            d = multiply_add(load_row(v + 48 * width, kind), w, d)
        store(out + 4 * j, a)
        store(out + 4 * j + 64, b)
        store(out + 4 * j + 128, c)
        store(out + 4 * j + 192, d)
        j += 64
    while j < size:
        a = zero()
        for s in range(count):
            a = multiply_add(load_row(value + stride * s + width * j, kind), load_spread(weights + 4 * s), a)
        store(out + 4 * j, a)
        j += 16


@numba.njit(**OPTIONS)
def _mix(value, stride, weights, row, heads, count, out, size, kind):  # type: ignore[no-untyped-def]
    head = 0
    while head + 4 <= heads:
        _mix_four(value, stride, weights + row * head, row, count, out + 4 * size * head, size, kind)
        head += 4
    while head < heads:
        _mix_one(value, stride, weights + row * head, count, out + 4 * size * head, size, kind)
        head += 1


@numba.njit(**OPTIONS)
def _attend(query, key, value, stride, count, heads, size, floats, scores, out, kind):  # type: ignore[no-untyped-def]
    row = 4 * ((count + 15) // 16 * 16)
    softcap = read_float(floats + 8)
    _scores(query, key, stride, scores, row, heads, size, count, read_float(floats + 4), kind)
    for head in range(heads):
        if softcap > 0:
            _cap(scores + row * head, count, softcap)
        inverse = spread(_weights(scores + row * head, count))
        for j in range(0, row, 64):
            at = scores + row * head + j
            store(at, multiply(load(at), inverse))
    _mix(value, stride, scores, row, heads, count, out, size, kind)


@kernel(10)
def attend_f32(query, key, value, stride, count, heads, size, floats, scores, out):  # type: ignore[no-untyped-def]
    """Attention of a query over a cache of float32; see ``one_query``."""
    _attend(query, key, value, stride, count, heads, size, floats, scores, out, _ONE)


@kernel(10)
def attend_f16(query, key, value, stride, count, heads, size, floats, scores, out):  # type: ignore[no-untyped-def]
    """Attention of a query over a cache of float16; see ``one_query``."""
    _attend(query, key, value, stride, count, heads, size, floats, scores, out, 1)


#: By dtype of the cache: ``attend(query, key, value, stride, count, heads, size, floats, scores, out)``. ``key`` and
#: ``value`` are the first of ``count`` rows that are seen; ``floats`` are epsilon (of the norms, not used here), scale
#: and softcap, 0 for none.
one_query: dict[str, Kernel] = {"f32": attend_f32, "f16": attend_f16}
