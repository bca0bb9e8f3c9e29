"""Choose codes of weights so that their errors cancel in what the weight multiplies.

``spread_errors`` rounds a column after the other and corrects the columns that follow for the error (GPTQ,
arXiv:2210.17323); ``descend`` then changes codes and scales one at a time while that lowers ``d H d``, d being the
change of a row and H [columns, columns] what it meets. Rows do not see each other.
"""

from __future__ import annotations

import numba
import numpy as np
import numpy.typing as npt

from rung.formats.codec import Floats
from rung.formats.grids import Grid
from rung.kernels.cpu.compiled import OPTIONS, kernel
from rung.kernels.cpu.thread_pool import run
from rung.kernels.isa.generic import fetch_add, load, multiply_add, spread, store, total, write_float, zero
from rung.kernels.isa.scalar import floats, half, numbers, read_u8, read_u16, write_half, write_u8

_NAMES = "counter rows columns group weights matrix scales minima codes levels count regular free affine scratch room"
#: Words of both kernels: the counter that rows are divided by; rows, columns (a multiple of 16) and columns of a group;
#: addresses of float32: the weights [rows, columns], which are overwritten (``descend``: ``d H``), a matrix [columns,
#: columns], the scales and minima [rows, groups]; the codes uint8 [rows, columns]; the levels, their number, and
#: whether they are one apart; whether scales may be any float16 (1) or float32 (2), and whether minima too; scratch,
#: and its bytes for a thread (``room``).
WORDS = tuple(_NAMES.split())
(_ROWS, _COLUMNS, _GROUP, _WEIGHTS, _MATRIX, _SCALES, _MINIMA, _CODES, _LEVELS, _COUNT, _REGULAR, _FREE, _AFFINE,
 _SCRATCH, _ROOM) = range(1, 16)  # fmt: skip
#: Sweeps of descent; a third one gains less than 1 %.
_SWEEPS = 2
#: Rows that are worked on at once, so that a row of the matrix is read from a cache.
_TILE = 8
#: Rows of one product with a matrix: BLAS sums a row in an order that depends on how many there are and where it lies.
PRODUCT_ROWS = 64
_HALF, _NONE, _LARGEST = np.float32(0.5), np.float32(0), np.float32(65504)


def room(group: int) -> int:
    """Return the bytes of scratch of a thread for groups of so many columns: a value, and a direction."""
    return 64 + 64 * -(-group // 16)


@numba.njit(**OPTIONS)
def _nearest(value, levels, count, regular):
    """Return the number of the level nearest to a value."""
    if regular:
        code = int(np.floor(value - levels[0] + _HALF))
        return min(max(code, 0), count - 1)
    code = 0
    while code < count - 1 and value > _HALF * (levels[code] + levels[code + 1]):
        code += 1
    return code


@numba.njit(**OPTIONS)
def _add(out, factor, x, begin, count):
    """Add ``factor`` times x to out, from ``begin`` on, both float32 [count]."""
    wide = spread(factor)
    for at in range(4 * begin, 4 * count, 64):
        store(out + at, multiply_add(wide, load(x + at), load(out + at)))


@kernel(3)
def spread_errors(words, thread, threads):
    """For ``parallel.run``. The matrix is the upper Cholesky factor of the inverse of H."""
    w = numbers(words)
    columns, group, count, regular = w[_COLUMNS], w[_GROUP], w[_COUNT], w[_REGULAR]
    levels, scales, minima = floats(w[_LEVELS]), floats(w[_SCALES]), floats(w[_MINIMA])
    weights, factor, groups = floats(w[_WEIGHTS]), floats(w[_MATRIX]), columns // group
    while True:
        first = fetch_add(words, 1) * _TILE
        if first >= w[_ROWS]:
            break
        for j in range(columns):
            line, inverse = w[_MATRIX] + 4 * columns * j, np.float32(1) / factor[columns * j + j]
            for row in range(first, min(first + _TILE, w[_ROWS])):
                address, at = row * columns + j, row * groups + j // group
                scale, low, value, code = scales[at], minima[at], weights[address], 0
                if scale != _NONE:
                    code = _nearest((value + low) / scale, levels, count, regular)
                write_u8(w[_CODES] + address, code)
                error = (value - (scale * levels[code] - low)) * inverse
                _add(w[_WEIGHTS] + 4 * row * columns, -error, line, j // 16 * 16, columns)


@numba.njit(**OPTIONS)
def _move(w, row, begin, direction, columns, group):
    """Return by how much a direction [group] of the columns from ``begin`` on should be gone to lower ``d H d``."""
    gradient = w[_WEIGHTS] + 4 * (row * columns + begin)
    slope, curve, values = zero(), _NONE, floats(direction)
    for at in range(0, 4 * group, 64):
        slope = multiply_add(load(gradient + at), load(direction + at), slope)
    for k in range(group):
        line, sums = w[_MATRIX] + 4 * (columns * (begin + k) + begin), zero()
        for at in range(0, 4 * group, 64):
            sums = multiply_add(load(line + at), load(direction + at), sums)
        curve += values[k] * total(sums)
    return -total(slope) / curve if curve > _NONE else _NONE


@numba.njit(**OPTIONS)
def _go(w, row, begin, direction, step, columns, group):
    """Go so far: the gradient of the row changes."""
    values = floats(direction)
    for k in range(group):
        line = w[_MATRIX] + 4 * columns * (begin + k)
        _add(w[_WEIGHTS] + 4 * row * columns, step * values[k], line, 0, columns)


@numba.njit(**OPTIONS)
def _rounded(address, value):
    """Return a value as float16 stores it."""
    write_half(address, min(max(value, -_LARGEST), _LARGEST))
    return half(read_u16(address))


@numba.njit(**OPTIONS)
def _fit_group(w, row, number, columns, group, work):
    """Fit the scale, and the minimum, of a group to its codes."""
    levels, groups = floats(w[_LEVELS]), columns // group
    scales, minima, at = floats(w[_SCALES]), floats(w[_MINIMA]), row * groups + number
    begin, direction = number * group, work + 64
    for k in range(group):
        write_float(direction + 4 * k, levels[read_u8(w[_CODES] + row * columns + begin + k)])
    before = scales[at]
    after = before + _move(w, row, begin, direction, columns, group)
    if w[_FREE] == 1:
        after = _rounded(work, after)
    if after != before and after * before > _NONE:
        _go(w, row, begin, direction, after - before, columns, group)
        scales[at] = after
    if w[_AFFINE]:
        for k in range(group):
            write_float(direction + 4 * k, np.float32(1))
        low = minima[at]
        after = -_rounded(work, -low + _move(w, row, begin, direction, columns, group))
        if after != low:
            _go(w, row, begin, direction, low - after, columns, group)
            minima[at] = after


@kernel(3)
def descend(words, thread, threads):
    """For ``parallel.run``: one sweep over all columns. The matrix is H, and the weights are ``d H``."""
    w = numbers(words)
    columns, group, count, regular = w[_COLUMNS], w[_GROUP], w[_COUNT], w[_REGULAR]
    levels, scales = floats(w[_LEVELS]), floats(w[_SCALES])
    gradient, matrix, groups = floats(w[_WEIGHTS]), floats(w[_MATRIX]), columns // group
    work = w[_SCRATCH] + w[_ROOM] * thread
    while True:
        first = fetch_add(words, 1) * _TILE
        if first >= w[_ROWS]:
            break
        for j in range(columns):
            line, inverse = w[_MATRIX] + 4 * columns * j, np.float32(1) / matrix[columns * j + j]
            for row in range(first, min(first + _TILE, w[_ROWS])):
                address = row * columns + j
                scale, code = scales[row * groups + j // group], read_u8(w[_CODES] + address)
                if scale != _NONE:
                    better = levels[code] - gradient[address] * inverse / scale
                    chosen = _nearest(better, levels, count, regular)
                    if chosen != code:
                        write_u8(w[_CODES] + address, chosen)
                        step = scale * (levels[chosen] - levels[code])
                        _add(w[_WEIGHTS] + 4 * row * columns, step, line, 0, columns)
            if w[_FREE] and (j + 1) % group == 0:
                for row in range(first, min(first + _TILE, w[_ROWS])):
                    _fit_group(w, row, j // group, columns, group, work)


def choose_codes(found: Grid, weights: Floats, hessian: Floats, factor: Floats, threads: int) -> npt.NDArray[np.uint8]:
    """Return the codes [rows, columns] of weights; free scales of the grid are changed in place.

    ``hessian`` is H, ``factor`` the upper Cholesky factor of its inverse, both f32 [columns, columns].
    """
    codes = np.zeros(weights.shape, np.uint8)
    work = weights.copy()
    _call(spread_errors.address, work, factor, found, codes, threads)
    for _ in range(_SWEEPS):
        work = _multiplied(found.values(codes) - weights, hessian)
        _call(descend.address, work, hessian, found, codes, threads)
    return codes


def _multiplied(rows: Floats, matrix: Floats) -> Floats:
    """Return rows f32 [count, columns] times a matrix, each with the bytes that it has in any whole number of blocks of
    ``PRODUCT_ROWS``."""
    found = np.empty_like(rows)
    for first in range(0, len(rows), PRODUCT_ROWS):
        block = rows[first : first + PRODUCT_ROWS]
        padded = np.pad(block, ((0, PRODUCT_ROWS - len(block)), (0, 0)))
        found[first : first + PRODUCT_ROWS] = (padded @ matrix)[: len(block)]
    return found


def _call(function: int, work: Floats, matrix: Floats, found: Grid, codes: npt.NDArray[np.uint8], threads: int) -> None:
    rows, columns = work.shape
    levels = np.ascontiguousarray(found.levels, np.float32)
    regular = bool((np.diff(levels) == 1).all())
    each = room(found.group)
    scratch = np.empty(threads * each, np.uint8)
    arrays = (work, matrix, found.scales, found.minima, codes, levels)
    assert all(array.flags.c_contiguous for array in arrays)
    addresses = [array.ctypes.data for array in arrays]
    ways = (len(levels), regular, found.free * (1 + found.wide), found.free and found.affine)
    run(function, [0, rows, columns, found.group, *addresses, *map(int, ways), scratch.ctypes.data, each], threads)
