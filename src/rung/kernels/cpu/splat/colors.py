"""Harmonics that are float16 or float32: the colors a camera sees of them, and Adam's step on them with both of its
means in 8 bits.

The gradient of a splat's harmonics is that of its color times the harmonics of the direction it is seen from, so it
is never written down. The means of a splat share a float32 magnitude; codes index sorted codebooks.
"""

from __future__ import annotations

import math

import numba
import numpy as np
import numpy.typing as npt

from rung.kernels.cpu.adam import change
from rung.kernels.cpu.compiled import OPTIONS, kernel
from rung.kernels.cpu.splat.shape import harmonic_slopes, harmonics
from rung.kernels.isa.generic import fetch_add
from rung.kernels.isa.scalar import (
    as_f32,
    bits_of,
    doubles,
    floats,
    half,
    numbers,
    read_u8,
    read_u16,
    write_half,
    write_u8,
)

_NAMES = (
    "counter count terms degree halves position means harmonics colors given g_means "
    "first first_sizes second second_sizes books middles lookup rates settings salt scratch"
)
#: Words of the three kernels: the counter that work is divided by; splats, terms of their harmonics, the degree that
#: is seen, whether harmonics are float16; addresses of float32 but where said otherwise: the camera's position
#: (float64 [3]), centers [N, 3], harmonics [N, terms, 3], colors [N, 3], their gradients [N, 3] (zero where a color
#: was cut off at 0), the centers' [N, 3]; both means as codes uint8 [N, terms, 3] with their magnitudes [N]; for
#: either mean the codebook [2, 256], what lies between its values [2, 256] and ``lookup`` (uint8 [2, 2, CELLS]);
#: rates for each value of a row, settings as in ``adam``; a number that makes rounding another one in each step; and
#: scratch for each thread.
WORDS = tuple(_NAMES.split())
(_COUNT, _TERMS, _DEGREE, _HALVES, _POSITION, _MEANS, _HARMONICS, _COLORS, _GRADIENTS, _G_MEANS) = range(1, 11)
(_FIRST, _FIRST_SIZES, _SECOND, _SECOND_SIZES, _BOOKS, _MIDDLES, _LOOKUP, _RATES, _SETTINGS, _SALT) = range(11, 21)
_SCRATCH = 21
#: float64 of scratch for each thread: harmonics, what they are multiplied by, and both means of a splat.
SCRATCH = 16 + 16 + 48 + 48
_CHUNK = 512
_ONE = np.float32(1.0)
#: Codes are looked for from the exponent and 6 bits of a float32's magnitude, which are its bits from ``CELL_BITS`` on;
#: FIRST_CELL is that of 2^-26, and of whatever is smaller.
FIRST_CELL, CELLS = (127 - 26) << 6, (26 << 6) + 1
CELL_BITS = 17
#: A first mean below it counts as none: what is not seen any more decays without an end.
_NONE = np.float32(1e-30)


def lookup_of(books: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    """Return the middles between values of sorted codebooks [2, 256], and the least code of each cell."""
    middles = np.full_like(books, np.inf)
    middles[:, :-1] = (books[:, :-1] + books[:, 1:]) / 2
    edges = ((np.arange(CELLS + 1) + FIRST_CELL) << CELL_BITS).astype(np.int32).view(np.float32)
    lows = edges[:-1].copy()
    lows[0] = 0  # with all that is smaller
    table = [np.searchsorted(middle, ends) for middle in middles for ends in (lows, -edges[1:])]
    return middles, np.stack(table).astype(np.uint8)


@numba.njit(**OPTIONS)
def _direction(w, index):
    """From the camera to the splat: the unit vector and one over its length."""
    position, means = doubles(w[_POSITION]), floats(w[_MEANS])
    x = means[3 * index] - position[0]
    y = means[3 * index + 1] - position[1]
    z = means[3 * index + 2] - position[2]
    inverse = 1 / max(math.sqrt(x * x + y * y + z * z), 1e-12)
    return x * inverse, y * inverse, z * inverse, inverse


@numba.njit(**OPTIONS)
def _harmonic(w, at):
    """One of the harmonics."""
    if w[_HALVES]:
        return half(read_u16(w[_HARMONICS] + 2 * at))
    return floats(w[_HARMONICS])[at]


@numba.njit(**OPTIONS)
def _random(at, salt):
    """Thirteen bits that depend on both numbers."""
    mixed = (at * 0x9E3779B1 + salt * 0x85EBCA77) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 15)) * 0x2C1B3C6D) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 12)) * 0x297A2D39) & 0xFFFFFFFF
    return (mixed ^ (mixed >> 15)) >> 19


@numba.njit(**OPTIONS)
def _hold(w, at, value):
    """Keeps one of the harmonics; as float16 it is rounded up as often as it is near to that: changes that are smaller
    than half a step would vanish otherwise."""
    if w[_HALVES]:
        bits = bits_of(value)
        write_half(w[_HARMONICS] + 2 * at, as_f32((bits + _random(at, w[_SALT])) & ~0x1FFF))
    else:
        floats(w[_HARMONICS])[at] = value


@kernel(3)
def shade(words, thread, threads):
    """Writes the colors."""
    w = numbers(words)
    basis, colors = doubles(w[_SCRATCH] + 8 * SCRATCH * thread), floats(w[_COLORS])
    while True:
        first = fetch_add(words, 1) * _CHUNK
        if first >= w[_COUNT]:
            break
        for index in range(first, min(first + _CHUNK, w[_COUNT])):
            x, y, z, _ = _direction(w, index)
            harmonics(w[_DEGREE], x, y, z, basis)
            for channel in range(3):
                value = 0.5
                for term in range((w[_DEGREE] + 1) ** 2):
                    value += basis[term] * _harmonic(w, 3 * (w[_TERMS] * index + term) + channel)
                colors[3 * index + channel] = max(value, 0.0)


@kernel(3)
def shade_back(words, thread, threads):
    """Puts zero into ``gradients`` where a color was cut off, and writes the gradients of the centers."""
    w = numbers(words)
    by = doubles(w[_SCRATCH] + 8 * SCRATCH * thread)
    colors, gradients, g_means = floats(w[_COLORS]), floats(w[_GRADIENTS]), floats(w[_G_MEANS])
    while True:
        first = fetch_add(words, 1) * _CHUNK
        if first >= w[_COUNT]:
            break
        for index in range(first, min(first + _CHUNK, w[_COUNT])):
            for term in range(16):
                by[term] = 0.0
            is_visible = False
            for channel in range(3):
                at = 3 * index + channel
                if not colors[at] > 0:
                    gradients[at] = 0
                if gradients[at] != 0:
                    is_visible = True
                    for term in range((w[_DEGREE] + 1) ** 2):
                        by[term] += _harmonic(w, 3 * (w[_TERMS] * index + term) + channel) * gradients[at]
            sx, sy, sz, along, inverse, x, y, z = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
            if is_visible:
                x, y, z, inverse = _direction(w, index)
                sx, sy, sz = harmonic_slopes(w[_DEGREE], x, y, z, by)
                along = sx * x + sy * y + sz * z
            g_means[3 * index] = (sx - along * x) * inverse
            g_means[3 * index + 1] = (sy - along * y) * inverse
            g_means[3 * index + 2] = (sz - along * z) * inverse


@numba.njit(**OPTIONS)
def _code(w, book, value):
    """The nearest of a codebook's values in -1 to 1."""
    bits = bits_of(value)
    cell = min(max((bits & 0x7FFFFFFF) >> CELL_BITS, FIRST_CELL) - FIRST_CELL, CELLS - 1)
    code = read_u8(w[_LOOKUP] + (2 * book + (bits >> 31)) * CELLS + cell)
    middles = floats(w[_MIDDLES] + 1024 * book)
    while value > middles[code]:
        code += 1
    return code


@numba.njit(**OPTIONS)
def _keep(w, book, codes, sizes, index, width, values):
    """Encodes a mean of one splat."""
    most = 0.0
    for at in range(width):
        most = max(most, abs(values[at]))
    size = np.float32(most)
    floats(sizes)[index] = size
    inverse = 1 / most if size > 0 else 0.0
    for at in range(width):
        write_u8(codes + width * index + at, _code(w, book, np.float32(values[at] * inverse)))


@numba.njit(**OPTIONS)
def _fade(w, index, width, root, epsilon, size, wide):
    """A step of a splat that was not seen: its means decay together, so their codes stay."""
    rates, first, second = floats(w[_RATES]), floats(w[_BOOKS]), floats(w[_BOOKS] + 1024)
    for at in range(width):
        if rates[at] != 0:
            index_of_value = width * index + at
            m, v = (
                size * first[read_u8(w[_FIRST] + index_of_value)],
                wide * second[read_u8(w[_SECOND] + index_of_value)],
            )
            _hold(w, index_of_value, np.float32(_harmonic(w, index_of_value) - change(rates[at], m, v, root, epsilon)))


@numba.njit(**OPTIONS)
def _learn(w, index, width, s, size, wide, scratch):
    """A step of a splat that was seen."""
    basis, first, second = doubles(scratch), doubles(scratch + 256), doubles(scratch + 640)
    gradients, rates = floats(w[_GRADIENTS]), floats(w[_RATES])
    book, other = floats(w[_BOOKS]), floats(w[_BOOKS] + 1024)
    x, y, z, _ = _direction(w, index)
    harmonics(w[_DEGREE], x, y, z, basis)
    active = 3 * (w[_DEGREE] + 1) ** 2
    for at in range(width):
        address = width * index + at
        g = basis[at // 3] * gradients[3 * index + at % 3] if at < active else 0.0
        m = size * book[read_u8(w[_FIRST] + address)] + s[0] * g
        v = wide * other[read_u8(w[_SECOND] + address)] + s[1] * (g * g)
        first[at], second[at] = m, v
        if rates[at] != 0:
            _hold(w, address, np.float32(_harmonic(w, address) - change(rates[at], m, v, s[2], s[3])))
    _keep(w, 0, w[_FIRST], w[_FIRST_SIZES], index, width, first)
    _keep(w, 1, w[_SECOND], w[_SECOND_SIZES], index, width, second)


@kernel(3)
def learn(words, thread, threads):
    """Changes the harmonics and both means."""
    w = numbers(words)
    s, gradients, width = floats(w[_SETTINGS]), floats(w[_GRADIENTS]), 3 * w[_TERMS]
    sizes, wides = floats(w[_FIRST_SIZES]), floats(w[_SECOND_SIZES])
    scratch = w[_SCRATCH] + 8 * SCRATCH * thread
    while True:
        begin = fetch_add(words, 1) * _CHUNK
        if begin >= w[_COUNT]:
            break
        for index in range(begin, min(begin + _CHUNK, w[_COUNT])):
            size, wide = (_ONE - s[0]) * sizes[index], (_ONE - s[1]) * wides[index]
            if gradients[3 * index] != 0 or gradients[3 * index + 1] != 0 or gradients[3 * index + 2] != 0:
                _learn(w, index, width, s, size, wide, scratch)
                continue
            size = size if size > _NONE else np.float32(0)
            sizes[index], wides[index] = size, wide
            if size > 0:
                _fade(w, index, width, s[2], s[3], size, wide)
