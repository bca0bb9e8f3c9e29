"""Encoders of q4_k, q5_k and q6_k, as ``rung.formats.families.kquants`` computes them: 512 weights at once."""

from __future__ import annotations

import numba
import numpy as np

from rung.kernels.cpu.compiled import OPTIONS, kernel
from rung.kernels.cpu.encode.rows import (
    CODES,
    COLUMNS,
    IMPORTANCE,
    REFUSED,
    ROOM,
    SCRATCH,
    TABLE,
    WORK,
    holds,
    multiples,
    reciprocal,
    stored,
    take,
    weights,
)
from rung.kernels.cpu.encode.searches import affine, even, symmetric, turn_groups
from rung.kernels.isa.codes import (
    below,
    ceiling,
    join_bits,
    largest_of_eight,
    magnitude,
    nearest,
    part,
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
    write_int,
    zero,
)
from rung.kernels.isa.registers import load_u8, store_low_bytes
from rung.kernels.isa.scalar import floats, numbers, read_u8, read_u16, write_u8, write_u16

_COARSE = np.float32(2.0**-20)  # ``formats.codec.COARSE``
_ONE, _MOST_6, _MOST_8, _HALF_8 = (np.float32(each) for each in (1, 63, 127, 128))
_SIXTEEN, _THIRTY_TWO = np.float32(16.0), np.float32(32.0)
#: Where things lie in scratch: the importance in columns, what a search finds, what is made of it.
_WEIGHT, _FOUND, _CODED = 2048, 4096, 5120


@numba.njit(**OPTIONS)
def _search_affine(x, importance, levels, table, work):
    """Scales, minima and largest weights of 16 groups of 32, to ``work + _FOUND``."""
    turn_groups(work, x, 32)
    count = read_int(table)
    if importance == 0:
        affine(work, None, levels, table + 8, count, work + _FOUND)
    else:
        turn_groups(work + _WEIGHT, importance, 32)
        even(work + _WEIGHT, 32)
        affine(work, work + _WEIGHT, levels, table + 8, count, work + _FOUND)


@numba.njit(**OPTIONS)
def _integers(values, scale, coarse):
    """Return the integers of 6 bits for values / scale: the nearest, or the next above where the largest is coarse."""
    ratio, limit = multiples(values, scale), spread(_COARSE)
    return smaller(below(coarse, limit, ceiling(ratio), nearest(ratio)), spread(_MOST_6))


@numba.njit(**OPTIONS)
def _scales_affine(found, grid, levels, refused):
    """To ``grid``: a base and a factor for the weights of each group, the float16 of d and dmin, and 16 bytes each of
    scales and minima."""
    scale, minimum, top = load(found), load(found + 64), load(found + 128)
    coarse = largest_of_eight(scale)
    of_minima = divide(largest_of_eight(minimum), spread(_MOST_6))
    dmin = stored(of_minima)
    minima = _integers(minimum, dmin, coarse)
    base = multiply(minima, dmin)
    reach = larger(divide(add(top, base), spread(levels - _ONE)), zero())
    scale = below(coarse, spread(_COARSE), reach, scale)
    of_scales = divide(largest_of_eight(scale), spread(_MOST_6))
    if not (holds(of_minima) and holds(of_scales)):
        write_int(refused, 1)
    d = stored(of_scales)
    scales = _integers(scale, d, coarse)
    store(grid, base)
    store(grid + 64, reciprocal(multiply(scales, d)))
    store_half(grid + 128, d)
    store_half(grid + 160, dmin)
    store_low_bytes(grid + 192, whole(scales))
    store_low_bytes(grid + 208, whole(minima))


@numba.njit(**OPTIONS)
def _write_head(block, grid, second):
    """d, dmin and the 12 bytes of ``kquants.scales_and_minima`` of the first or second superblock."""
    write_u16(block, read_u16(grid + 128 + 16 * second))
    write_u16(block + 2, read_u16(grid + 160 + 16 * second))
    scales, minima = grid + 192 + 8 * second, grid + 208 + 8 * second
    for k in range(4):
        scale, minimum = read_u8(scales + 4 + k), read_u8(minima + 4 + k)
        write_u8(block + 4 + k, read_u8(scales + k) | (scale & 48) << 2)
        write_u8(block + 8 + k, read_u8(minima + k) | (minimum & 48) << 2)
        write_u8(block + 12 + k, (scale & 15) | (minimum & 15) << 4)


@numba.njit(**OPTIONS)
def _codes_affine(x, scales, group, most):
    y = multiply(add(load(x), load_spread(scales + 4 * group)), load_spread(scales + 64 + 4 * group))
    return whole(smaller(larger(nearest(y), zero()), spread(most)))


@numba.njit(**OPTIONS)
def _write_q4_k(x, block, scales, second):
    _write_head(block, scales, second)
    for pair in range(4):
        for at in range(2):
            group, values = 8 * second + 2 * pair, x + 256 * pair + 64 * at
            low = _codes_affine(values, scales, group, _SIXTEEN - _ONE)
            high = _codes_affine(values + 128, scales, group + 1, _SIXTEEN - _ONE)
            store_low_bytes(block + 16 + 32 * pair + 16 * at, join_bits(low, high, 4))


@numba.njit(**OPTIONS)
def _write_q5_k(x, block, scales, second):
    _write_head(block, scales, second)
    for at in range(2):
        fifth = whole(zero())
        for pair in range(4):
            group, values = 8 * second + 2 * pair, x + 256 * pair + 64 * at
            low = _codes_affine(values, scales, group, _THIRTY_TWO - _ONE)
            high = _codes_affine(values + 128, scales, group + 1, _THIRTY_TWO - _ONE)
            fifth = join_bits(fifth, join_bits(part(low, 4, 1), part(high, 4, 1), 1), 2 * pair)
            store_low_bytes(block + 48 + 32 * pair + 16 * at, join_bits(part(low, 0, 15), part(high, 0, 15), 4))
        store_low_bytes(block + 16 + 16 * at, fifth)


@kernel(3)
def q4_k(words, thread, threads):
    """For ``parallel.run``, as all encoders here; the words of ``encode_rows``. The table: how many trials there are,
    an int64, and the trials."""
    w = numbers(words)
    work, row_bytes = w[SCRATCH] + w[ROOM] * thread, w[COLUMNS] // 256 * 144
    while True:
        row = take(words, w, work + WORK)
        if row < 0:
            break
        blocks, count, importance = w[CODES] + row * row_bytes, weights(w, row) // 256, w[IMPORTANCE]
        for first in range(0, count, 2):
            x = work + WORK + 1024 * first
            _search_affine(x, importance, _SIXTEEN, w[TABLE], work)
            _scales_affine(work + _FOUND, work + _CODED, _SIXTEEN, w[REFUSED])
            for second in range(min(count - first, 2)):
                _write_q4_k(x + 1024 * second, blocks + 144 * (first + second), work + _CODED, second)
            importance += 2048 if importance else 0


@kernel(3)
def q5_k(words, thread, threads):
    """See ``q4_k``."""
    w = numbers(words)
    work, row_bytes = w[SCRATCH] + w[ROOM] * thread, w[COLUMNS] // 256 * 176
    while True:
        row = take(words, w, work + WORK)
        if row < 0:
            break
        blocks, count, importance = w[CODES] + row * row_bytes, weights(w, row) // 256, w[IMPORTANCE]
        for first in range(0, count, 2):
            x = work + WORK + 1024 * first
            _search_affine(x, importance, _THIRTY_TWO, w[TABLE], work)
            _scales_affine(work + _FOUND, work + _CODED, _THIRTY_TWO, w[REFUSED])
            for second in range(min(count - first, 2)):
                _write_q5_k(x + 1024 * second, blocks + 176 * (first + second), work + _CODED, second)
            importance += 2048 if importance else 0


@numba.njit(**OPTIONS)
def _search_symmetric(x, importance, table, work):
    """Scales and extreme weights of 16 groups of 16, to ``work + _FOUND``."""
    turn_groups(work, x, 16)
    count = read_int(table)
    if importance == 0:
        symmetric(work, None, _THIRTY_TWO, table + 8, count, work + _FOUND)
    else:
        turn_groups(work + _WEIGHT, importance, 16)
        even(work + _WEIGHT, 16)
        symmetric(work, work + _WEIGHT, _THIRTY_TWO, table + 8, count, work + _FOUND)


@numba.njit(**OPTIONS)
def _scales_symmetric(found, grid, refused):
    """To ``grid``: a factor for the weights of each group, the float16 of d, and 16 signed bytes of scales."""
    scale, extreme = load(found), load(found + 64)
    most = largest(magnitude(scale))
    coarse = most < _COARSE
    if coarse:
        scale = divide(extreme, spread(-_THIRTY_TWO))
        most = largest(magnitude(scale))
        store(found, scale)
    values, first = floats(found), 0
    while first < 15 and abs(values[first]) != most:
        first += 1
    of_scales = divide(spread(values[first]), spread(-_HALF_8))
    if not holds(of_scales):
        write_int(refused, 1)
    d = stored(of_scales)
    ratio = multiples(scale, d)
    scales = signed(ceiling(magnitude(ratio)), ratio) if coarse else nearest(ratio)
    scales = smaller(larger(scales, spread(-_HALF_8)), spread(_MOST_8))
    store(grid, reciprocal(multiply(scales, d)))
    store_half(grid + 64, d)
    store_low_bytes(grid + 96, whole(scales))


@numba.njit(**OPTIONS)
def _codes_symmetric(x, factor):
    y = nearest(multiply(load(x), load_spread(factor)))
    y = smaller(larger(y, spread(-_THIRTY_TWO)), spread(_THIRTY_TWO - _ONE))
    return whole(add(y, spread(_THIRTY_TWO)))


@numba.njit(**OPTIONS)
def _write_q6_k(x, block, scales):
    for half in range(2):
        for at in range(2):
            values, factor = x + 512 * half + 64 * at, scales + 32 * half + 4 * at
            a, b = _codes_symmetric(values, factor), _codes_symmetric(values + 128, factor + 8)
            c, d = _codes_symmetric(values + 256, factor + 16), _codes_symmetric(values + 384, factor + 24)
            low, high = block + 64 * half + 16 * at, block + 128 + 32 * half + 16 * at
            store_low_bytes(low, join_bits(part(a, 0, 15), part(c, 0, 15), 4))
            store_low_bytes(low + 32, join_bits(part(b, 0, 15), part(d, 0, 15), 4))
            above = join_bits(part(a, 4, 3), part(b, 4, 3), 2)
            store_low_bytes(high, join_bits(above, join_bits(part(c, 4, 3), part(d, 4, 3), 2), 4))
    store_low_bytes(block + 192, load_u8(scales + 96))
    write_u16(block + 208, read_u16(scales + 64))


@kernel(3)
def q6_k(words, thread, threads):
    """See ``q4_k``; a trial is one float32."""
    w = numbers(words)
    work, row_bytes = w[SCRATCH] + w[ROOM] * thread, w[COLUMNS] // 256 * 210
    while True:
        row = take(words, w, work + WORK)
        if row < 0:
            break
        blocks, count, importance = w[CODES] + row * row_bytes, weights(w, row) // 256, w[IMPORTANCE]
        for at in range(count):
            x = work + WORK + 1024 * at
            _search_symmetric(x, importance, w[TABLE], work)
            _scales_symmetric(work + _FOUND, work + _CODED, w[REFUSED])
            _write_q6_k(x, blocks + 210 * at, work + _CODED)
            importance += 1024 if importance else 0
