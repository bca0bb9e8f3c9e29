"""Hold what lies between the ops of a layer, compiled: norm, rotation, gated activation, sums and soft caps.

They take addresses of one row and are made of sixteen lanes: every length is a multiple of 16, unless
said otherwise.
"""

from __future__ import annotations

import numba
import numpy as np

from rung.kernels.cpu.compiled import OPTIONS
from rung.kernels.isa.codes import butterflies
from rung.kernels.isa.generic import (
    add,
    gelu,
    load,
    multiply,
    multiply_add,
    read_float,
    silu,
    spread,
    store,
    subtract,
    tangent,
    total,
    write_float,
    zero,
)

_ONE = np.float32(1.0)


@numba.njit(**OPTIONS)
def norm(x, weight, out, count, epsilon):
    """out = x / sqrt(mean(x^2) + epsilon) * weight; out may be x."""
    a, b = zero(), zero()
    j = 0
    while j + 32 <= count:
        u, v = load(x + 4 * j), load(x + 4 * j + 64)
        a, b = multiply_add(u, u, a), multiply_add(v, v, b)
        j += 32
    if j < count:
        u = load(x + 4 * j)
        a = multiply_add(u, u, a)
    scale = spread(_ONE / np.sqrt(total(add(a, b)) / np.float32(count) + epsilon))
    for j in range(0, 4 * count, 64):
        store(out + j, multiply(multiply(load(x + j), scale), load(weight + j)))


@numba.njit(**OPTIONS)
def add_to(x, more, count):
    """x += more"""
    for j in range(0, 4 * count, 64):
        store(x + j, add(load(x + j), load(more + j)))


@numba.njit(**OPTIONS)
def copy(out, x, count):
    """out = x"""
    for j in range(0, 4 * count, 64):
        store(out + j, load(x + j))


@numba.njit(**OPTIONS)
def gate(x, up, count, is_gelu):
    """x = activation(x) * up"""
    if is_gelu:
        for j in range(0, 4 * count, 64):
            store(x + j, multiply(gelu(load(x + j)), load(up + j)))
    else:
        for j in range(0, 4 * count, 64):
            store(x + j, multiply(silu(load(x + j)), load(up + j)))


@numba.njit(**OPTIONS)
def cap(x, count, softcap):
    """x = softcap * tanh(x / softcap); ``count`` is rounded up to whole vectors."""
    outer, inner = spread(softcap), spread(_ONE / softcap)
    for j in range(0, 4 * count, 64):
        store(x + j, multiply(tangent(multiply(load(x + j), inner)), outer))


@numba.njit(**OPTIONS)
def spread_evenly(x, count):
    """x times the Hadamard matrix over 2^-n/2, in place, in parts of the largest power of two that divides ``count``: a
    rotation that is its own inverse. Large values of a few dimensions are then in all of them. ``count``: times 32."""
    part = count & -count
    scale = spread(np.float32(1 / np.sqrt(np.float64(part))))
    for j in range(0, 4 * count, 64):
        store(x + j, butterflies(multiply(load(x + j), scale)))
    step = 64
    while step < 4 * part:
        for first in range(0, 4 * count, 2 * step):
            for j in range(first, first + step, 64):
                u, v = load(x + j), load(x + j + step)
                store(x + j, add(u, v))
                store(x + j + step, subtract(u, v))
        step *= 2


@numba.njit(**OPTIONS)
def rotate(x, cosine, sine, half, interleaved):
    """Rotates the first 2 * half values of one head in place; cosine and sine have ``half`` f32 values. Any half."""
    j = 0
    if not interleaved:
        while j + 16 <= half:
            first, second = load(x + 4 * j), load(x + 4 * (half + j))
            c, s = load(cosine + 4 * j), load(sine + 4 * j)
            store(x + 4 * j, subtract(multiply(first, c), multiply(second, s)))
            store(x + 4 * (half + j), add(multiply(second, c), multiply(first, s)))
            j += 16
    step, apart = (2, 1) if interleaved else (1, half)
    while j < half:
        at, other = x + 4 * step * j, x + 4 * (step * j + apart)
        u, v = read_float(at), read_float(other)
        c, s = read_float(cosine + 4 * j), read_float(sine + 4 * j)
        write_float(at, u * c - v * s)
        write_float(other, v * c + u * s)
        j += 1
