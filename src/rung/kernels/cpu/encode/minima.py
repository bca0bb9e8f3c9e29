"""Encoders of q4_1 and q5_1: a minimum and a scale from the smallest and the largest weight, then codes."""

from __future__ import annotations

import numba
import numpy as np

from rung.kernels.cpu.compiled import OPTIONS, kernel
from rung.kernels.cpu.encode.blocks import five_bits, sixteen_scales
from rung.kernels.cpu.encode.rows import CODES, COLUMNS, REFUSED, ROOM, SCRATCH, WORK, holds, take, weights
from rung.kernels.isa.codes import below, join_bits, smaller, whole
from rung.kernels.isa.generic import (
    add,
    divide,
    larger,
    largest,
    load,
    load_spread,
    multiply,
    read_float,
    spread,
    store,
    store_half,
    subtract,
    write_float,
    write_int,
    zero,
)
from rung.kernels.isa.registers import store_low_bytes
from rung.kernels.isa.scalar import floats, half, numbers, read_u16, write_u16

_NONE, _HALF, _ONE, _NORMAL = np.float32(0.0), np.float32(0.5), np.float32(1.0), np.float32(2.0**-14)
#: Bytes of the work of 16 blocks, behind that of ``sixteen_scales``: smallest and largest weights, scales, and minima.
_LOW, _HIGH, _SCALE, _MINIMUM = 256, 320, 384, 448


@numba.njit(**OPTIONS)
def _least(x):
    """The smallest of 32 weights; the first of zeros, whose sign is stored."""
    low = -largest(larger(subtract(zero(), load(x)), subtract(zero(), load(x + 64))))
    if low != _NONE:
        return low
    values, at = floats(x), 0
    while values[at] != _NONE:
        at += 1
    return values[at]


@numba.njit(**OPTIONS)
def _next_below(bits):
    """The next smaller float16, as its bits."""
    if bits & 0x7FFF == 0:
        return 0x8001
    return bits + 1 if bits & 0x8000 else bits - 1


@numba.njit(**OPTIONS)
def _widened(work, top):
    """Scales that float16 holds badly: the minimum is rounded down, and the scale spans what is left."""
    for k in range(16):
        scale = read_float(work + _SCALE + 4 * k)
        if not (scale < _NORMAL and scale > _NONE):
            continue
        bits = read_u16(work + _MINIMUM + 2 * k)
        if half(bits) > read_float(work + _LOW + 4 * k):
            bits = _next_below(bits)
            write_u16(work + _MINIMUM + 2 * k, bits)
        low = half(bits)
        write_float(work + _LOW + 4 * k, low)
        write_float(work + _SCALE + 4 * k, (read_float(work + _HIGH + 4 * k) - low) / top)


@numba.njit(**OPTIONS)
def _sizes(x, work, top, refused):
    """Minima and scales of 16 blocks, and the factors of the scales."""
    for k in range(16):
        write_float(work + _LOW + 4 * k, _least(x + 128 * k))
        write_float(work + _HIGH + 4 * k, largest(larger(load(x + 128 * k), load(x + 128 * k + 64))))
    low = load(work + _LOW)
    if not holds(low):
        write_int(refused, 1)
    scale = add(divide(subtract(load(work + _HIGH), low), spread(top)), zero())  # no negative zero
    store(work + _SCALE, scale)
    store_half(work + _MINIMUM, low)
    badly = below(scale, spread(_NORMAL), below(zero(), scale, spread(_ONE), zero()), zero())
    if largest(badly) > _NONE:
        _widened(work, top)
    sixteen_scales(load(work + _SCALE), work, refused)


@numba.njit(**OPTIONS)
def _codes(x, low, factor, top):
    y = add(multiply(subtract(load(x), low), factor), spread(_HALF))
    return whole(smaller(larger(y, zero()), spread(top)))


@numba.njit(**OPTIONS)
def _rows(words, thread, five):
    w = numbers(words)
    work, size, top = w[SCRATCH] + w[ROOM] * thread, 24 if five else 20, np.float32(31 if five else 15)
    x, row_bytes = work + WORK, w[COLUMNS] // 32 * size
    while True:
        row = take(words, w, x)
        if row < 0:
            break
        blocks, count = w[CODES] + row * row_bytes, weights(w, row) // 32
        for first in range(0, count, 16):
            _sizes(x + 128 * first, work, top, w[REFUSED])
            for k in range(min(count - first, 16)):
                block, values = blocks + size * (first + k), x + 128 * (first + k)
                low, factor = load_spread(work + _LOW + 4 * k), load_spread(work + 4 * k)
                write_u16(block, read_u16(work + 64 + 2 * k))
                write_u16(block + 2, read_u16(work + _MINIMUM + 2 * k))
                a, b = _codes(values, low, factor, top), _codes(values + 64, low, factor, top)
                if five:
                    five_bits(block + 4, a, b)
                else:
                    store_low_bytes(block + 4, join_bits(a, b, 4))


@kernel(3)
def q4_1(words, thread, threads):
    """For ``parallel.run``; the words of ``encode_rows``."""
    _rows(words, thread, False)


@kernel(3)
def q5_1(words, thread, threads):
    """See ``q4_1``."""
    _rows(words, thread, True)
