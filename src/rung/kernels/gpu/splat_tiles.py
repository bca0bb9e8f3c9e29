"""Splats laid over each other in tiles of 16 x 16 pixels and taken off again for their gradients, in Triton.

One program a tile, its splats one after the other; float32, without matrix units and without atomic additions: what a
tile tells of a splat it writes to a place of its own, and ``sum_parts`` adds those of each splat in their order, so the
same inputs give the same bits.

A splat is a record of ``RECORD`` float32: x, y in pixels, xx, xy, yy of the inverse covariance, opacity, red, green,
blue, depth. The state of a tile is ``STATE`` x 256 float32: red, green, blue, depth, what is left of the light behind,
and the number after the last splat taken. Thresholds are those of ``rung.ops.rasterize``.
"""

from __future__ import annotations

import triton
import triton.language as tl

RECORD, STATE = 10, 6
#: What a tile tells of a splat: sums of the loss's derivative by its power, alone and times x, y, xx, xy, yy (offsets
#: from the center), and its derivatives by red, green, blue and depth; and where they are asked for, the sums of the
#: absolute derivatives by the center.
PARTS, UNSIGNED = 10, 2
#: Splats between two looks whether any pixel takes more.
_TOGETHER = tl.constexpr(32)
_RECORD, _STATE, _PARTS, _PIXELS, _TILE = (tl.constexpr(value) for value in (RECORD, STATE, PARTS, 256, 16))


@triton.jit
def _alpha(record, x, y):
    """Opacity at the pixels as it is and held to the most, whether it counts, and the offsets from the center."""
    dx = x - tl.load(record)
    dy = y - tl.load(record + 1)
    xx, xy, yy = tl.load(record + 2), tl.load(record + 3), tl.load(record + 4)
    power = 0.5 * (xx * dx * dx + yy * dy * dy) + xy * dx * dy
    raw = tl.load(record + 5) * tl.exp(-power)
    alpha = tl.minimum(raw, 0.999)
    return raw, alpha, (power >= 0) & (alpha >= 1 / 255), dx, dy


@triton.jit
def _unsigned(record, slope, dx, dy, kept: tl.constexpr):
    """The absolute derivatives by the center, or zeros where nobody asked."""
    over, down = tl.zeros_like(slope), tl.zeros_like(slope)
    if kept > _PARTS:
        xx, xy, yy = tl.load(record + 2), tl.load(record + 3), tl.load(record + 4)
        over, down = tl.abs(slope * (xx * dx + xy * dy)), tl.abs(slope * (xy * dx + yy * dy))
    return over, down


@triton.jit
def _sixteen(a, b, c, d, e, f, g, h, i, j, k, m):
    """The sums of twelve vectors over pixels, and four zeros: in one reduction, so that threads wait for one."""
    zero = tl.zeros_like(a)
    # a value's number has the bits of its places: the last joined is the lowest
    low = tl.join(tl.join(tl.join(a, i), tl.join(e, zero)), tl.join(tl.join(c, k), tl.join(g, zero)))
    high = tl.join(tl.join(tl.join(b, j), tl.join(f, zero)), tl.join(tl.join(d, m), tl.join(h, zero)))
    return tl.sum(tl.reshape(tl.join(low, high), (_PIXELS, 16)), 0)


@triton.jit
def composite(records, listed, starts, states, across, width, height):
    """Fills the states of all tiles; ``starts`` (int64, one more than tiles) are places in ``listed`` (int64)."""
    tile = tl.program_id(0)
    pixel = tl.arange(0, _PIXELS)
    column = tile % across * _TILE + pixel % _TILE
    row = tile // across * _TILE + pixel // _TILE
    x, y = column.to(tl.float32) + 0.5, row.to(tl.float32) + 0.5
    zero = tl.zeros((_PIXELS,), tl.float32)
    red, green, blue, depth, last = zero, zero, zero, zero, zero
    # below zero a pixel takes no more: those beyond the edge from the start
    left = tl.where((column < width) & (row < height), zero + 1, zero - 1)
    begin, end = tl.load(starts + tile), tl.load(starts + tile + 1)
    slot = begin
    takes = 1
    while (slot < end) & (takes > 0):
        stop = tl.minimum(slot + _TOGETHER, end)
        while slot < stop:
            record = records + tl.load(listed + slot) * _RECORD
            _, alpha, counts, _, _ = _alpha(record, x, y)
            counts = counts & (left > 0)
            after = left * (1 - alpha)
            taken = counts & (after > 1e-4)
            weight = tl.where(taken, alpha * left, zero)
            red += weight * tl.load(record + 6)
            green += weight * tl.load(record + 7)
            blue += weight * tl.load(record + 8)
            depth += weight * tl.load(record + 9)
            last = tl.where(taken, (slot - begin + 1).to(tl.float32), last)
            left = tl.where(taken, after, tl.where(counts, -left, left))
            slot += 1
        takes = tl.max((left > 0).to(tl.int32), 0)
    state = states + tile.to(tl.int64) * (_STATE * _PIXELS) + pixel
    tl.store(state, red)
    tl.store(state + _PIXELS, green)
    tl.store(state + 2 * _PIXELS, blue)
    tl.store(state + 3 * _PIXELS, depth)
    tl.store(state + 4 * _PIXELS, tl.abs(left))
    tl.store(state + 5 * _PIXELS, last)


@triton.jit
def blame(records, listed, entries, starts, states, gradients, parts, across, kept: tl.constexpr):
    """Takes the splats off again, last first, and writes what each tile tells of each at ``entries``.

    ``gradients`` are as the states, of red, green, blue, depth, alpha and nothing; beyond the picture's edge zeros.
    ``parts`` [listed, kept] are zeros before; ``kept`` is PARTS or PARTS + UNSIGNED.
    """
    tile = tl.program_id(0)
    pixel = tl.arange(0, _PIXELS)
    x = (tile % across * _TILE + pixel % _TILE).to(tl.float32) + 0.5
    y = (tile // across * _TILE + pixel // _TILE).to(tl.float32) + 0.5
    at = tile.to(tl.int64) * (_STATE * _PIXELS) + pixel
    left = tl.load(states + at + 4 * _PIXELS)
    last = tl.load(states + at + 5 * _PIXELS)
    by_red, by_green = tl.load(gradients + at), tl.load(gradients + at + _PIXELS)
    by_blue, by_depth = tl.load(gradients + at + 2 * _PIXELS), tl.load(gradients + at + 3 * _PIXELS)
    by_alpha = tl.load(gradients + at + 4 * _PIXELS)
    field = tl.arange(0, 16)
    zero = tl.zeros((_PIXELS,), tl.float32)
    loss = zero
    begin = tl.load(starts + tile)
    number = tl.max(last, 0).to(tl.int32)
    while number > 0:
        slot = begin + number - 1
        record = records + tl.load(listed + slot) * _RECORD
        raw, alpha, counts, dx, dy = _alpha(record, x, y)
        counts = counts & (number.to(tl.float32) <= last)
        before = tl.where(counts, left / (1 - alpha), left)
        value = by_red * tl.load(record + 6) + by_green * tl.load(record + 7) + by_blue * tl.load(record + 8)
        value += by_depth * tl.load(record + 9) + by_alpha
        rise = value - loss
        weight = tl.where(counts, alpha * before, zero)
        slope = tl.where(raw <= 0.999, -weight * rise, zero)
        loss = tl.where(counts, loss + alpha * rise, loss)
        left = before
        sums = _sixteen(
            *(slope, slope * dx, slope * dy, slope * dx * dx, slope * dx * dy, slope * dy * dy),
            *(weight * by_red, weight * by_green, weight * by_blue, weight * by_depth),
            *_unsigned(record, slope, dx, dy, kept),
        )
        part = parts + tl.load(entries + slot) * kept
        tl.store(part + field, sums, mask=field < kept)
        number -= 1


@triton.jit
def sum_parts(parts, starts, sums, count, kept: tl.constexpr, block: tl.constexpr):
    """Adds the rows of ``parts`` between ``starts`` (int64 [count + 1]) to ``sums`` [count, kept], in their order."""
    index = tl.program_id(0) * block + tl.arange(0, block)
    known = index < count
    begin = tl.load(starts + index, mask=known, other=0)
    rows = tl.load(starts + index + 1, mask=known, other=0) - begin
    field = tl.arange(0, 16)[None, :]
    own = (field < kept) & known[:, None]
    total = tl.zeros((block, 16), tl.float32)
    most = tl.max(rows, 0)
    row = 0
    while row < most:
        there = own & (row < rows)[:, None]
        total += tl.load(parts + (begin + row)[:, None] * kept + field, mask=there, other=0.0)
        row += 1
    tl.store(sums + index[:, None].to(tl.int64) * kept + field, total, mask=own)
