"""The searches of ``rung.formats.search`` for 16 groups at once, one in each lane."""

from __future__ import annotations

import numba
import numpy as np

from rung.kernels.cpu.compiled import OPTIONS
from rung.kernels.isa.codes import below, magnitude, nearest, smaller, turn
from rung.kernels.isa.generic import add, divide, larger, load, load_spread, multiply, spread, store, subtract, zero

#: Bytes of 16 weights of each group of 32.
GROUPS = 2048
_TINY, _INFINITE = np.float32(1e-37), np.float32(np.inf)
_COUNT, _ONE, _TWO = np.float32(32.0), np.float32(1.0), np.float32(2.0)


@numba.njit(**OPTIONS)
def turn_groups(out, x, size):
    """Groups of 16 or 32 weights, of which 16 lie one after the other, in columns: [size, 16]."""
    for at in range(0, size, 16):
        turn(out + 64 * at, x + 4 * at, 4 * size)


@numba.njit(**OPTIONS)
def even(importance, size):
    """Gives the importance [size, 16] of each group the mean 1; a group without any is even."""
    total = zero()
    for at in range(0, 64 * size, 64):
        total = add(total, load(importance + at))
    mean = divide(total, spread(np.float32(size)))
    factor = inverse(mean)
    for at in range(0, 64 * size, 64):
        value = multiply(load(importance + at), factor)
        store(importance + at, below(zero(), mean, value, spread(_ONE)))


@numba.njit(**OPTIONS)
def inverse(x):
    """1 / x, 0 where that is infinite."""
    result = divide(spread(_ONE), x)
    return below(magnitude(result), spread(_INFINITE), result, zero())


@numba.njit(**OPTIONS)
def _weighed(value, importance, at):
    if importance is None:
        return value
    return multiply(value, load(importance + at))


@numba.njit(**OPTIONS)
def _clipped(value, low, high):
    return smaller(larger(nearest(value), low), high)


@numba.njit(**OPTIONS)
def affine(y, importance, levels, trials, count, found):
    """``search.affine`` of groups of 32; overwrites y [32, 16]. ``trials`` are pairs of float32: a factor of weights in
    0 ... 1, and what is added. ``found``: scales, minima, and the largest weights, [3, 16]."""
    low = high = load(y)
    for at in range(64, GROUPS, 64):
        low, high = smaller(low, load(y + at)), larger(high, load(y + at))
    low = smaller(low, zero())
    span = subtract(high, low)
    rate = inverse(span)
    total, energy, most = zero(), zero(), spread(levels - _ONE)
    for at in range(0, GROUPS, 64):
        value = multiply(subtract(load(y + at), low), rate)
        store(y + at, value)
        part = _weighed(value, importance, at)
        total, energy = add(total, part), add(energy, multiply(value, part))
    floor = multiply(low, rate)
    least, scale, base = spread(_INFINITE), spread(_ONE / (levels - _ONE)), zero()
    for trial in range(trials, trials + 8 * count, 8):
        factor, offset = load_spread(trial), load_spread(trial + 4)
        first, second, cross = zero(), zero(), zero()
        for at in range(0, GROUPS, 64):
            value = load(y + at)
            codes = _clipped(add(multiply(value, factor), offset), zero(), most)
            second = add(second, _weighed(multiply(codes, codes), importance, at))
            cross = add(cross, _weighed(multiply(codes, value), importance, at))
            first = add(first, _weighed(codes, importance, at))
        slope, intercept = _slope(first, second, total, cross), _intercept(first, second, total, cross)
        # Through the origin of the weights where the codes are all alike, or the minimum would be below zero.
        origin = subtract(zero(), floor)
        steep = divide(subtract(cross, multiply(origin, first)), larger(second, spread(_TINY)))
        inside = subtract(multiply(spread(_COUNT), second), multiply(first, first))
        above = add(floor, intercept)
        a = below(zero(), inside, below(zero(), above, steep, slope), steep)
        b = below(zero(), inside, below(zero(), above, origin, intercept), origin)
        error = _error(energy, a, b, first, second, total, cross)
        gain = below(zero(), a, error, spread(_INFINITE))
        scale, base = below(gain, least, a, scale), below(gain, least, b, base)
        least = below(gain, least, gain, least)
    store(found, multiply(scale, span))
    store(found + 64, larger(subtract(zero(), add(low, multiply(base, span))), zero()))
    store(found + 128, high)


@numba.njit(**OPTIONS)
def _slope(first, second, total, cross):
    determinant = subtract(multiply(spread(_COUNT), second), multiply(first, first))
    above = subtract(multiply(spread(_COUNT), cross), multiply(first, total))
    return divide(above, larger(determinant, spread(_TINY)))


@numba.njit(**OPTIONS)
def _intercept(first, second, total, cross):
    return divide(subtract(total, multiply(_slope(first, second, total, cross), first)), spread(_COUNT))


@numba.njit(**OPTIONS)
def _error(energy, a, b, first, second, total, cross):
    along = multiply(a, subtract(multiply(a, second), multiply(spread(_TWO), cross)))
    across = multiply(spread(_TWO), subtract(multiply(a, first), total))
    return add(add(energy, along), multiply(b, add(multiply(spread(_COUNT), b), across)))


@numba.njit(**OPTIONS)
def symmetric(y, importance, half, factors, count, found):
    """``search.symmetric`` of groups of 16; overwrites y [16, 16]. ``factors`` are float32: -(half + shift) for each
    shift. ``found``: scales, and the extreme weights, [2, 16]."""
    low = high = load(y)
    for at in range(64, 1024, 64):
        low, high = smaller(low, load(y + at)), larger(high, load(y + at))
    extreme = below(subtract(zero(), low), high, high, low)
    rate = inverse(extreme)
    for at in range(0, 1024, 64):
        store(y + at, multiply(load(y + at), rate))
    scale, most = spread(-_ONE / half), zero()
    for trial in range(factors, factors + 4 * count, 4):
        factor, second, cross = load_spread(trial), zero(), zero()
        for at in range(0, 1024, 64):
            value = load(y + at)
            codes = _clipped(multiply(value, factor), spread(-half), spread(half - _ONE))
            second = add(second, _weighed(multiply(codes, codes), importance, at))
            cross = add(cross, _weighed(multiply(codes, value), importance, at))
        fit = divide(cross, larger(second, spread(_TINY)))
        gain = multiply(fit, cross)
        scale, most = below(most, gain, fit, scale), below(most, gain, gain, most)
    store(found, multiply(scale, extreme))
    store(found + 64, extreme)
