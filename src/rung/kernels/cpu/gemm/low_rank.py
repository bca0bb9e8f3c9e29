"""Products of adapters (LoRA), added to those of a weight: y += up (down x), ``down`` [rank, in], ``up`` [out, rank].

Both lie in the narrowest of float16, bfloat16 and float32 that holds their values exactly; sums are float32. ``up``
lies turned, [rank, out], so that 16 results and more are made at once. With ``factor`` (DoRA) each row of the sum is
multiplied by its own number. Plain LLVM vectors: any processor runs this.

Each sum goes in one order, whatever is computed beside it: those of ``down`` in 16 lanes from the first column to the
last, then across the lanes; those of ``up`` from y on, from the first rank to the last.
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
from rung.kernels.isa.generic import fetch_add, load, multiply, read_float, read_int, store, write_float
from rung.kernels.isa.rows import dots, mix, row_width

LANES = 16
_ROWS = 8  # rows of activations that a thread takes at a time
_FOUR = 4  # rows of activations, ranks, and groups of results that are computed at once
#: Beside the sums of a row, floats of a thread's memory: a vector for the last rows of ``up``, and a line between.
_SPARE = 3 * LANES


@dataclass(frozen=True, eq=False)
class LowRankRows:
    """Both matrices of an adapter's change, packed; ``kind`` is f32, f16 or bf16, ``shape`` is (out, in).

    ``down`` is [rank, in] with zeros up to a multiple of four ranks, ``up`` [rank, out] up to one of 16 results.
    """

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
        lanes = -(-rows // LANES) * LANES
        padded = np.zeros((-(-rank // _FOUR) * _FOUR, columns), np.float32)
        padded[:rank] = down
        turned = np.zeros((rank, lanes), np.float32)
        turned[:, :rows] = up.T
        kind = _narrowest(padded, turned)
        factors = None
        if factor is not None:
            factors = np.ones(lanes, np.float32)
            factors[:rows] = factor
        return cls(kind, (rows, columns), rank, _as(kind, padded), _as(kind, turned), factors)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.down.nbytes + self.up.nbytes

    @property
    def sums(self) -> int:
        """Return how many sums of ``down`` a row of activations has, with those of zeros."""
        return len(self.down)

    @property
    def factor_address(self) -> int:
        """Return the address of the factors; 0 where there are none."""
        return 0 if self.factor is None else int(self.factor.ctypes.data)

    def add(self, x: int, x_stride: int, rows: int, y: int, y_stride: int, threads: int) -> None:
        """Add the change to ``rows`` rows of y float32 [rows, out], for those of x float32 [rows, in].

        Addresses, and bytes between rows; the values of a row follow each other.
        """
        chunks = -(-rows // _ROWS)
        area = 4 * (_ROWS * self.sums + _SPARE)
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


@numba.njit(**OPTIONS)
def _write_sums(down, columns, x, apart, rows, low, low_apart, count, kind):
    """Write ``count`` sums of ``down``, a multiple of four, of each of some rows of x: low [rows, count]."""
    row_bytes, one, row = columns * row_width(kind), np.float32(1.0), 0
    while row + 4 <= rows:
        at, to = x + row * apart, low + row * low_apart
        for rank in range(0, count, 4):
            dots(at, apart, down + rank * row_bytes, row_bytes, columns, one, to + 4 * rank, low_apart, kind, 4)
        row += 4
    while row < rows:
        at, to, rank = x + row * apart, low + row * low_apart, 0
        while rank + 16 <= count:
            dots(at, 0, down + rank * row_bytes, row_bytes, columns, one, to + 4 * rank, 0, kind, 1)
            rank += 16
        while rank < count:  # four times the same row
            dots(at, 0, down + rank * row_bytes, row_bytes, columns, one, to + 4 * rank, 0, kind, 4)
            rank += 4
        row += 1


@numba.njit(**OPTIONS)
def _add_group(up, stride, low, low_apart, rank, y, apart, rows, kind, groups):
    """Add the products of ``up`` with the sums ``low`` of some rows to y, for 16 ``groups`` results of each."""
    ahead, row = LANES * groups * row_width(kind), 0
    while row + 4 <= rows:
        at, sums = y + row * apart, low + row * low_apart
        mix(up, stride, sums, low_apart, rank, at, apart, ahead, kind, 4, groups)
        row += 4
    while row < rows:
        mix(up, stride, low + row * low_apart, 0, rank, y + row * apart, 0, ahead, kind, 1, groups)
        row += 1


@numba.njit(**OPTIONS)
def _scale(y, apart, rows, factor, first, last):
    for row in range(rows):
        for group in range(first, last):
            at = y + row * apart + 64 * group
            store(at, multiply(load(at), load(factor + 64 * group)))


@numba.njit(**OPTIONS)
def _add_up(up, stride, factor, low, low_apart, rank, y, apart, rows, first, last, kind):
    """Do so for the groups [first, last) of 16 results, and multiply them with their factors if there are any."""
    width, group = LANES * row_width(kind), first
    while group + 4 <= last:
        _add_group(up + group * width, stride, low, low_apart, rank, y + 64 * group, apart, rows, kind, 4)
        group += 4
    while group < last:
        _add_group(up + group * width, stride, low, low_apart, rank, y + 64 * group, apart, rows, kind, 1)
        group += 1
    if factor != 0:
        _scale(y, apart, rows, factor, first, last)


def _fill_kernel(kind: Any) -> Kernel:
    """``f(x, down, count, low, columns, ...)``: ``count`` sums of one row."""

    @kernel(10)
    def run(x, down, count, low, columns, u0, u1, u2, u3, u4):
        _write_sums(down, columns, x, 0, 1, low, 0, count, kind)

    return run


def _up_kernel(kind: Any) -> Kernel:
    """``f(up, factor, low, y, rank, stride, unused, first, last, ...)``: the groups [first, last) of ``up``, added to
    y."""

    @kernel(16)
    def run(up, factor, low, y, rank, stride, u0, first, last, u1, u2, u3, u4, u5, u6, u7):
        _add_up(up, stride, factor, low, 0, rank, y, 0, 1, first, last, kind)

    return run


# ---- many rows


@numba.njit(**OPTIONS)
def _add_rest(up, stride, factor, low, rank, y, lanes, scratch, kind):
    """Add the last group of ``up`` to one row, which has ``lanes`` values of it."""
    for lane in range(lanes):
        write_float(scratch + 4 * lane, read_float(y + 4 * lane))
    _add_up(up, stride, factor, low, 0, rank, scratch, 0, 1, 0, 1, kind)
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
    low, groups, width = scratch + 4 * _SPARE, lanes // 16, row_width(kind)
    count, stride = (rank + 3) // 4 * 4, (lanes + 15) // 16 * 16 * width
    while True:
        first = fetch_add(words, 1) * _ROWS
        if first >= rows:
            break
        taken, to = min(_ROWS, rows - first), y + first * y_stride
        _write_sums(down, columns, x + first * x_stride, x_stride, taken, low, 4 * count, count, kind)
        _add_up(up, stride, factor, low, 4 * count, rank, to, y_stride, taken, 0, groups, kind)
        if lanes % 16:
            behind, rest = factor + 64 * groups if factor != 0 else 0, up + 16 * groups * width
            for row in range(taken):
                place, sums = to + row * y_stride + 64 * groups, low + 4 * row * count
                _add_rest(rest, stride, behind, sums, rank, place, lanes % 16, scratch, kind)


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
