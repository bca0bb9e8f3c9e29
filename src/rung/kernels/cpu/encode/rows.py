"""Define what the encoders of all formats share: their words, rows of the source as float32, and scales in float16.

Everything is computed in the order and with the rounding of ``rung.formats``, so that the bytes are the same.
"""

from __future__ import annotations

import numba
import numpy as np

from rung.kernels.cpu.compiled import OPTIONS
from rung.kernels.isa.codes import below, ceiling, magnitude, signed, to_half
from rung.kernels.isa.generic import (
    add,
    divide,
    fetch_add,
    largest,
    load,
    load_half,
    multiply,
    spread,
    store,
    total,
    write_int,
    zero,
)
from rung.kernels.isa.registers import load_bf16

_NAMES = "counter source kind rows columns taken codes sizes scratch room importance table refused"
#: Words of every encoder: the counter that rows are divided by; the address of the weights, and what they are (one of
#: ``KINDS``); rows, columns, and the rows that a thread takes at a time; addresses of the result, which are blocks, or
#: codes and float32 sizes; the address of scratch, and its bytes for each thread; the importance float32
#: [taken, columns] of the weights, or 0; a float32 table of the format; and the address of an int64, which becomes 1
#: where a weight is not finite or a scale cannot be stored.
WORDS = tuple(_NAMES.split())
(SOURCE, KIND, ROWS, COLUMNS, TAKEN, CODES, SIZES, SCRATCH, ROOM, IMPORTANCE, TABLE, REFUSED) = range(1, 13)
#: Floats that rows are read from.
KINDS = ("f32", "f16", "bf16")
#: Weights of a unit, which is computed at once; rows are followed by zeros up to a whole one.
UNIT = 512
#: Bytes of scratch before the weights.
WORK = 16 << 10
#: What float16 rounds up to infinity, and the smallest number that it holds with all its bits.
_BEYOND, _NORMAL = np.float32(65520.0), np.float32(2.0**-14)
_STEPS, _STEP = np.float32(2.0**24), np.float32(2.0**-24)
_ONE = np.float32(1.0)


@numba.njit(**OPTIONS)
def widen(kind, source, out, count):
    """Writes ``count`` weights, a multiple of 16, as float32; whether all of them are finite."""
    bits = zero()
    if kind == 0:
        for at in range(0, 4 * count, 64):
            x = load(source + at)
            bits = add(bits, multiply(x, zero()))
            store(out + at, x)
    elif kind == 1:
        for at in range(0, 4 * count, 64):
            x = load_half(source + at // 2)
            bits = add(bits, multiply(x, zero()))
            store(out + at, x)
    else:
        for at in range(0, 4 * count, 64):
            x = load_bf16(source + at // 2)
            bits = add(bits, multiply(x, zero()))
            store(out + at, x)
    return total(bits) == np.float32(0)


@numba.njit(**OPTIONS)
def take(words, w, out):
    """Rows that no thread has taken, as float32: the number of the first; -1 when all are taken."""
    row = fetch_add(words, 1) * w[TAKEN]
    if row >= w[ROWS]:
        return -1
    count = weights(w, row)
    width = 4 if w[KIND] == 0 else 2
    if not widen(w[KIND], w[SOURCE] + width * row * w[COLUMNS], out, count):
        write_int(w[REFUSED], 1)
    for at in range(4 * count, -(-count // UNIT) * UNIT * 4, 64):
        store(out + at, zero())
    return row


@numba.njit(**OPTIONS)
def weights(w, row):
    """How many weights are taken with a row."""
    return min(w[TAKEN], w[ROWS] - row) * w[COLUMNS]


@numba.njit(**OPTIONS)
def holds(scale):
    """Return whether float16 holds 16 scales."""
    return largest(magnitude(scale)) < _BEYOND


@numba.njit(**OPTIONS)
def half_scale(scale):
    """Scales as ``formats.codec.half`` has them before they are rounded: away from zero where float16 is coarse."""
    size = magnitude(scale)
    steps = ceiling(multiply(size, spread(_STEPS)))
    return below(size, spread(_NORMAL), signed(multiply(steps, spread(_STEP)), scale), scale)


@numba.njit(**OPTIONS)
def reciprocal(x):
    """1 / x; 0 where x is."""
    return below(zero(), magnitude(x), divide(spread(_ONE), x), zero())


@numba.njit(**OPTIONS)
def multiples(values, scale):
    """values / scale; values themselves where the scale is 0."""
    return divide(values, below(zero(), magnitude(scale), scale, spread(_ONE)))


@numba.njit(**OPTIONS)
def stored(scale):
    """Scales as float16 stores them, in float32."""
    return to_half(half_scale(scale))
