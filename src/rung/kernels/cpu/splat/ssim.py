"""L1 and SSIM of two pictures with their gradient, on several threads: windows are weighted down, then across.

Both kernels take the words named in ``WORDS``: addresses, but for the sizes. A picture's row is one of ``stride``
float32, red, green, blue of each pixel, then zeros; ``stride`` is a multiple of 16.
"""

from __future__ import annotations

import numba
import numpy as np

from rung.kernels.cpu.compiled import OPTIONS, kernel
from rung.kernels.isa.generic import (
    add,
    divide,
    fetch_add,
    load,
    load_spread,
    multiply,
    multiply_add,
    sign,
    spread,
    store,
    subtract,
    total,
    zero,
)
from rung.kernels.isa.scalar import doubles, floats, numbers

_NAMES = "counter height wide stride window weights made truth slopes inside sums scratch shares gradient"
#: Words of both kernels: the counter that rows are divided by; rows of the pictures, their floats that are no padding,
#: and the stride; the side of a window and its weights; the pictures [height, stride]; slopes of SSIM by the weighted
#: means of x, xx and xy [3, height, stride], of which a window's row is the one it begins at; 1 for each float at which
#: a window begins, else 0 [stride]; sums of rows (float64 [height, 2]: of |x - y|, of SSIM); scratch of
#: ``5 (stride + 2 MARGIN)`` float32 for each thread, zeros before ``back``; the shares of L1 and of SSIM for each
#: float, then SSIM's two constants (float32 [4]); and the gradient [height, stride].
WORDS = tuple(_NAMES.split())
(_HEIGHT, _WIDE, _STRIDE, _WINDOW, _WEIGHTS, _RENDERED, _TRUTH) = range(1, 8)
(_SLOPES, _INSIDE, _SUMS, _SCRATCH, _SHARES, _GRADIENT) = range(8, 14)
#: Floats on either side of a row of scratch.
MARGIN = 48
_TWO = np.float32(2.0)


@numba.njit(**OPTIONS)
def _down(w, row, scratch, long):
    """Weighted sums of x, y, xx, yy and xy over the rows of a window, for a whole row."""
    step = 4 * w[_STRIDE]
    for at in range(0, 4 * w[_STRIDE], 64):
        mx, my, xx, yy, xy = zero(), zero(), zero(), zero(), zero()
        for tap in range(w[_WINDOW]):
            weight = load_spread(w[_WEIGHTS] + 4 * tap)
            x = load(w[_RENDERED] + step * (row + tap) + at)
            y = load(w[_TRUTH] + step * (row + tap) + at)
            wx, wy = multiply(weight, x), multiply(weight, y)
            mx, my = add(mx, wx), add(my, wy)
            xx, yy, xy = multiply_add(wx, x, xx), multiply_add(wy, y, yy), multiply_add(wx, y, xy)
        store(scratch + at, mx)
        store(scratch + long + at, my)
        store(scratch + 2 * long + at, xx)
        store(scratch + 3 * long + at, yy)
        store(scratch + 4 * long + at, xy)


@numba.njit(**OPTIONS)
def _similar(w, row, at, mx, my, xx, yy, xy):
    """SSIM of 16 windows; writes its slopes."""
    plane, target = 4 * w[_STRIDE] * w[_HEIGHT], w[_SLOPES] + 4 * w[_STRIDE] * row + at
    inside, two = load(w[_INSIDE] + at), spread(_TWO)
    c1, c2 = load_spread(w[_SHARES] + 8), load_spread(w[_SHARES] + 12)
    both, squares = multiply(mx, my), add(multiply(mx, mx), multiply(my, my))
    top_a = multiply_add(two, both, c1)
    top_b = multiply_add(two, subtract(xy, both), c2)
    low_a = add(squares, c1)
    low_b = add(subtract(add(xx, yy), squares), c2)
    low = divide(inside, multiply(low_a, low_b))
    near = multiply(multiply(top_a, top_b), low)
    by_xx = subtract(zero(), divide(near, low_b))
    by_mx = multiply(multiply(my, subtract(top_b, top_a)), low)
    by_mx = multiply(two, subtract(by_mx, multiply(mx, add(divide(near, low_a), by_xx))))
    store(target, by_mx)
    store(target + plane, by_xx)
    store(target + 2 * plane, multiply(two, multiply(top_a, low)))
    return near


@kernel(3)
def compare(words, thread, threads):
    """Fills slopes, and the sums of SSIM."""
    w = numbers(words)
    long = 4 * (w[_STRIDE] + 2 * MARGIN)
    scratch, sums = w[_SCRATCH] + 5 * long * thread, doubles(w[_SUMS])
    last = w[_WIDE] - 3 * (w[_WINDOW] - 1)
    while True:
        row = fetch_add(words, 1)
        if row > w[_HEIGHT] - w[_WINDOW]:
            break
        _down(w, row, scratch, long)
        near = zero()
        for at in range(0, 4 * last, 64):
            mx, my, xx, yy, xy = zero(), zero(), zero(), zero(), zero()
            for tap in range(w[_WINDOW]):
                weight, here = load_spread(w[_WEIGHTS] + 4 * tap), scratch + at + 12 * tap
                mx = multiply_add(weight, load(here), mx)
                my = multiply_add(weight, load(here + long), my)
                xx = multiply_add(weight, load(here + 2 * long), xx)
                yy = multiply_add(weight, load(here + 3 * long), yy)
                xy = multiply_add(weight, load(here + 4 * long), xy)
            near = add(near, _similar(w, row, at, mx, my, xx, yy, xy))
        sums[2 * row + 1] = total(near)


@numba.njit(**OPTIONS)
def _up(w, row, scratch, long, last):
    """Slopes of all windows over a row, each with its row's weight."""
    step, plane = 4 * w[_STRIDE], 4 * w[_STRIDE] * w[_HEIGHT]
    begin, end = max(row - w[_WINDOW] + 1, 0), min(row, w[_HEIGHT] - w[_WINDOW]) + 1
    for at in range(0, 4 * last, 64):
        mx, xx, xy = zero(), zero(), zero()
        for top in range(begin, end):
            weight, here = load_spread(w[_WEIGHTS] + 4 * (row - top)), w[_SLOPES] + step * top + at
            mx = multiply_add(weight, load(here), mx)
            xx = multiply_add(weight, load(here + plane), xx)
            xy = multiply_add(weight, load(here + 2 * plane), xy)
        store(scratch + at, mx)
        store(scratch + long + at, xx)
        store(scratch + 2 * long + at, xy)


@kernel(3)
def back(words, thread, threads):
    """Fills the gradient, and the sums of differences."""
    w = numbers(words)
    long = 4 * (w[_STRIDE] + 2 * MARGIN)
    scratch, sums = w[_SCRATCH] + 5 * long * thread + 4 * MARGIN, doubles(w[_SUMS])
    shares, last = floats(w[_SHARES]), w[_WIDE] - 3 * (w[_WINDOW] - 1)
    while True:
        row = fetch_add(words, 1)
        if row >= w[_HEIGHT]:
            break
        _up(w, row, scratch, long, last)
        away = zero()
        for at in range(0, 4 * w[_STRIDE], 64):
            mx, xx, xy = zero(), zero(), zero()
            for tap in range(w[_WINDOW]):
                weight, here = load_spread(w[_WEIGHTS] + 4 * tap), scratch + at - 12 * tap
                mx = multiply_add(weight, load(here), mx)
                xx = multiply_add(weight, load(here + long), xx)
                xy = multiply_add(weight, load(here + 2 * long), xy)
            here = 4 * w[_STRIDE] * row + at
            x, y = load(w[_RENDERED] + here), load(w[_TRUTH] + here)
            off = subtract(x, y)
            side = sign(off)
            away = multiply_add(off, side, away)
            slope = multiply_add(y, xy, multiply_add(multiply(x, xx), spread(_TWO), mx))
            store(w[_GRADIENT] + here, subtract(multiply(spread(shares[0]), side), multiply(spread(shares[1]), slope)))
        sums[2 * row] = total(away)
