"""Splats sorted into tiles of 16 x 16 pixels, laid over each other there, and taken off again for the gradients.

All kernels take the words named in ``WORDS``: addresses, but for the sizes. A tile's rows are states of
``rung.kernels.isa.splats``, one after the other.
"""

from __future__ import annotations

import math

import numba
import numpy as np

from rung.kernels.cpu.compiled import OPTIONS, kernel
from rung.kernels.cpu.splat.projection import GAINS
from rung.kernels.isa.generic import (
    add,
    fetch_add,
    larger,
    load,
    multiply,
    multiply_add,
    spread,
    store,
    subtract,
    total,
    zero,
)
from rung.kernels.isa.scalar import floats, numbers, shorts
from rung.kernels.isa.splats import OUTPUTS, STATE, blame_row, composite_row, start_behind

_NAMES = (
    "counter across down width height visible order records tiles starts tile_starts listed entries "
    "states lanes gradients gains scratch unsigned"
)
#: Words of all kernels: the counter that work is divided by; sizes, in tiles and in pixels, and how many splats touch a
#: tile; of those their indices by depth (int64); records, tiles and first entry of each splat (see
#: ``splat_project.WORDS``); where each tile's list begins (int64, one more than tiles), each list's splats and the
#: entry they have there (int64); states of all rows; 0 1 2 ... 15 as float32; and on the way back the gradients of the
#: outputs, what tiles tell of splats, scratch of ``SCRATCH`` bytes for each thread, and, if not 0, where the sums of
#: absolute gradients by the centers go ([tiles, 2], zeros before).
WORDS = tuple(_NAMES.split())
(_ACROSS, _DOWN, _WIDTH, _HEIGHT, _VISIBLE, _ORDER, _RECORDS, _TILES, _STARTS) = range(1, 10)
(_TILE_STARTS, _LISTED, _ENTRIES, _STATES, _LANES, _GRADIENTS, _GAINS, _SCRATCH, _UNSIGNED) = range(10, 19)

TILE = 16
ROW = 64 * STATE
SCRATCH = 2 * 64 * TILE + 2 * 64
_ZERO, _ONE = np.float32(0.0), np.float32(1.0)
_HALF = np.float32(0.5)


@kernel(3)
def count_tiles(words, thread, threads):
    """Counts, for each tile, the splats that touch it, into the entry after its own of ``tile_starts``."""
    w = numbers(words)
    order, counts = numbers(w[_ORDER]), numbers(w[_TILE_STARTS])
    across, down = w[_ACROSS], w[_DOWN]
    stripe = -(-down // threads)
    while True:
        top = fetch_add(words, 1) * stripe
        if top >= down:
            break
        for rank in range(w[_VISIBLE]):
            tiles = shorts(w[_TILES] + 16 * order[rank])
            for y in range(max(tiles[2], top), min(tiles[3], top + stripe)):
                for x in range(tiles[0], tiles[1]):
                    counts[y * across + x + 1] += 1


@kernel(3)
def list_tiles(words, thread, threads):
    """Lists the splats of each tile by depth; moves ``tile_starts``, without its last entry, one tile on."""
    w = numbers(words)
    order, next_slots = numbers(w[_ORDER]), numbers(w[_TILE_STARTS])
    listed, entries, starts = numbers(w[_LISTED]), numbers(w[_ENTRIES]), numbers(w[_STARTS])
    across, down = w[_ACROSS], w[_DOWN]
    stripe = -(-down // threads)
    while True:
        top = fetch_add(words, 1) * stripe
        if top >= down:
            break
        for rank in range(w[_VISIBLE]):
            index = order[rank]
            tiles = shorts(w[_TILES] + 16 * index)
            wide = tiles[1] - tiles[0]
            for y in range(max(tiles[2], top), min(tiles[3], top + stripe)):
                for x in range(tiles[0], tiles[1]):
                    tile = y * across + x
                    at = next_slots[tile]
                    next_slots[tile] = at + 1
                    listed[at] = index
                    entries[at] = starts[index] + (y - tiles[2]) * wide + x - tiles[0]


@numba.njit(**OPTIONS)
def _rows(record, top, live):
    """The rows of a tile that a splat reaches: from, to, and its height above the first pixel's center."""
    height = float(record[13]) + record[1] - top - 0.5
    first = max(math.ceil(height - record[11]), 0)
    return first, min(math.floor(height + record[11]) + 1, live)


@numba.njit(**OPTIONS)
def _across(record, lanes, left):
    """Offsets of 16 pixels from the splat's center: exact but for the center's own rounding."""
    whole = np.float32(left - int(record[12])) + _HALF
    return subtract(add(load(lanes), spread(whole)), spread(record[0]))


@numba.njit(**OPTIONS)
def _down(record, row):
    return (np.float32(row - int(record[13])) + _HALF) - record[1]


@numba.njit(**OPTIONS)
def _begin(states, lanes, wide, live):
    """All of the light is left; a pixel beyond the edge takes nothing."""
    edge = np.float32(wide)
    for row in range(TILE):
        at = states + ROW * row
        for vector in range(1, STATE):
            store(at + 64 * vector, zero())
        left = floats(at)
        for lane in range(TILE):
            left[lane] = _ONE if lane < edge and row < live else -_ONE


@kernel(3)
def composite(words, thread, threads):
    """Fills the states of all rows."""
    w = numbers(words)
    starts, listed, lanes = numbers(w[_TILE_STARTS]), numbers(w[_LISTED]), w[_LANES]
    while True:
        tile = fetch_add(words, 1)
        if tile >= w[_ACROSS] * w[_DOWN]:
            break
        left, top = tile % w[_ACROSS] * TILE, tile // w[_ACROSS] * TILE
        live = min(TILE, w[_HEIGHT] - top)
        states = w[_STATES] + ROW * TILE * tile
        _begin(states, lanes, min(TILE, w[_WIDTH] - left), live)
        open_rows = (1 << live) - 1
        begin = starts[tile]
        for entry in range(begin, starts[tile + 1]):
            if open_rows == 0:
                break
            address = w[_RECORDS] + 64 * listed[entry]
            record = floats(address)
            first, last = _rows(record, top, live)
            dx, number = _across(record, lanes, left), np.float32(entry - begin + 1)
            for row in range(first, last):
                if open_rows >> row & 1 and not composite_row(
                    states + ROW * row, address, dx, _down(record, top + row), number
                ):
                    open_rows &= ~(1 << row)


@numba.njit(**OPTIONS)
def _blame(states, gradients, behind, scratch, address, dx, top, first, last, number, gains, unsigned):
    """Takes one splat off the rows of a tile and writes what the tile tells of it."""
    record = floats(address)
    s, sx, sy, sxx, sxy, syy = zero(), zero(), zero(), zero(), zero(), zero()
    red, green, blue, depth = zero(), zero(), zero(), zero()
    ax, ay = zero(), zero()
    for row in range(first, last):
        dy, gradient = _down(record, top + row), gradients + 64 * OUTPUTS * row
        if blame_row(states + ROW * row, behind + 128 * row, gradient, address, dx, dy, number, scratch):
            weight, slope, down = load(scratch), load(scratch + 64), spread(dy)
            red = multiply_add(weight, load(gradient), red)
            green = multiply_add(weight, load(gradient + 64), green)
            blue = multiply_add(weight, load(gradient + 128), blue)
            depth = multiply_add(weight, load(gradient + 192), depth)
            over, under = multiply(slope, dx), multiply(slope, down)
            s, sx, sy = add(s, slope), add(sx, over), add(sy, under)
            sxx, sxy = multiply_add(over, dx, sxx), multiply_add(over, down, sxy)
            syy = multiply_add(under, down, syy)
            if unsigned:
                bend = spread(record[3])
                gx = multiply_add(bend, under, multiply(spread(record[2] + record[2]), over))
                gy = multiply_add(bend, over, multiply(spread(record[4] + record[4]), under))
                ax = add(ax, larger(gx, subtract(zero(), gx)))
                ay = add(ay, larger(gy, subtract(zero(), gy)))
    gains[0], gains[1], gains[2] = total(s), total(sx), total(sy)
    gains[3], gains[4], gains[5] = total(sxx), total(sxy), total(syy)
    gains[6], gains[7], gains[8], gains[9] = total(red), total(green), total(blue), total(depth)
    if unsigned:
        unsigned_sums = floats(unsigned)
        unsigned_sums[0], unsigned_sums[1] = total(ax), total(ay)


@numba.njit(**OPTIONS)
def _last(states, live):
    """How many splats of the list any pixel of the tile came to."""
    most = _ZERO
    for row in range(live):
        numbers_taken = floats(states + ROW * row + 320)
        for lane in range(TILE):
            most = max(most, numbers_taken[lane])
    return int(most)


@kernel(3)
def blame(words, thread, threads):
    """Writes what every tile tells of every splat it has listed; zeros where no pixel came to it."""
    w = numbers(words)
    starts, listed, entries, lanes = numbers(w[_TILE_STARTS]), numbers(w[_LISTED]), numbers(w[_ENTRIES]), w[_LANES]
    behind = w[_SCRATCH] + SCRATCH * thread
    while True:
        tile = fetch_add(words, 1)
        if tile >= w[_ACROSS] * w[_DOWN]:
            break
        left, top = tile % w[_ACROSS] * TILE, tile // w[_ACROSS] * TILE
        live = min(TILE, w[_HEIGHT] - top)
        states, gradients = w[_STATES] + ROW * TILE * tile, w[_GRADIENTS] + 64 * OUTPUTS * TILE * tile
        for row in range(live):
            start_behind(behind + 128 * row, states + ROW * row)
        begin, taken = starts[tile], _last(states, live)
        for position in range(starts[tile + 1] - 1, begin - 1, -1):
            gains = floats(w[_GAINS] + 4 * GAINS * entries[position])
            if position >= begin + taken:
                for entry in range(GAINS):
                    gains[entry] = _ZERO
                continue
            address = w[_RECORDS] + 64 * listed[position]
            record = floats(address)
            first, last = _rows(record, top, live)
            dx, number = _across(record, lanes, left), np.float32(position - begin + 1)
            scratch = behind + 128 * TILE
            unsigned = w[_UNSIGNED] + 8 * entries[position] if w[_UNSIGNED] else 0
            _blame(states, gradients, behind, scratch, address, dx, top, first, last, number, gains, unsigned)
