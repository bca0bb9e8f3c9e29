"""Least-squares search for the scales of groups of weights, for the encoders of GGUF types.

Groups stand in columns, float32 [weights of a group, groups], as ``codec.columns`` makes them. Each search tries
several scales; for each it rounds the weights to codes and takes the scale (and minimum) that fit those codes best,
in closed form. What is compared is the plain squared error, because that is what SQNR measures, or, where the weights
have an importance, its sum weighed by that.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rung.formats.codec import Floats, column_sums

_TINY = np.float32(1e-37)
#: What keys and values in q4_0 are tried with, see ``symmetric``: codes -8, -8.75, -7.5, -7, -6.5 and 7 of the extreme.
CACHE_SHIFTS = (0.0, 0.75, -0.5, -1.0, -1.5, -15.0)


def codes_of(x: Floats, factor: Floats | np.float32, low: float, high: float, out: Floats) -> Floats:
    """rint(x * factor) in low ... high, written to ``out``."""
    return _round(np.multiply(x, factor, out=out), low, high)


def _round(codes: Floats, low: float, high: float) -> Floats:
    np.rint(codes, out=codes)
    return np.clip(codes, np.float32(low), np.float32(high), out=codes)


def even(importance: Floats) -> Floats:
    """Importance [weights of a group, groups] with the mean 1 in each group; a group without any is even."""
    mean = importance.mean(axis=0)
    return np.where(mean > 0, importance * inverse(mean), np.float32(1))


def _weighed(values: Floats, importance: Floats | None) -> Floats:
    """Sums [groups], weighed in place."""
    if importance is not None:
        values *= importance
    return column_sums(values)


def affine(
    x: Floats, levels: int, trials: Sequence[tuple[float, float]], importance: Floats | None = None
) -> tuple[Floats, Floats]:
    """Scale and minimum [groups], both >= 0, with which ``scale * code - minimum`` is near x [weights, groups].

    Codes are 0 ... levels - 1. Each trial (stretch, offset) spreads the range of x over levels - 1 + stretch codes,
    beginning at ``offset``.
    """
    count = np.float32(len(x))
    low = np.minimum(x.min(axis=0), np.float32(0))
    y = x - low
    span = y.max(axis=0)
    # Sums are taken of y / span, in 0 ... 1: squares neither overflow nor vanish at any scale of x.
    y *= inverse(span)
    codes, work = np.empty_like(y), np.empty_like(y)
    np.copyto(work, y)
    total = _weighed(work, importance)
    energy = column_sums(y * work)
    scale, base = np.full_like(span, 1 / (levels - 1)), np.zeros_like(span)
    least = np.full_like(span, np.inf)
    floor = low * inverse(span)
    for stretch, offset in trials:
        np.multiply(y, np.float32(levels - 1 + stretch), out=codes)
        codes += np.float32(offset)
        _round(codes, 0, levels - 1)
        second = _weighed(np.multiply(codes, codes, out=work), importance)
        cross = _weighed(np.multiply(codes, y, out=work), importance)
        first = _weighed(codes, importance)
        a, b = _line(count, first, second, total, cross, floor)
        error = energy + a * (a * second - 2 * cross) + b * (count * b + 2 * (a * first - total))
        better = (error < least) & (a > 0)
        for best, candidate in ((least, error), (scale, a), (base, b)):
            np.copyto(best, candidate, where=better)
    return scale * span, np.maximum(-(low + base * span), np.float32(0))


def _line(
    count: np.float32, first: Floats, second: Floats, total: Floats, cross: Floats, floor: Floats
) -> tuple[Floats, Floats]:
    """Slope and intercept of the line through (codes, y) with the least squared error.

    ``floor`` is the minimum of the weights in the same units; the stored minimum cannot be below zero, so where the
    line would need that, it goes through the origin of the weights (y = -floor) instead.
    """
    determinant = count * second - first * first
    slope = (count * cross - first * total) / np.maximum(determinant, _TINY)
    intercept = (total - slope * first) / count
    through = (determinant <= 0) | (floor + intercept > 0)
    origin = -floor
    steep = (cross - origin * first) / np.maximum(second, _TINY)
    return np.where(through, steep, slope), np.where(through, origin, intercept)


def symmetric(x: Floats, half: int, shifts: Sequence[float], importance: Floats | None = None) -> tuple[Floats, Floats]:
    """Signed scale [groups] with which ``scale * code`` is near x [weights, groups], and the extreme weights [groups].

    Codes are -half ... half - 1. Each shift tries the scale that makes code -(half + shift) of the extreme weight.
    """
    low, high = x.min(axis=0), x.max(axis=0)
    extreme = np.where(high > -low, high, low)
    y = x * inverse(extreme)
    scale: Floats = np.full_like(extreme, -1 / half)
    most = np.zeros_like(extreme)
    codes, work = np.empty_like(y), np.empty_like(y)
    for shift in shifts:
        codes_of(y, np.float32(-(half + shift)), -half, half - 1, codes)
        second = _weighed(np.multiply(codes, codes, out=work), importance)
        cross = _weighed(np.multiply(codes, y, out=work), importance)
        # The best scale for these codes is cross / second; it takes cross^2 / second off the squared error.
        fit = cross / np.maximum(second, _TINY)
        gain = fit * cross
        better = gain > most
        np.copyto(most, gain, where=better)
        np.copyto(scale, fit, where=better)
    return scale * extreme, extreme


def inverse(values: Floats) -> Floats:
    """1 / values, 0 where that is infinite."""
    factor: Floats = np.float32(1) / values
    factor[~np.isfinite(factor)] = 0
    return factor
