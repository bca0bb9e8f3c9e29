"""Encoder of iq4_nl: of several scales the one whose codes err least, for 16 blocks at once, one in each lane."""

from __future__ import annotations

import numba
import numpy as np

from rung.kernels.cpu.compiled import OPTIONS, kernel
from rung.kernels.cpu.encode.blocks import sixteen_scales
from rung.kernels.cpu.encode.rows import CODES, COLUMNS, REFUSED, ROOM, SCRATCH, TABLE, WORK, take, weights
from rung.kernels.cpu.encode.searches import GROUPS, inverse, turn_groups
from rung.kernels.isa.codes import below, climbed, join_bits, magnitude, rank, smaller
from rung.kernels.isa.generic import (
    add,
    divide,
    larger,
    load,
    load_spread,
    multiply,
    read_int,
    spread,
    store,
    subtract,
    zero,
)
from rung.kernels.isa.registers import store_low_bytes
from rung.kernels.isa.scalar import numbers, read_u16, write_u16

_MIDDLE, _MOST = np.float32(128.5), np.float32(255.0)
#: The table: an int64, how many scales are tried; float32: the 15 places between codes on the scale of ``_scaled``, the
#: 15 steps between their values and the first value, 1 / that, two bounds (``families.iq4``), and what is tried.
_MIDDLES, _STEPS, _FIRST, _RATE, _COARSE, _NEGLIGIBLE, _TRIALS = 8, 68, 128, 132, 136, 140, 144
#: Bytes of the work before the weights in columns.
_TURNED = 256


@numba.njit(**OPTIONS)
def _scaled(x, factor):
    """128.5 + x * factor in 0 ... 255; its integer part says which value of the codebook is nearest."""
    return smaller(larger(add(multiply(x, factor), spread(_MIDDLE)), zero()), spread(_MOST))


@numba.njit(**OPTIONS)
def _scales(y, table):
    """The scales of 16 blocks, of which the weights [32, 16] lie at y; overwrites them."""
    low = high = load(y)
    for at in range(64, GROUPS, 64):
        low, high = smaller(low, load(y + at)), larger(high, load(y + at))
    extreme = below(subtract(zero(), low), high, high, low)
    rate = inverse(extreme)
    for at in range(0, GROUPS, 64):
        store(y + at, multiply(load(y + at), rate))
    scale, most = load_spread(table + _RATE), zero()
    for trial in range(read_int(table)):
        end = load_spread(table + _TRIALS + 4 * trial)
        second, cross = zero(), zero()
        for at in range(0, GROUPS, 64):
            weight = load(y + at)
            value = climbed(_scaled(weight, end), table + _MIDDLES, table + _STEPS)
            second, cross = add(second, multiply(value, value)), add(cross, multiply(value, weight))
        fit = divide(cross, second)
        gain = multiply(fit, cross)
        scale, most = below(most, gain, fit, scale), below(most, gain, gain, most)
    scale = multiply(scale, extreme)
    plain = divide(extreme, load_spread(table + _FIRST))
    scale = below(magnitude(scale), load_spread(table + _COARSE), plain, scale)
    return below(magnitude(extreme), load_spread(table + _NEGLIGIBLE), zero(), scale)


@kernel(3)
def iq4_nl(words, thread, threads):
    """For ``parallel.run``; the words of ``encode_rows``."""
    w = numbers(words)
    work, table = w[SCRATCH] + w[ROOM] * thread, w[TABLE]
    x, row_bytes = work + WORK, w[COLUMNS] // 32 * 18
    while True:
        row = take(words, w, x)
        if row < 0:
            break
        blocks, count = w[CODES] + row * row_bytes, weights(w, row) // 32
        for first in range(0, count, 16):
            turn_groups(work + _TURNED, x + 128 * first, 32)
            sixteen_scales(_scales(work + _TURNED, table), work, w[REFUSED])
            for k in range(min(count - first, 16)):
                block, values = blocks + 18 * (first + k), x + 128 * (first + k)
                factor = load_spread(work + 4 * k)
                write_u16(block, read_u16(work + 64 + 2 * k))
                a = rank(_scaled(load(values), factor), table + _MIDDLES)
                b = rank(_scaled(load(values + 64), factor), table + _MIDDLES)
                store_low_bytes(block + 2, join_bits(a, b, 4))
