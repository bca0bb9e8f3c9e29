"""One step of Adam (arXiv:1412.6980) on a whole tensor, with a learning rate for each of its columns."""

from __future__ import annotations

import math

import numba
import numpy as np

from rung.kernels.cpu.compiled import OPTIONS, kernel
from rung.kernels.isa.generic import (
    add,
    divide,
    fetch_add,
    load,
    multiply,
    multiply_add,
    spread,
    square_root,
    store,
    subtract,
)
from rung.kernels.isa.scalar import floats, numbers

_NAMES = "counter count period values gradient first second rates settings"
#: Words: the counter that work is divided by; how many values there are, and how many rates, a multiple of 16, which
#: come again and again; addresses of float32: the values, their gradient, its two means, the rates, and what goes into
#: either mean of a new gradient, one over the root of the second's correction, and epsilon [4].
WORDS = tuple(_NAMES.split())
_COUNT, _PERIOD, _VALUES, _GRADIENT, _FIRST, _SECOND, _RATES, _SETTINGS = range(1, 9)
#: Values that a thread takes at a time, about.
_CHUNK = 1 << 14
_ONE = np.float32(1.0)


@numba.njit(**OPTIONS)
def change(rate, first, second, root, epsilon):
    """Return the change of a value from its rate and both means; for scalars of float32 or float64."""
    return rate * first / (math.sqrt(second) * root + epsilon)


@kernel(3)
def step(words, thread, threads):
    """Changes the values and both means."""
    w = numbers(words)
    s = floats(w[_SETTINGS])
    period, rates = w[_PERIOD], w[_RATES]
    blocks = w[_COUNT] // period
    chunk = max(_CHUNK // period, 1)
    new_first, new_second, root, epsilon = spread(s[0]), spread(s[1]), spread(s[2]), spread(s[3])
    old_first, old_second = spread(_ONE - s[0]), spread(_ONE - s[1])
    while True:
        begin = fetch_add(words, 1) * chunk
        if begin >= blocks:
            break
        for block in range(begin, min(begin + chunk, blocks)):
            for offset in range(0, 4 * period, 64):
                at = 4 * period * block + offset
                g = load(w[_GRADIENT] + at)
                m = multiply_add(old_first, load(w[_FIRST] + at), multiply(new_first, g))
                v = multiply_add(old_second, load(w[_SECOND] + at), multiply(new_second, multiply(g, g)))
                low = add(multiply(square_root(v), root), epsilon)
                store(w[_FIRST] + at, m)
                store(w[_SECOND] + at, v)
                moved = divide(multiply(load(rates + offset), m), low)
                store(w[_VALUES] + at, subtract(load(w[_VALUES] + at), moved))
    if thread == 0:  # what is left of a period
        values, gradient, table = floats(w[_VALUES]), floats(w[_GRADIENT]), floats(rates)
        first, second = floats(w[_FIRST]), floats(w[_SECOND])
        for at in range(blocks * period, w[_COUNT]):
            g = gradient[at]
            first[at] = (_ONE - s[0]) * first[at] + s[0] * g
            second[at] = (_ONE - s[1]) * second[at] + s[1] * (g * g)
            values[at] -= change(table[at % period], first[at], second[at], s[2], s[3])
