"""Kernels of encoders of texts: what lies between the products of a layer, and attention without a mask."""

from __future__ import annotations

from enum import IntEnum

import numba
import numpy as np

from rung.kernels.cpu.compiled import OPTIONS, kernel
from rung.kernels.isa.generic import (
    add,
    exponential,
    fetch_add,
    gelu,
    gelu_erf,
    larger,
    largest,
    load,
    load_spread,
    multiply,
    multiply_add,
    read_float,
    read_int,
    spread,
    store,
    subtract,
    total,
    write_float,
    zero,
)

_ROWS = 8  # rows a thread takes at a time
_ONE = np.float32(1.0)


@numba.njit(**OPTIONS)
def _layer_norm(x, weight, bias, columns, epsilon):
    """x = (x - mean) / sqrt(variance + epsilon) * weight + bias, in place."""
    size = 4 * columns
    sums = zero()
    for j in range(0, size, 64):
        sums = add(sums, load(x + j))
    mean = spread(total(sums) / np.float32(columns))
    squares = zero()
    for j in range(0, size, 64):
        apart = subtract(load(x + j), mean)
        squares = multiply_add(apart, apart, squares)
    scale = spread(_ONE / np.sqrt(total(squares) / np.float32(columns) + epsilon))
    for j in range(0, size, 64):
        value = multiply(subtract(load(x + j), mean), scale)
        store(x + j, multiply_add(value, load(weight + j), load(bias + j)))


@kernel(3)
def add_and_layer_norm(words, thread, threads):
    """rows, columns, x, added, added bias, weight, bias, address of epsilon: x = LayerNorm(x + added + added bias).

    Rows lie without gaps. An address of 0 for ``added`` and its bias adds nothing.
    """
    rows, columns, x, added = read_int(words + 8), read_int(words + 16), read_int(words + 24), read_int(words + 32)
    added_bias, weight, bias = read_int(words + 40), read_int(words + 48), read_int(words + 56)
    epsilon = read_float(read_int(words + 64))
    while True:
        first = fetch_add(words, 1) * _ROWS
        if first >= rows:
            break
        for row in range(first, min(first + _ROWS, rows)):
            at = x + 4 * columns * row
            if added != 0:
                more = added + 4 * columns * row
                for j in range(0, 4 * columns, 64):
                    store(at + j, add(load(at + j), add(load(more + j), load(added_bias + j))))
            _layer_norm(at, weight, bias, columns, epsilon)


@kernel(3)
def add_and_activate(words, thread, threads):
    """rows, columns, x, bias, whether gelu has erf: x = gelu(x + bias), in place. Rows lie without gaps."""
    rows, columns, x = read_int(words + 8), read_int(words + 16), read_int(words + 24)
    bias, has_erf = read_int(words + 32), read_int(words + 40) != 0
    while True:
        row = fetch_add(words, 1)
        if row >= rows:
            break
        at = x + 4 * columns * row
        if has_erf:
            for j in range(0, 4 * columns, 64):
                store(at + j, gelu_erf(add(load(at + j), load(bias + j))))
        else:
            for j in range(0, 4 * columns, 64):
                store(at + j, gelu(add(load(at + j), load(bias + j))))


_LOWEST = np.float32(-3.0e38)
#: Queries that are computed together.
_QUAD = 4
#: Keys that scores are computed for at a time.
_KEYS = 32


class TextWord(IntEnum):
    """Arguments of ``attend_texts``: the counter; texts, heads, the width of a head, a multiple of 16; q, k, v and
    results [tokens, heads * width], with ``APART`` bytes between the rows of the first three and no gaps between those
    of results; biases of q and v; the first row and the rows of each text, int64 [texts, 2]; the address of the scale,
    and scratch of the threads with the bytes of each."""

    COUNTER, TEXTS, HEADS, SIZE, Q, K, V, OUT, APART, Q_BIAS, V_BIAS, ROWS, SCALE, SCRATCH, SCRATCH_BYTES = range(15)


_TEXTS, _HEADS, _SIZE, _Q, _K, _V, _OUT, _APART, _Q_BIAS, _V_BIAS, _ROW_COUNT, _SCALE, _SCRATCH, _SCRATCH_BYTES = (
    8 * word for word in list(TextWord)[1:]
)


def padded(tokens: int) -> int:
    """Return for how many keys scores of a text are computed."""
    return -(-tokens // _KEYS) * _KEYS


def scratch_floats(tokens: int, size: int) -> int:
    """Return how many float32 a thread needs for texts of up to so many tokens, with heads of ``size``."""
    return padded(tokens) * (2 * size + _QUAD) + 2 * _QUAD * size


@numba.njit(**OPTIONS)
def _turn(keys, apart, count, wide, size, to):
    """to[size, wide] = keys[count, size] turned; columns from ``count`` on are 0."""
    for d in range(size):
        at = to + 4 * wide * d
        for s in range(count):
            write_float(at + 4 * s, read_float(keys + apart * s + 4 * d))
        for s in range(count, wide):
            write_float(at + 4 * s, np.float32(0.0))


@numba.njit(**OPTIONS)
def _copy(values, apart, count, size, to):
    """to[count, size] = values[count, size], without gaps: rows 4 kB apart share few sets of a cache."""
    for _ in range(count):
        for d in range(0, 4 * size, 64):
            store(to + d, load(values + d))
        values += apart
        to += 4 * size


@numba.njit(**OPTIONS)
def _score(queries, turned, wide, size, scores):
    """scores[4, wide] = queries[4, size] times turned[size, wide]."""
    row, width = 4 * size, 4 * wide
    for j in range(0, width, 128):
        a0, a1, b0, b1 = zero(), zero(), zero(), zero()
        c0, c1, d0, d1 = zero(), zero(), zero(), zero()
        at, q = turned + j, queries
        for _ in range(size):
            u, v = load(at), load(at + 64)
            x = load_spread(q)
            a0, a1 = multiply_add(x, u, a0), multiply_add(x, v, a1)
            x = load_spread(q + row)
            b0, b1 = multiply_add(x, u, b0), multiply_add(x, v, b1)
            x = load_spread(q + 2 * row)
            c0, c1 = multiply_add(x, u, c0), multiply_add(x, v, c1)
            x = load_spread(q + 3 * row)
            d0, d1 = multiply_add(x, u, d0), multiply_add(x, v, d1)
            at += width
            q += 4
        to = scores + j
        store(to, a0)
        store(to + 64, a1)
        store(to + width, b0)
        store(to + width + 64, b1)
        store(to + 2 * width, c0)
        store(to + 2 * width + 64, c1)
        store(to + 3 * width, d0)
        store(to + 3 * width + 64, d1)


@numba.njit(**OPTIONS)
def _soften(scores, count, wide, inverses):
    """exp(scores - largest) of each of four rows in place, of ``count`` scores; inverses[4] = 1 / their sums.

    Rows take turns, since each waits for its own largest score and its own sum.
    """
    width = 4 * wide
    for row in range(scores, scores + _QUAD * width, width):
        for s in range(count, wide):
            write_float(row + 4 * s, _LOWEST)
    a, b, c, d = spread(_LOWEST), spread(_LOWEST), spread(_LOWEST), spread(_LOWEST)
    for at in range(scores, scores + width, 64):
        a, b = larger(load(at), a), larger(load(at + width), b)
        c, d = larger(load(at + 2 * width), c), larger(load(at + 3 * width), d)
    a, b, c, d = spread(largest(a)), spread(largest(b)), spread(largest(c)), spread(largest(d))
    sum_a, sum_b, sum_c, sum_d = zero(), zero(), zero(), zero()
    for at in range(scores, scores + width, 64):
        x, y = exponential(subtract(load(at), a)), exponential(subtract(load(at + width), b))
        z, w = exponential(subtract(load(at + 2 * width), c)), exponential(subtract(load(at + 3 * width), d))
        store(at, x)
        store(at + width, y)
        store(at + 2 * width, z)
        store(at + 3 * width, w)
        sum_a, sum_b, sum_c, sum_d = add(sum_a, x), add(sum_b, y), add(sum_c, z), add(sum_d, w)
    write_float(inverses, _ONE / total(sum_a))
    write_float(inverses + 4, _ONE / total(sum_b))
    write_float(inverses + 8, _ONE / total(sum_c))
    write_float(inverses + 12, _ONE / total(sum_d))


@numba.njit(**OPTIONS)
def _store_rows(out, row, a, b, c, d):
    """Sixteen columns of four rows, ``row`` bytes from each other."""
    store(out, a)
    store(out + row, b)
    store(out + 2 * row, c)
    store(out + 3 * row, d)


@numba.njit(**OPTIONS)
def _gather_last(scores, width, values, apart, count, out, row):
    """The same of the last 16 columns."""
    a, b, c, d = zero(), zero(), zero(), zero()
    for _ in range(count):
        value = load(values)
        a = multiply_add(load_spread(scores), value, a)
        b = multiply_add(load_spread(scores + width), value, b)
        c = multiply_add(load_spread(scores + 2 * width), value, c)
        d = multiply_add(load_spread(scores + 3 * width), value, d)
        values += apart
        scores += 4
    _store_rows(out, row, a, b, c, d)


@numba.njit(**OPTIONS)
def _gather(scores, wide, values, apart, count, size, out):
    """out[4, size] = scores[4, count] times values[count, size], 32 columns at a time."""
    width, row = 4 * wide, 4 * size
    for j in range(0, row - 64, 128):
        a0, a1, b0, b1 = zero(), zero(), zero(), zero()
        c0, c1, d0, d1 = zero(), zero(), zero(), zero()
        at, s = values + j, scores
        for _ in range(count):
            u, v = load(at), load(at + 64)
            x = load_spread(s)
            a0, a1 = multiply_add(x, u, a0), multiply_add(x, v, a1)
            x = load_spread(s + width)
            b0, b1 = multiply_add(x, u, b0), multiply_add(x, v, b1)
            x = load_spread(s + 2 * width)
            c0, c1 = multiply_add(x, u, c0), multiply_add(x, v, c1)
            x = load_spread(s + 3 * width)
            d0, d1 = multiply_add(x, u, d0), multiply_add(x, v, d1)
            at += apart
            s += 4
        _store_rows(out + j, row, a0, b0, c0, d0)
        _store_rows(out + j + 64, row, a1, b1, c1, d1)
    if size % 32 != 0:
        _gather_last(scores, width, values + row - 64, apart, count, out + row - 64, row)


@numba.njit(**OPTIONS)
def _prepare(q, apart, bias, rows, size, scale, to):
    """to[4, size] = (q[rows, size] + bias) * scale; the rows behind them are 0."""
    by = spread(scale)
    for number in range(_QUAD):
        for j in range(0, 4 * size, 64):
            value = zero()
            if number < rows:
                value = multiply(add(load(q + apart * number + j), load(bias + j)), by)
            store(to + 4 * size * number + j, value)


@numba.njit(**OPTIONS)
def _attend(q, k, v, out, apart, out_apart, q_bias, v_bias, count, size, scale, scratch):
    """One head of one text of ``count`` tokens, ``apart`` bytes from each other, and their results ``out_apart``."""
    wide = (count + _KEYS - 1) // _KEYS * _KEYS
    values = scratch + 4 * wide * size
    scores = values + 4 * wide * size
    queries = scores + 4 * _QUAD * wide
    found = queries + 4 * _QUAD * size
    _turn(k, apart, count, wide, size, scratch)
    _copy(v, apart, count, size, values)
    for first in range(0, count, _QUAD):
        rows = min(_QUAD, count - first)
        _prepare(q + apart * first, apart, q_bias, rows, size, scale, queries)
        _score(queries, scratch, wide, size, scores)
        _soften(scores, count, wide, queries)
        _gather(scores, wide, values, 4 * size, count, size, found)
        for number in range(rows):
            inverse, to = spread(read_float(queries + 4 * number)), out + out_apart * (first + number)
            for j in range(0, 4 * size, 64):
                store(to + j, multiply_add(load(found + 4 * size * number + j), inverse, load(v_bias + j)))


@kernel(3)
def attend_texts(words, thread, threads):
    """Attention of all texts; see ``TextWord``."""
    heads, size, rows = read_int(words + _HEADS), read_int(words + _SIZE), read_int(words + _ROW_COUNT)
    apart, out_apart = read_int(words + _APART), 4 * heads * size
    scale = read_float(read_int(words + _SCALE))
    scratch = read_int(words + _SCRATCH) + thread * read_int(words + _SCRATCH_BYTES)
    units = read_int(words + _TEXTS) * heads
    while True:
        unit = fetch_add(words, 1)
        if unit >= units:
            break
        text, column = unit // heads, 4 * size * (unit % heads)
        row = read_int(rows + 16 * text)
        at = apart * row + column
        _attend(
            read_int(words + _Q) + at,
            read_int(words + _K) + at,
            read_int(words + _V) + at,
            read_int(words + _OUT) + out_apart * row + column,
            apart,
            out_apart,
            read_int(words + _Q_BIAS) + column,
            read_int(words + _V_BIAS) + column,
            read_int(rows + 16 * text + 8),
            size,
            scale,
            scratch,
        )
