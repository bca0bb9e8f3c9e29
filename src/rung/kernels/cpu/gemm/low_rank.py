"""Products of adapters (LoRA), added to those of a weight: y += up (down x), ``down`` [rank, in], ``up`` [out, rank].

Both lie in the narrowest of float16, bfloat16 and float32 that holds their values exactly; sums are float32. ``up``
lies turned, [rank, out], so that 16 results and more are made at once. With ``factor`` (DoRA) each row of the sum is
multiplied by its own number. Plain LLVM vectors: any processor runs this.

Each sum goes in one order, whatever is computed beside it: those of ``down`` in 16 lanes from the first column to the
last, then across the lanes; those of ``up`` from y on, from the first rank to the last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from rung.formats.codec import Floats
from rung.kernels.cpu.compiled import OPTIONS, Kernel, kernel
from rung.kernels.cpu.thread_pool import run
from rung.kernels.isa.generic import call_eight, fetch_add, load, multiply, read_float, read_int, store, write_float
from rung.kernels.isa.rows import dots, mix, row_width

LANES = 16
_ROWS = 8  # rows of activations that a thread takes at a time
_LINE = 64
_FOUR = 4  # rows of activations, ranks, and groups of results that are computed at once
#: Beside the sums of a row, floats of a thread's memory: a vector for the last rows of ``up``, and a line between.
_SPARE = 3 * LANES


class ChangeWord(IntEnum):
    """Words of a change that kernels read: the addresses of ``sum_ranks`` and ``add_groups`` of its kind; ``down``, its
    columns, and how many sums a row of activations has; ``up`` with the bytes between its ranks, the rank, and the
    factors or 0."""

    SUM, ADD, DOWN, COLUMNS, SUMS, UP, STRIDE, RANK, FACTOR = range(9)


_SUM, _ADD, _DOWN, _COLUMNS, _SUMS, _UP, _STRIDE, _RANK, _FACTOR = (8 * word for word in ChangeWord)


@dataclass(frozen=True, eq=False)
class LowRankRows:
    """Both matrices of an adapter's change, packed; ``kind`` is f32, f16 or bf16, ``shape`` is (out, in).

    ``down`` is [rank, in] with zeros up to a multiple of four ranks, ``up`` [rank, out] up to one of 16 results.
    """

    kind: str
    shape: tuple[int, int]
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
        return cls(kind, (rows, columns), _as(kind, padded), _as(kind, turned), factors)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return self.down.nbytes + self.up.nbytes + (0 if self.factor is None else self.factor.nbytes)

    @property
    def sums(self) -> int:
        """Return how many sums of ``down`` a row of activations has, with those of zeros."""
        return len(self.down)

    @cached_property
    def words(self) -> npt.NDArray[np.int64]:
        """Return ``ChangeWord``."""
        words = np.zeros(len(ChangeWord), np.int64)
        words[ChangeWord.SUM], words[ChangeWord.ADD] = sum_ranks[self.kind].address, add_groups[self.kind].address
        words[ChangeWord.DOWN], words[ChangeWord.COLUMNS] = self.down.ctypes.data, self.shape[1]
        words[ChangeWord.SUMS], words[ChangeWord.RANK] = self.sums, len(self.up)
        words[ChangeWord.UP], words[ChangeWord.STRIDE] = self.up.ctypes.data, self.up.strides[0]
        words[ChangeWord.FACTOR] = 0 if self.factor is None else self.factor.ctypes.data
        return words

    def add(self, x: int, x_stride: int, rows: int, y: int, y_stride: int, threads: int) -> None:
        """Add the change to ``rows`` rows of y float32 [rows, out], for those of x float32 [rows, in].

        Addresses, and bytes between rows; the values of a row follow each other.
        """
        chunks = -(-rows // _ROWS)
        area = 4 * (_ROWS * self.sums + _SPARE)
        scratch = np.empty(threads * area // 4, np.float32)
        words = (self.words.ctypes.data, x, x_stride, rows, y, y_stride, self.shape[0], scratch.ctypes.data, area)
        run(add_rows.address, (0, *words), min(threads, chunks))


def put_together(changes: Sequence[LowRankRows]) -> list[LowRankRows]:
    """Return the same changes in one piece of memory, which lies in huge pages where the system has them.

    Matrices of 32 kB in pages of 4 kB cost a walk of the page tables each, as weights have driven those out of caches.
    """
    sizes = [-(-part.nbytes // _LINE) * _LINE for each in changes for part in (each.down, each.up)]
    memory = np.empty(sum(sizes) + _LINE, np.uint8)
    at, found = -memory.ctypes.data % _LINE, []
    for each in changes:
        parts = []
        for part in (each.down, each.up):
            moved = memory[at : at + part.nbytes].view(part.dtype).reshape(part.shape)
            moved[...] = part
            parts.append(moved)
            at += -(-part.nbytes // _LINE) * _LINE
        found.append(replace(each, down=parts[0], up=parts[1]))
    return found


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
    """Write ``count`` sums of ``down``, a multiple of four, of each of some rows of x to ``low``."""
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


def _sum_kernel(kind: Any) -> Kernel:
    """``f(change, x, apart, rows, low, low_apart, first, last)``: the sums [first, last) of some rows of x.

    ``change`` is the address of ``ChangeWord``. Both are multiples of four, ``last`` may lie beyond the last sum. A row
    of x lies ``apart`` bytes from the one before, and its sums, which begin at ``low``, ``low_apart``.
    """

    @kernel(8)
    def run(change, x, apart, rows, low, low_apart, first, last):
        columns, count = read_int(change + _COLUMNS), min(last, read_int(change + _SUMS)) - first
        if count > 0:
            down = read_int(change + _DOWN) + first * columns * row_width(kind)
            _write_sums(down, columns, x, apart, rows, low + 4 * first, low_apart, count, kind)

    return run


def _add_kernel(kind: Any) -> Kernel:
    """``f(change, low, low_apart, rows, y, apart, first, last)``: add the groups [first, last) of 16 results to some
    rows of y, from the sums that ``sum_ranks`` has written."""

    @kernel(8)
    def run(change, low, low_apart, rows, y, apart, first, last):
        up, stride, rank = read_int(change + _UP), read_int(change + _STRIDE), read_int(change + _RANK)
        _add_up(up, stride, read_int(change + _FACTOR), low, low_apart, rank, y, apart, rows, first, last, kind)

    return run


_KINDS: dict[str, Any] = {"f32": np.float32(0), "f16": 0, "bf16": False}
#: The kernels of a change, by the kind of its matrices.
sum_ranks = {name: _sum_kernel(kind) for name, kind in _KINDS.items()}
add_groups = {name: _add_kernel(kind) for name, kind in _KINDS.items()}


@numba.njit(**OPTIONS)
def _add_rest(change, low, y, group, lanes, scratch):
    """Add the last group, of which y has ``lanes`` values, to one row."""
    pointer = scratch - 64 * group
    for lane in range(lanes):
        write_float(scratch + 4 * lane, read_float(y + 64 * group + 4 * lane))
    call_eight(read_int(change + _ADD), change, low, 0, 1, pointer, 0, group, group + 1)
    for lane in range(lanes):
        write_float(y + 64 * group + 4 * lane, read_float(scratch + 4 * lane))


@kernel(3)
def add_rows(words, thread, threads):
    """Words: counter, address of ``ChangeWord``, x, bytes between its rows, rows, y, bytes between its rows, values of
    a row, memory of the threads, bytes of each."""
    change, x, x_stride, rows = read_int(words + 8), read_int(words + 16), read_int(words + 24), read_int(words + 32)
    y, y_stride, lanes = read_int(words + 40), read_int(words + 48), read_int(words + 56)
    scratch = read_int(words + 64) + thread * read_int(words + 72)
    low, groups, sums = scratch + 4 * _SPARE, lanes // 16, read_int(change + _SUMS)
    while True:
        first = fetch_add(words, 1) * _ROWS
        if first >= rows:
            break
        count, at, to = min(_ROWS, rows - first), x + first * x_stride, y + first * y_stride
        call_eight(read_int(change + _SUM), change, at, x_stride, count, low, 4 * sums, 0, sums)
        call_eight(read_int(change + _ADD), change, low, 4 * sums, count, to, y_stride, 0, groups)
        if lanes % 16:
            for row in range(count):
                _add_rest(change, low + 4 * row * sums, to + row * y_stride, groups, lanes % 16, scratch)
