"""Hold what lies between the products of an encoder's layer, row by row: sums with LayerNorm, and the activation.

Each function takes (words, thread, threads), for ``parallel.run``. Words are int64: the counter, then what its
docstring lists; addresses of float32. Columns are multiples of 16. Threads take a few rows at a time.
"""

from __future__ import annotations

import numba
import numpy as np

from rung.kernels.cpu.compiled import OPTIONS, kernel
from rung.kernels.isa.generic import (
    add,
    fetch_add,
    gelu,
    gelu_erf,
    load,
    multiply,
    multiply_add,
    read_float,
    read_int,
    spread,
    store,
    subtract,
    total,
    zero,
)

_ROWS = 8  # rows a thread takes at a time
_ONE = np.float32(1.0)


@numba.njit(**OPTIONS)
def _layer_norm(x, weight, bias, columns, epsilon):
    """x = (x - mean) / sqrt(variance + epsilon) * weight + bias, in place."""
    size = 4 * columns
    sums = zero()
    for j in range(0, size, 64):
        sums = add(sums, load(x + j))
    mean = spread(total(sums) / np.float32(columns))
    squares = zero()
    for j in range(0, size, 64):
        apart = subtract(load(x + j), mean)
        squares = multiply_add(apart, apart, squares)
    scale = spread(_ONE / np.sqrt(total(squares) / np.float32(columns) + epsilon))
    for j in range(0, size, 64):
        value = multiply(subtract(load(x + j), mean), scale)
        store(x + j, multiply_add(value, load(weight + j), load(bias + j)))


@kernel(3)
def add_and_layer_norm(words, thread, threads):
    """rows, columns, x, added, added bias, weight, bias, address of epsilon: x = LayerNorm(x + added + added bias).

    Rows lie without gaps. An address of 0 for ``added`` and its bias adds nothing.
    """
    rows, columns, x, added = read_int(words + 8), read_int(words + 16), read_int(words + 24), read_int(words + 32)
    added_bias, weight, bias = read_int(words + 40), read_int(words + 48), read_int(words + 56)
    epsilon = read_float(read_int(words + 64))
    while True:
        first = fetch_add(words, 1) * _ROWS
        if first >= rows:
            break
        for row in range(first, min(first + _ROWS, rows)):
            at = x + 4 * columns * row
            if added != 0:
                more = added + 4 * columns * row
                for j in range(0, 4 * columns, 64):
                    store(at + j, add(load(at + j), add(load(more + j), load(added_bias + j))))
            _layer_norm(at, weight, bias, columns, epsilon)


@kernel(3)
def add_and_activate(words, thread, threads):
    """rows, columns, x, bias, whether gelu has erf: x = gelu(x + bias), in place. Rows lie without gaps."""
    rows, columns, x = read_int(words + 8), read_int(words + 16), read_int(words + 24)
    bias, has_erf = read_int(words + 32), read_int(words + 40) != 0
    while True:
        row = fetch_add(words, 1)
        if row >= rows:
            break
        at = x + 4 * columns * row
        if has_erf:
            for j in range(0, 4 * columns, 64):
                store(at + j, gelu_erf(add(load(at + j), load(bias + j))))
        else:
            for j in range(0, 4 * columns, 64):
                store(at + j, gelu(add(load(at + j), load(bias + j))))
