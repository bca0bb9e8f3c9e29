"""Encoders of q8_0, q4_0, q5_0, nf4, fp4 and int8: a scale from the largest magnitude, then codes.

Loops over rows that differ in what they call stand here more than once: Numba does not cache what is given functions.
"""

from __future__ import annotations

import numba
import numpy as np

from rung.kernels.cpu.compiled import OPTIONS, kernel
from rung.kernels.cpu.encode.rows import (
    CODES,
    COLUMNS,
    REFUSED,
    ROOM,
    SCRATCH,
    SIZES,
    TABLE,
    WORK,
    half_scale,
    holds,
    reciprocal,
    take,
    weights,
)
from rung.kernels.isa.codes import (
    bits_of_all,
    climbed,
    in_pairs,
    join_bits,
    magnitude,
    nearest,
    part,
    rank,
    signed,
    smaller,
    whole,
)
from rung.kernels.isa.generic import (
    add,
    divide,
    larger,
    largest,
    load,
    load_spread,
    multiply,
    read_int,
    spread,
    store,
    store_half,
    subtract,
    write_float,
    write_int,
    zero,
)
from rung.kernels.isa.registers import store_low_bytes
from rung.kernels.isa.scalar import floats, numbers, read_u16, write_u16, write_u32

_HALF, _MOST_8 = np.float32(0.5), np.float32(127.0)
_EIGHT, _MIDDLE, _MOST_4 = np.float32(-8.0), np.float32(8.5), np.float32(15.0)
_SIXTEEN, _MIDDLE_5, _MOST_5 = np.float32(-16.0), np.float32(16.5), np.float32(31.0)
_ONE, _NONE, _LEAST, _SMALLEST = np.float32(1.0), np.float32(0.0), np.float32(1e-38), np.float32(1e-45)


@numba.njit(**OPTIONS)
def _peak(x, count):
    """The largest magnitude of ``count`` weights, a multiple of 16."""
    top = zero()
    for at in range(0, 4 * count, 64):
        top = larger(top, magnitude(load(x + at)))
    return largest(top)


@numba.njit(**OPTIONS)
def sixteen_scales(scale, work, refused):
    """Writes the float16 of 16 scales behind their factors."""
    if not holds(scale):
        write_int(refused, 1)
    kept = half_scale(scale)
    store(work, reciprocal(kept))
    store_half(work + 64, kept)


@numba.njit(**OPTIONS)
def _unit_q8_0(x, blocks, count, work, refused):
    for k in range(16):
        write_float(work + 4 * k, _peak(x + 128 * k, 32))
    sixteen_scales(divide(load(work), spread(_MOST_8)), work, refused)
    for k in range(count):
        block, factor = blocks + 34 * k, load_spread(work + 4 * k)
        write_u16(block, read_u16(work + 64 + 2 * k))
        for j in range(2):
            y = multiply(load(x + 128 * k + 64 * j), factor)
            y = add(y, signed(spread(_HALF), y))
            y = smaller(larger(y, spread(-_MOST_8)), spread(_MOST_8))
            store_low_bytes(block + 2 + 16 * j, whole(y))


@kernel(3)
def q8_0(words, thread, threads):
    """For ``parallel.run``, as all encoders here; the words of ``encode_rows``."""
    w = numbers(words)
    work = w[SCRATCH] + w[ROOM] * thread
    x, row_bytes = work + WORK, w[COLUMNS] // 32 * 34
    while True:
        row = take(words, w, x)
        if row < 0:
            break
        blocks, count = w[CODES] + row * row_bytes, weights(w, row) // 32
        for first in range(0, count, 16):
            _unit_q8_0(x + 128 * first, blocks + 34 * first, min(count - first, 16), work, w[REFUSED])


@numba.njit(**OPTIONS)
def _extreme(x):
    """Return the one of 32 weights with the largest magnitude; the first of two opposite ones."""
    a, b = load(x), load(x + 64)
    high, deep = largest(larger(a, b)), largest(larger(subtract(zero(), a), subtract(zero(), b)))
    if high != deep:
        return high if high > deep else -deep
    values, at = floats(x), 0
    while abs(values[at]) != high:
        at += 1
    return values[at]


@numba.njit(**OPTIONS)
def _codes_q4_0(x, factor):
    y = add(multiply(load(x), factor), spread(_MIDDLE))
    return whole(smaller(larger(y, zero()), spread(_MOST_4)))


@numba.njit(**OPTIONS)
def _unit_q4_0(x, blocks, count, work, refused):
    for k in range(16):
        write_float(work + 4 * k, _extreme(x + 128 * k))
    sixteen_scales(divide(load(work), spread(_EIGHT)), work, refused)
    for k in range(count):
        block, values, factor = blocks + 18 * k, x + 128 * k, load_spread(work + 4 * k)
        write_u16(block, read_u16(work + 64 + 2 * k))
        store_low_bytes(block + 2, join_bits(_codes_q4_0(values, factor), _codes_q4_0(values + 64, factor), 4))


@kernel(3)
def q4_0(words, thread, threads):
    """See ``q8_0``."""
    w = numbers(words)
    work = w[SCRATCH] + w[ROOM] * thread
    x, row_bytes = work + WORK, w[COLUMNS] // 32 * 18
    while True:
        row = take(words, w, x)
        if row < 0:
            break
        blocks, count = w[CODES] + row * row_bytes, weights(w, row) // 32
        for first in range(0, count, 16):
            _unit_q4_0(x + 128 * first, blocks + 18 * first, min(count - first, 16), work, w[REFUSED])


@numba.njit(**OPTIONS)
def five_bits(values, low, high):
    """Writes 32 codes of five bits: the fifth ones as 32 bits, then the others in 16 bytes."""
    write_u32(values, bits_of_all(low, 4) | bits_of_all(high, 4) << 16)
    store_low_bytes(values + 4, join_bits(part(low, 0, 15), part(high, 0, 15), 4))


@numba.njit(**OPTIONS)
def _codes_q5_0(x, factor):
    y = add(multiply(load(x), factor), spread(_MIDDLE_5))
    return whole(smaller(larger(y, zero()), spread(_MOST_5)))


@numba.njit(**OPTIONS)
def _unit_q5_0(x, blocks, count, work, refused):
    for k in range(16):
        write_float(work + 4 * k, _extreme(x + 128 * k))
    sixteen_scales(divide(load(work), spread(_SIXTEEN)), work, refused)
    for k in range(count):
        block, values, factor = blocks + 22 * k, x + 128 * k, load_spread(work + 4 * k)
        write_u16(block, read_u16(work + 64 + 2 * k))
        five_bits(block + 2, _codes_q5_0(values, factor), _codes_q5_0(values + 64, factor))


@kernel(3)
def q5_0(words, thread, threads):
    """See ``q8_0``."""
    w = numbers(words)
    work = w[SCRATCH] + w[ROOM] * thread
    x, row_bytes = work + WORK, w[COLUMNS] // 32 * 22
    while True:
        row = take(words, w, x)
        if row < 0:
            break
        blocks, count = w[CODES] + row * row_bytes, weights(w, row) // 32
        for first in range(0, count, 16):
            _unit_q5_0(x + 128 * first, blocks + 22 * first, min(count - first, 16), work, w[REFUSED])


@numba.njit(**OPTIONS)
def _places(x, middles, sorted):
    """Codes of 16 weights in -1 ... 1: their places among 15 middles, or the steps that follow those add up to them."""
    return rank(x, middles) if sorted else whole(climbed(x, middles, middles + 60))


@numba.njit(**OPTIONS)
def _codebook(words, thread, sorted):
    """The table: an int64, the weights of a block, which lie in one row, then what ``_places`` reads."""
    w = numbers(words)
    x, size, middles = w[SCRATCH] + w[ROOM] * thread + WORK, read_int(w[TABLE]), w[TABLE] + 8
    while True:
        row = take(words, w, x)
        if row < 0:
            break
        count, first = weights(w, row), row * w[COLUMNS]
        for begin in range(0, count, size):
            values, codes = x + 4 * begin, w[CODES] + (first + begin) // 2
            peak = _peak(values, size)
            write_float(w[SIZES] + 4 * ((first + begin) // size), peak)
            factor = divide(spread(_ONE), larger(spread(peak), spread(_LEAST)))
            for at in range(0, size, 32):
                a = _places(multiply(load(values + 4 * at), factor), middles, sorted)
                b = _places(multiply(load(values + 4 * at + 64), factor), middles, sorted)
                store_low_bytes(codes + at // 2, in_pairs(a, b))


@kernel(3)
def nf4(words, thread, threads):
    """See ``_codebook``."""
    _codebook(words, thread, True)


@kernel(3)
def fp4(words, thread, threads):
    """See ``_codebook``; its values are not sorted."""
    _codebook(words, thread, False)


@kernel(3)
def int8(words, thread, threads):
    """A scale for each row; where the table says 1, its largest magnitude in place of that."""
    w = numbers(words)
    x, columns = w[SCRATCH] + w[ROOM] * thread + WORK, w[COLUMNS]
    while True:
        row = take(words, w, x)
        if row < 0:
            break
        for k in range(weights(w, row) // columns):
            values, codes = x + 4 * columns * k, w[CODES] + columns * (row + k)
            peak = _peak(values, columns)
            step = max(peak / _MOST_8, _SMALLEST) if peak > _NONE else _NONE
            write_float(w[SIZES] + 4 * (row + k), peak if read_int(w[TABLE]) else step)
            divisor = spread(step if peak > _NONE else _ONE)
            for at in range(0, columns, 16):
                y = nearest(divide(load(values + 4 * at), divisor))
                y = smaller(larger(y, spread(-_MOST_8)), spread(_MOST_8))
                store_low_bytes(codes + at, whole(y))
