"""Attention of one query token over a cache, for the query heads that share a key head.

All addresses are bytes. Queries and results are f32 [heads, size] without gaps; keys and values are rows of
``size`` f32 or f16 values, ``stride`` bytes apart; ``size`` is a multiple of 16. Scores take ``heads`` rows of
``padded(count)`` f32. Sixteen lanes at a time, four heads at a time: a row of the cache is converted once for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from rung.kernels.simd.generic import (
    add,
    exponential,
    f32x16,
    largest,
    larger,
    load,
    load_half,
    load_spread,
    multiply,
    multiply_add,
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

__all__ = ["OPTIONS", "f32x16", "one_query", "padded"]


def padded(count: int) -> int:
    """Entries of a row of scores for that many positions: a multiple of 16."""
    return (count + 15) // 16 * 16


def _scores(load_row: Any, width: int) -> Callable[..., None]:
    """q.k of ``heads`` queries with ``count`` keys, times ``scale``."""

    @numba.njit(**OPTIONS)
    def scores(query, key, stride, out, row, heads, size, count, scale):  # type: ignore[no-untyped-def]
        head = 0
        while head + 4 <= heads:
            q = query + 4 * size * head
            for s in range(count):
                k = key + stride * s
                a, b, c, d = zero(), zero(), zero(), zero()
                for j in range(0, size, 16):
                    x = load_row(k + width * j)
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
                    a = multiply_add(load_row(k + width * j), load(q + 4 * j), a)
                write_float(out + row * head + 4 * s, total(a) * scale)
            head += 1

    return scores


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


def _mix(load_row: Any, width: int) -> Callable[..., None]:
    """The sums of the values weighted with the scores, for four heads or one, 64 or 16 dimensions at a time."""

    @numba.njit(**OPTIONS)
    def four_heads(value, stride, weights, row, count, out, size):  # type: ignore[no-untyped-def]
        for j in range(0, size, 32):
            a0, a1, b0, b1 = zero(), zero(), zero(), zero()
            c0, c1, d0, d1 = zero(), zero(), zero(), zero()
            second = min(j + 16, size - 16)
            for s in range(count):
                v = value + stride * s
                x0, x1 = load_row(v + width * j), load_row(v + width * second)
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
    def one_head(value, stride, weights, count, out, size):  # type: ignore[no-untyped-def]
        j = 0
        while j + 64 <= size:
            a, b, c, d = zero(), zero(), zero(), zero()
            for s in range(count):
                v, w = value + stride * s + width * j, load_spread(weights + 4 * s)
                a = multiply_add(load_row(v), w, a)
                b = multiply_add(load_row(v + 16 * width), w, b)
                c = multiply_add(load_row(v + 32 * width), w, c)
                d = multiply_add(load_row(v + 48 * width), w, d)
            store(out + 4 * j, a)
            store(out + 4 * j + 64, b)
            store(out + 4 * j + 128, c)
            store(out + 4 * j + 192, d)
            j += 64
        while j < size:
            a = zero()
            for s in range(count):
                a = multiply_add(load_row(value + stride * s + width * j), load_spread(weights + 4 * s), a)
            store(out + 4 * j, a)
            j += 16

    @numba.njit(**OPTIONS)
    def mix(value, stride, weights, row, heads, count, out, size):  # type: ignore[no-untyped-def]
        head = 0
        while head + 4 <= heads:
            four_heads(value, stride, weights + row * head, row, count, out + 4 * size * head, size)
            head += 4
        while head < heads:
            one_head(value, stride, weights + row * head, count, out + 4 * size * head, size)
            head += 1

    return mix


def _one_query(load_row: Any, width: int) -> Callable[..., None]:
    find_scores, mix = _scores(load_row, width), _mix(load_row, width)

    @numba.njit(**OPTIONS)
    def attend(query, key, value, stride, count, heads, size, scale, softcap, scores, out):  # type: ignore[no-untyped-def]
        row = 4 * ((count + 15) // 16 * 16)
        find_scores(query, key, stride, scores, row, heads, size, count, scale)
        for head in range(heads):
            if softcap > 0:
                _cap(scores + row * head, count, softcap)
            inverse = spread(_weights(scores + row * head, count))
            for j in range(0, row, 64):
                at = scores + row * head + j
                store(at, multiply(load(at), inverse))
        mix(value, stride, scores, row, heads, count, out, size)

    return attend


#: ``attend(query, key, value, stride, count, heads, size, scale, softcap, scores, out)`` by dtype of the cache; scale and
#: softcap are float32, a softcap of 0 is none; ``key`` and ``value`` are the first of ``count`` rows that are seen.
one_query: dict[str, Callable[..., None]] = {"f32": _one_query(load, 4), "f16": _one_query(load_half, 2)}
