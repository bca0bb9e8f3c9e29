"""Caches in q8_0, q5_1 and q4_0: how they are written, and attention of a few query rows over them.

32 values of a key or a value are signed bytes and a float16 that they are multiplied with, the same as
``rung.formats`` makes of them. A head has them in the order in which they are multiplied:

- Keys lie as ``pack.layouts.Q8_0`` packs rows of weights: of 16 positions and 32 values 16 scales, then the bytes.
  Queries are quantized as activations are, and the products are the integer ones of ``gemm.microkernel``.
- Values are rows of bytes, one for each position of the block. Behind them, for each 32 values of a head, stand the
  scales of all positions: these are multiplied with the weights of the positions, 16 at a time, and the bytes, widened
  in registers, with that.

Both take 17 bytes for 16 values. Heads have a multiple of 32 values.

In q4_0 codes are nibbles, 9 bytes for 16 values: keys lie as ``pack.layouts.Q4_0`` has rows, of values each byte has
two of 32, 16 apart. Keys and values are rotated by a Hadamard matrix before (QuaRot, arXiv:2404.00456), so that no
dimension is much larger than others; queries are, too, and results are rotated back. Of SmolLM2 a cache that is not
rotated costs three times the KL, and one whose scales are not searched for 1.15 times.

In q5_1 codes have a fifth bit, and beside the scale stands what is taken from all values, 12 bytes for 16 values: keys
lie as ``pack.layouts`` has ``cache_q5_1``; of values 20 bytes have the codes of 32, and behind the scales of all
positions stand the minima. They are rotated, too. Scales are not searched for: that
gained nothing where it was once measured, and no script of it is kept.
"""

from __future__ import annotations

import numba
import numpy as np

from rung.formats.search import CACHE_SHIFTS
from rung.kernels.cpu.compiled import OPTIONS, kernel
from rung.kernels.cpu.decode.cache_layout import (
    BLOCK,
    FLOATS,
    HEAD,
    LAYER,
    QUANTIZE,
    SIZE,
    TILE,
    VALUES,
    WINDOW,
    ask_for,
    block_ahead,
    blocks_ahead,
    clear_rows,
    divide_rows,
    weigh_rows,
)
from rung.kernels.cpu.decode.elementwise import spread_evenly
from rung.kernels.cpu.gemm.microkernel import multiply_groups
from rung.kernels.isa.codes import join_bits, nearest, part, signed, smaller, to_half, whole
from rung.kernels.isa.generic import (
    add,
    larger,
    largest,
    load,
    load_half,
    multiply,
    read_float,
    read_int,
    spread,
    store,
    subtract,
    total,
    write_float,
    zero,
)
from rung.kernels.isa.registers import largest_magnitude, store_low_bytes
from rung.kernels.isa.rows import (
    code_bytes,
    first_lanes,
    mix,
    store_columns,
    store_fifth_bits,
    store_fifth_columns,
    store_nibble_columns,
)
from rung.kernels.isa.scalar import call_address, write_half

_HALF, _ONE, _MOST = np.float32(0.5), np.float32(1.0), np.float32(127.0)
#: The smallest number that float16 holds with all its bits, and the steps between smaller ones.
_NORMAL, _STEPS, _STEP = np.float32(2.0**-14), np.float32(2.0**24), np.float32(2.0**-24)
#: Bytes of 16 keys and 32 values: scales, then codes.
_UNIT, _CODES = 544, 32
#: The same in q4_0, and the ends of its codes.
_NARROW_UNIT, _LOWEST, _HIGHEST = 288, np.float32(-8.0), np.float32(7.0)
#: The same in q5_1, whose header has scales and minima, and its largest code.
_FIVE_UNIT, _FIVE_CODES, _FIVE_MOST = 384, 64, np.float32(31.0)
#: What half of a range is multiplied by for its scale there, and the largest float16.
_PART, _LARGEST = np.float32(2 / 31), np.float32(65504.0)
#: Codes of the largest value that are tried, counted from the lowest code down.
_SHIFTS = tuple(np.float32(shift) for shift in CACHE_SHIFTS)
#: Bytes of a quantized query for 32 values: the codes, their scale and their sum.
_QUERY = 40
#: Positions whose weights are multiplied with scales at a time.
_PIECE = 64


@numba.njit(**OPTIONS)
def _factor(values, scale):
    """Write the float16 scale of 32 values, rounded up where float16 is coarse; what gives their codes."""
    size = largest_magnitude(load(values), load(values + 64)) / _MOST
    if size < _NORMAL:
        steps = size * _STEPS
        count = np.int64(steps)
        size = np.float32(count + (count < steps)) * _STEP
    write_half(scale, size)
    return np.float32(0) if size == 0 else _ONE / size


@numba.njit(**OPTIONS)
def _codes(values, factor):
    """16 codes, rounded half away from zero as ``rung.formats`` does."""
    y = multiply(load(values), spread(factor))
    y = add(y, signed(spread(_HALF), y))
    return whole(smaller(larger(y, spread(-_MOST)), spread(_MOST)))


@numba.njit(**OPTIONS)
def write_key(head, at, key, size):
    """Write a key to position ``at`` of a head in a block."""
    unit = head + at // 16 * 17 * size
    for j in range(0, 4 * size, 128):
        factor = _factor(key + j, unit + 2 * (at % 16))
        for half in range(2):
            address = unit + _CODES + 256 * half + 4 * (at % 16)
            store_columns(address, _codes(key + j + 64 * half, factor))
        unit += _UNIT


@numba.njit(**OPTIONS)
def write_value(head, block, at, value, size):
    """Write a value to position ``at`` of the ``block`` positions of a head."""
    scale = head + block * size + 2 * at
    for j in range(0, size, 32):
        factor = _factor(value + 4 * j, scale)
        for first in range(0, 32, 16):
            store_low_bytes(head + at * size + j + first, _codes(value + 4 * (j + first), factor))
        scale += 2 * block


@numba.njit(**OPTIONS)
def _nearest(values, factor):
    """16 codes of q4_0 as float32, -8 to 7."""
    return smaller(larger(nearest(multiply(load(values), factor)), spread(_LOWEST)), spread(_HIGHEST))


@numba.njit(**OPTIONS)
def _step(values):
    """The step of 32 values: of those that are tried the one whose codes, times what fits them best, are nearest, as
    ``rung.formats.search.symmetric`` finds it."""
    x, y, negative = load(values), load(values + 64), spread(-_ONE)
    high, low = largest(larger(x, y)), -largest(larger(multiply(x, negative), multiply(y, negative)))
    extreme = high if high > -low else low
    if extreme == 0:
        return np.float32(0)
    inverse = _ONE / extreme
    step, most = extreme / _LOWEST, np.float32(0)
    for shift in _SHIFTS:
        factor = spread((_LOWEST - shift) * inverse)
        u, v = _nearest(values, factor), _nearest(values + 64, factor)
        cross = total(add(multiply(x, u), multiply(y, v))) * inverse
        fit = cross / total(add(multiply(u, u), multiply(v, v)))
        if fit * cross > most:
            step, most = fit * extreme, fit * cross
    return step


@numba.njit(**OPTIONS)
def _nibbles(values, scale):
    """Write the float16 step of 32 values; the bytes of their codes, those of the first 16 in the low nibbles."""
    step = _step(values)
    write_half(scale, step)
    stored = largest(to_half(spread(step)))
    factor = spread(np.float32(0) if stored == 0 else _ONE / stored)
    first, second = _nearest(values, factor), _nearest(values + 64, factor)
    return join_bits(whole(add(first, spread(-_LOWEST))), whole(add(second, spread(-_LOWEST))), 4)


@numba.njit(**OPTIONS)
def write_narrow_key(head, at, key, size):
    """Do as ``write_key`` in q4_0."""
    unit = head + at // 16 * 9 * size
    for j in range(0, 4 * size, 128):
        store_nibble_columns(unit + _CODES + 4 * (at % 16), _nibbles(key + j, unit + 2 * (at % 16)))
        unit += _NARROW_UNIT


@numba.njit(**OPTIONS)
def write_narrow_value(head, block, at, value, size):
    """Do as ``write_value`` in q4_0."""
    scale = head + block * size // 2 + 2 * at
    for j in range(0, size, 32):
        store_low_bytes(head + (at * size + j) // 2, _nibbles(value + 4 * j, scale))
        scale += 2 * block


@numba.njit(**OPTIONS)
def _line(values, scale, minimum):
    """Write the float16 scale of 32 values, and what is taken from all of them; the latter, and 1 / scale."""
    x, y, negative = load(values), load(values + 64), spread(-_ONE)
    high, taken = largest(larger(x, y)), largest(larger(multiply(x, negative), multiply(y, negative)))
    size = largest(to_half(spread((high * _HALF + taken * _HALF) * _PART)))
    if taken > _LARGEST:
        taken = _LARGEST
    elif taken < -_LARGEST:
        taken = -_LARGEST
    taken = largest(to_half(spread(taken)))
    write_half(scale, size)
    write_half(minimum, taken)
    return taken, np.float32(0) if size == 0 else _ONE / size


@numba.njit(**OPTIONS)
def _fives(values, taken, factor):
    """16 codes of q5_1."""
    code = nearest(multiply(add(load(values), spread(taken)), spread(factor)))
    return whole(smaller(larger(code, zero()), spread(_FIVE_MOST)))


@numba.njit(**OPTIONS)
def write_five_key(head, at, key, size):
    """Do as ``write_key`` in q5_1."""
    unit = head + at // 16 * 12 * size
    for j in range(0, 4 * size, 128):
        scale, codes = unit + 2 * (at % 16), unit + _FIVE_CODES + 4 * (at % 16)
        taken, factor = _line(key + j, scale, scale + 32)
        first, second = _fives(key + j, taken, factor), _fives(key + j + 64, taken, factor)
        store_nibble_columns(codes, join_bits(part(first, 0, 15), second, 4))
        store_fifth_columns(codes + 256, first, second)
        unit += _FIVE_UNIT


@numba.njit(**OPTIONS)
def write_five_value(head, block, at, value, size):
    """Do as ``write_value`` in q5_1."""
    scale = head + block * size * 5 // 8 + 2 * at
    for j in range(0, size, 32):
        codes = head + (at * size + j) * 5 // 8
        taken, factor = _line(value + 4 * j, scale, scale + block * size // 16)
        first, second = _fives(value + 4 * j, taken, factor), _fives(value + 4 * j + 64, taken, factor)
        store_low_bytes(codes, join_bits(part(first, 0, 15), second, 4))
        store_fifth_bits(codes + 16, first)
        store_fifth_bits(codes + 18, second)
        scale += 2 * block


@numba.njit(**OPTIONS)
def _offset(kind):
    """How far codes lie above what they stand for: 128 in q8_0, 8 in q4_0, 0 in q5_1; as in ``isa.rows`` the kind is
    None for q8_0, an empty tuple for q4_0 and a tuple of one for q5_1."""
    if kind is None:
        return 128
    return 8 * (1 - len(kind))


@numba.njit(**OPTIONS)
def _has_minima(kind):
    """Return whether blocks have a minimum, which corrects products, and not only a scale: in q5_1 alone."""
    if kind is None:
        return False
    return len(kind) > 0


@numba.njit(**OPTIONS)
def _header_bytes(size, kind):
    """Bytes of scales, and minima, of 16 keys."""
    return 2 * size if _has_minima(kind) else size


@numba.njit(**OPTIONS)
def _quantize(query, apart, rows, panels, tile, size, scale, kernel, kind):
    """Quantize queries, ``tile`` to a panel, and multiply their scales by ``scale``."""
    offset = _offset(kind)
    units = size // 32
    for first in range(0, rows, tile):
        count = min(tile, rows - first)
        call_address(kernel, (query + apart * first, apart, count, panels, tile, 1, offset, 0, units, 0))
        for _ in range(units):
            for number in range(count):
                at = panels + 32 * tile + 4 * number
                write_float(at, read_float(at) * scale)
                if _has_minima(kind):
                    write_float(at + 4 * tile, read_float(at + 4 * tile) * scale)
            panels += _QUERY * tile


@numba.njit(**OPTIONS)
def _scores(panels, tile, key, size, out, row, rows, count, ahead, kind):
    """Products of queries with ``count`` keys, up to whole groups of 16; memory ``ahead`` bytes on is prefetched."""
    units, group = size // 32, _header_bytes(size, kind) + 16 * code_bytes(size, kind)
    for s in range(0, count, 16):
        ask_for(key + ahead, group)
        for first in range(0, rows, tile):
            panel, to, left = panels + first * units * _QUERY, out + row * first + 4 * s, rows - first
            _multiply(tile, key, group, panel, units, to, row, left, kind)
        key += group


@numba.njit(**OPTIONS)
def _multiply(tile, key, group, panel, units, to, row, left, kind):
    """A panel of queries times a group of 16 keys."""
    if kind is None:
        if tile == 1:
            multiply_groups("q8_0", 1, 1, 0, key, group, 0, panel, 0, units, to, row, left, 16, 0)
        elif tile == 2:
            multiply_groups("q8_0", 2, 1, 0, key, group, 0, panel, 0, units, to, row, left, 16, 0)
        else:
            multiply_groups("q8_0", 4, 1, 0, key, group, 0, panel, 0, units, to, row, left, 16, 0)
    elif len(kind):
        _multiply_fives(tile, key, group, panel, units, to, row, left)
    elif tile == 1:
        multiply_groups("q4_0", 1, 1, 0, key, group, 0, panel, 0, units, to, row, left, 16, 0)
    elif tile == 2:
        multiply_groups("q4_0", 2, 1, 0, key, group, 0, panel, 0, units, to, row, left, 16, 0)
    else:
        multiply_groups("q4_0", 4, 1, 0, key, group, 0, panel, 0, units, to, row, left, 16, 0)


@numba.njit(**OPTIONS)
def _multiply_fives(tile, key, group, panel, units, to, row, left):
    """The same in q5_1."""
    if tile == 1:
        multiply_groups("cache_q5_1", 1, 1, 0, key, group, 0, panel, 0, units, to, row, left, 16, 0)
    elif tile == 2:
        multiply_groups("cache_q5_1", 2, 1, 0, key, group, 0, panel, 0, units, to, row, left, 16, 0)
    else:
        multiply_groups("cache_q5_1", 4, 1, 0, key, group, 0, panel, 0, units, to, row, left, 16, 0)


@numba.njit(**OPTIONS)
def _add_minima(minima, size, block, weights, row, rows, count, sums):
    """Add up to ``_PIECE`` minima times the weights to the sums [rows, size / 32] of rows, 16 positions at a time from
    a position that 16 divides: what is added does not depend on where pieces begin."""
    for number in range(rows):
        for unit in range(size // 32):
            to = sums + 4 * (number * (size // 32) + unit)
            for s in range(0, count, 16):
                product = multiply(load(weights + row * number + 4 * s), load_half(minima + 2 * (unit * block + s)))
                write_float(to, read_float(to) + total(first_lanes(product, count - s)))


@numba.njit(**OPTIONS)
def _take_minima(out, apart, rows, size, sums):
    """Take the sums from the results."""
    for number in range(rows):
        for unit in range(size // 32):
            taken, to = spread(read_float(sums + 4 * (number * (size // 32) + unit))), out + apart * number + 128 * unit
            for j in range(0, 128, 64):
                store(to + j, subtract(load(to + j), taken))


@numba.njit(**OPTIONS)
def _scale_weights(weights, row, rows, scales, count, out):
    """Weights times the scales of 32 values: rows of ``_PIECE``."""
    for number in range(rows):
        for s in range(0, count, 16):
            scaled = multiply(load(weights + row * number + 4 * s), load_half(scales + 2 * s))
            store(out + 4 * (_PIECE * number + s), scaled)


@numba.njit(**OPTIONS)
def _mix(value, size, scales, block, weights, row, rows, count, out, apart, ahead, scaled, kind):
    """Add up to ``_PIECE`` values times the weights to the results, 32 dimensions of all rows at a time."""
    stride = code_bytes(size, kind)
    for j in range(0, size, 32):
        codes = value + code_bytes(j, kind)
        _scale_weights(weights, row, rows, scales, count, scaled)
        if rows == 1:
            mix(codes, stride, scaled, 4 * _PIECE, count, out + 4 * j, apart, ahead, kind, 1, 2)
        elif rows == 2:
            mix(codes, stride, scaled, 4 * _PIECE, count, out + 4 * j, apart, ahead, kind, 2, 2)
        elif rows == 3:
            mix(codes, stride, scaled, 4 * _PIECE, count, out + 4 * j, apart, ahead, kind, 3, 2)
        else:
            mix(codes, stride, scaled, 4 * _PIECE, count, out + 4 * j, apart, ahead, kind, 4, 2)
        scales += 2 * block


@numba.njit(**OPTIONS)
def _attend(query, apart, out, out_apart, rows, position, step, table, head, cache, scores, next_run, next_head, kind):
    block, size, window = read_int(cache + BLOCK), read_int(cache + SIZE), read_int(cache + WINDOW)
    floats, stride = read_int(cache + FLOATS), code_bytes(size, kind)
    group = _header_bytes(size, kind) + 16 * stride
    at = read_int(cache + LAYER) + head * read_int(cache + HEAD)
    start = max(0, position + 1 - window) // 16 * 16 if window > 0 else 0
    end = position + step * (rows - 1) + 1
    wide = (end - start + 15) // 16 * 16
    row = 4 * wide
    panels = scores + rows * row + 64
    tile = min(4 if rows == 3 else rows, read_int(cache + TILE))
    _quantize(query, apart, rows, panels, tile, size, read_float(floats + 4), read_int(cache + QUANTIZE), kind)
    scaled = panels + 4 * _QUERY * (size // 32)
    values = at + read_int(cache + VALUES)
    early, blocks = blocks_ahead(cache), (end - 1) // block + 1
    s = start
    while s < end:
        count = min(end - s, block - s % block)
        key = read_int(table + 8 * (s // block)) + at + s % block // 16 * group
        after = block_ahead(table, s // block + early, start // block, blocks, cache, head, next_run, next_head)
        _scores(panels, tile, key, size, scores + 4 * (s - start), row, rows, count, after - key, kind)
        s += count
    weigh_rows(scores, row, rows, position, step, start, window, wide, read_float(floats + 8))
    clear_rows(out, out_apart, rows, size)
    sums = panels  # of minima; queries are not needed any more
    for at_sum in range(0, 4 * rows * (size // 32), 4):
        write_float(sums + at_sum, np.float32(0))
    s = start
    while s < end:
        count = min(end - s, block - s % block, _PIECE)
        first = read_int(table + 8 * (s // block)) + values
        value, scales = first + s % block * stride, first + block * stride + 2 * (s % block)
        number = s // block + early + blocks - start // block
        after = (
            block_ahead(table, number, start // block, blocks, cache, head, next_run, next_head) + s % block * stride
        )
        weights = scores + 4 * (s - start)
        _mix(value, size, scales, block, weights, row, rows, count, out, out_apart, after - value, scaled, kind)
        if _has_minima(kind):
            _add_minima(scales + block * size // 16, size, block, weights, row, rows, count, sums)
        s += count
    if _has_minima(kind):
        _take_minima(out, out_apart, rows, size, sums)
    divide_rows(out, out_apart, rows, size, scores + rows * row)


@kernel(13)
def attend_q8_0(query, apart, out, out_apart, rows, position, step, table, head, cache, scores, next_run, next_head):
    """Attention over a cache in q8_0; see ``attend_rows``."""
    _attend(query, apart, out, out_apart, rows, position, step, table, head, cache, scores, next_run, next_head, None)


@kernel(13)
def attend_q4_0(query, apart, out, out_apart, rows, position, step, table, head, cache, scores, next_run, next_head):
    """Attention over a cache in q4_0, whose queries are rotated; see ``attend_rows``."""
    _attend(query, apart, out, out_apart, rows, position, step, table, head, cache, scores, next_run, next_head, ())
    for row in range(rows):
        spread_evenly(out + out_apart * row, read_int(cache + SIZE))


@kernel(13)
def attend_q5_1(query, apart, out, out_apart, rows, position, step, table, head, cache, scores, next_run, next_head):
    """Attention over a cache in q5_1, whose queries are rotated; see ``attend_rows``."""
    _attend(query, apart, out, out_apart, rows, position, step, table, head, cache, scores, next_run, next_head, (1,))
    for row in range(rows):
        spread_evenly(out + out_apart * row, read_int(cache + SIZE))
