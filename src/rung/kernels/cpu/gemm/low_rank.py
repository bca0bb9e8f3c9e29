"""Products of adapters (LoRA), added to those of a weight: y += up (down x), ``down`` [rank, in], ``up`` [out, rank].

Both lie in the narrowest of float16, bfloat16 and float32 that holds their values exactly; sums are float32. ``up``
lies in groups of 16 rows: [groups, rank, 16], so that 16 results are made at once. With ``factor`` (DoRA) each row of
the sum is multiplied by its own number. Plain LLVM vectors: any processor runs this.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from rung.formats.codec import Floats
from rung.kernels.cpu.compiled import OPTIONS, Kernel, kernel
from rung.kernels.cpu.parallel import run
from rung.kernels.isa.generic import (
    add,
    fetch_add,
    load,
    load_spread,
    multiply,
    multiply_add,
    read_float,
    read_int,
    spread,
    store,
    total,
    write_float,
    zero,
)
from rung.kernels.isa.rows import load_row, row_width

LANES = 16
_ROWS = 8  # rows of activations that a thread takes at a time
#: Beside the sums of a row, floats of a thread's memory: a vector for the last rows of ``up``, and a line between.
_SPARE = 3 * LANES


@dataclass(frozen=True, eq=False)
class LowRankRows:
    """Both matrices of an adapter's change, packed; ``kind`` is f32, f16 or bf16, ``shape`` is (out, in)."""

    kind: str
    shape: tuple[int, int]
    rank: int
    down: npt.NDArray[Any]
    up: npt.NDArray[Any]
    factor: Floats | None

    @classmethod
    def pack(cls, down: Floats, up: Floats, factor: Floats | None = None) -> LowRankRows:
        """Pack ``down`` [rank, in], ``in`` a multiple of 16, ``up`` [out, rank] and ``factor`` [out]."""
        (rank, columns), rows = down.shape, len(up)
        assert columns % LANES == 0
        groups = -(-rows // LANES)
        padded = np.zeros((groups * LANES, rank), np.float32)
        padded[:rows] = up
        grouped = padded.reshape(groups, LANES, rank).swapaxes(1, 2)
        kind = _narrowest(down, grouped)
        factors = None
        if factor is not None:
            factors = np.ones(groups * LANES, np.float32)
            factors[:rows] = factor
        return cls(kind, (rows, columns), rank, _as(kind, down), _as(kind, grouped), factors)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.down.nbytes + self.up.nbytes

    @property
    def factor_address(self) -> int:
        """Return the address of the factors; 0 where there are none."""
        return 0 if self.factor is None else int(self.factor.ctypes.data)

    def add(self, x: int, x_stride: int, rows: int, y: int, y_stride: int, threads: int) -> None:
        """Add the change to ``rows`` rows of y float32 [rows, out], for those of x float32 [rows, in].

        Addresses, and bytes between rows; the values of a row follow each other.
        """
        chunks = -(-rows // _ROWS)
        area = 4 * (_ROWS * self.rank + _SPARE)
        scratch = np.empty(threads * area // 4, np.float32)
        words = (x, x_stride, rows, self.shape[1], self.down.ctypes.data, self.rank, self.up.ctypes.data, self.shape[0])
        more = (self.factor_address, y, y_stride, scratch.ctypes.data, area)
        run(add_rows[self.kind].address, (0, *words, *more), min(threads, chunks))


def _narrowest(*arrays: Floats) -> str:
    """Return the narrowest kind that holds all values exactly."""
    with np.errstate(over="ignore"):
        if all(np.array_equal(array.astype(np.float16).astype(np.float32), array) for array in arrays):
            return "f16"
    if all(not (np.ascontiguousarray(array).view(np.uint32) & 0xFFFF).any() for array in arrays):
        return "bf16"
    return "f32"


def _as(kind: str, array: Floats) -> npt.NDArray[Any]:
    if kind == "f16":
        return np.ascontiguousarray(array, np.float16)
    if kind == "bf16":
        return (np.ascontiguousarray(array).view(np.uint32) >> 16).astype(np.uint16)
    return np.ascontiguousarray(array, np.float32)


# ---- a single row of activations


@numba.njit(**OPTIONS)
def _dot(weights, x, columns, kind):
    """Return the product of a row of weights with float32 ``x``."""
    a, b, c, d = zero(), zero(), zero(), zero()
    width, j = row_width(kind), 0
    while j + 64 <= columns:
        at = x + 4 * j
        a = multiply_add(load_row(weights + width * j, kind), load(at), a)
        b = multiply_add(load_row(weights + width * (j + 16), kind), load(at + 64), b)
        c = multiply_add(load_row(weights + width * (j + 32), kind), load(at + 128), c)
        d = multiply_add(load_row(weights + width * (j + 48), kind), load(at + 192), d)
        j += 64
    while j < columns:
        a = multiply_add(load_row(weights + width * j, kind), load(x + 4 * j), a)
        j += 16
    return total(add(add(a, b), add(c, d)))


@numba.njit(**OPTIONS)
def _group(up, low, rank, y, kind):
    """Return 16 results: y plus the products of a group of ``up`` with the sums ``low``."""
    a, b = load(y), zero()
    width, j = 16 * row_width(kind), 0
    while j + 2 <= rank:
        a = multiply_add(load_row(up + width * j, kind), load_spread(low + 4 * j), a)
        b = multiply_add(load_row(up + width * (j + 1), kind), load_spread(low + 4 * j + 4), b)
        j += 2
    if j < rank:
        a = multiply_add(load_row(up + width * j, kind), load_spread(low + 4 * j), a)
    return add(a, b)


@numba.njit(**OPTIONS)
def _down(weights, row_bytes, x, y, columns, first, last, kind):
    for row in range(first, last):
        write_float(y + 4 * row, _dot(weights + row * row_bytes, x, columns, kind))


@numba.njit(**OPTIONS)
def _up(up, factor, low, y, rank, first, last, kind):
    step = 16 * rank * row_width(kind)
    for group in range(first, last):
        at = y + 64 * group
        sums = _group(up + step * group, low, rank, at, kind)
        if factor != 0:
            sums = multiply(sums, load(factor + 64 * group))
        store(at, sums)


def _fill_kernel(kind: Any) -> Kernel:
    """``f(x, down, row bytes, sums, columns, rank, ...)``: the sums of one row."""

    @kernel(10)
    def run(x, weights, row_bytes, sums, columns, rank, u0, u1, u2, u3):
        _down(weights, row_bytes, x, sums, columns, 0, rank, kind)

    return run


def _up_kernel(kind: Any) -> Kernel:
    """``f(up, factor, low, y, rank, unused x 2, first, last, ...)``: the groups [first, last) of ``up``, added to y."""

    @kernel(16)
    def run(up, factor, low, y, rank, u0, u1, first, last, u2, u3, u4, u5, u6, u7, u8):
        _up(up, factor, low, y, rank, first, last, kind)

    return run


# ---- many rows


@numba.njit(**OPTIONS)
def _four_dots(weights, x, x_stride, columns, low, rank, kind):
    """Write the sums of four rows of x: low [4, rank]."""
    width = row_width(kind)
    x1, x2, x3 = x + x_stride, x + 2 * x_stride, x + 3 * x_stride
    for row in range(rank):
        a, b, c, d = zero(), zero(), zero(), zero()
        for j in range(0, columns, 16):
            w = load_row(weights + width * j, kind)
            a, b = multiply_add(w, load(x + 4 * j), a), multiply_add(w, load(x1 + 4 * j), b)
            c, d = multiply_add(w, load(x2 + 4 * j), c), multiply_add(w, load(x3 + 4 * j), d)
        at = low + 4 * row
        write_float(at, total(a))
        write_float(at + 4 * rank, total(b))
        write_float(at + 8 * rank, total(c))
        write_float(at + 12 * rank, total(d))
        weights += width * columns


@numba.njit(**OPTIONS)
def _four_groups(up, low, rank, y, y_stride, scale, kind):
    """Add a group of ``up`` to four rows of y, and multiply them with ``scale``."""
    y1, y2, y3 = y + y_stride, y + 2 * y_stride, y + 3 * y_stride
    a, b, c, d = load(y), load(y1), load(y2), load(y3)
    width = 16 * row_width(kind)
    for j in range(rank):
        w, at = load_row(up + width * j, kind), low + 4 * j
        a, b = multiply_add(w, load_spread(at), a), multiply_add(w, load_spread(at + 4 * rank), b)
        c, d = multiply_add(w, load_spread(at + 8 * rank), c), multiply_add(w, load_spread(at + 12 * rank), d)
    store(y, multiply(a, scale))
    store(y1, multiply(b, scale))
    store(y2, multiply(c, scale))
    store(y3, multiply(d, scale))


@numba.njit(**OPTIONS)
def _rest_of_row(up, low, rank, y, lanes, scratch, factor, kind):
    """Add the last group of ``up``, of which y has ``lanes`` values."""
    for lane in range(lanes):
        write_float(scratch + 4 * lane, read_float(y + 4 * lane))
    sums = _group(up, low, rank, scratch, kind)
    if factor != 0:
        sums = multiply(sums, load(factor))
    store(scratch, sums)
    for lane in range(lanes):
        write_float(y + 4 * lane, read_float(scratch + 4 * lane))


@numba.njit(**OPTIONS)
def _add_rows(words, thread, kind):
    """Words: counter, x, bytes between its rows, rows, columns, down, rank, up, lanes, factors or 0, y, bytes between
    its rows, memory of the threads, bytes of each."""
    x, x_stride, rows, columns = read_int(words + 8), read_int(words + 16), read_int(words + 24), read_int(words + 32)
    down, rank, up, lanes = read_int(words + 40), read_int(words + 48), read_int(words + 56), read_int(words + 64)
    factor, y, y_stride = read_int(words + 72), read_int(words + 80), read_int(words + 88)
    scratch = read_int(words + 96) + thread * read_int(words + 104)
    low, groups, step = scratch + 4 * _SPARE, lanes // 16, 16 * rank * row_width(kind)
    one = spread(np.float32(1.0))
    while True:
        first = fetch_add(words, 1) * _ROWS
        if first >= rows:
            break
        count = min(_ROWS, rows - first)
        at, to = x + first * x_stride, y + first * y_stride
        fours = count - count % 4
        for row in range(0, fours, 4):
            _four_dots(down, at + row * x_stride, x_stride, columns, low + 4 * row * rank, rank, kind)
        for row in range(fours, count):
            _down(down, columns * row_width(kind), at + row * x_stride, low + 4 * row * rank, columns, 0, rank, kind)
        for group in range(groups):
            scale = load(factor + 64 * group) if factor != 0 else one
            for row in range(0, fours, 4):
                place = to + row * y_stride + 64 * group
                _four_groups(up + step * group, low + 4 * row * rank, rank, place, y_stride, scale, kind)
        for row in range(count):
            place, sums = to + row * y_stride, low + 4 * row * rank
            if row >= fours:
                _up(up, factor, sums, place, rank, 0, groups, kind)
            if lanes % 16:
                behind = factor + 64 * groups if factor != 0 else 0
                _rest_of_row(up + step * groups, sums, rank, place + 64 * groups, lanes % 16, scratch, behind, kind)


def _add_kernel(kind: Any) -> Kernel:
    @kernel(3)
    def run(words, thread, threads):
        _add_rows(words, thread, kind)

    return run


_KINDS: dict[str, Any] = {"f32": np.float32(0), "f16": 0, "bf16": False}
#: By kind of the weights: the kernels of one row of activations, called as those of ``activations`` and of
#: ``linear.multiply``, and the function of many rows for ``parallel.run``.
fill_sums = {name: _fill_kernel(kind) for name, kind in _KINDS.items()}
up_rows = {name: _up_kernel(kind) for name, kind in _KINDS.items()}
add_rows = {name: _add_kernel(kind) for name, kind in _KINDS.items()}
