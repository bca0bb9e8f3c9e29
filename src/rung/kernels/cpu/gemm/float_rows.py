"""Products of float weights, read as they are stored, with a few rows of float32 activations.

Weights of 8 bits (``e4m3``) come in blocks of columns with a scale before them, see ``rung.formats.families.grouped``.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import types
from numba.core.cgutils import alloca_once, for_range
from numba.extending import intrinsic

from rung import formats
from rung.formats.families.grouped import SCALES, scale_of
from rung.kernels.cpu.compiled import Kernel, kernel
from rung.kernels.isa import emit
from rung.kernels.isa import registers as v
from rung.kernels.isa.emit import F16, F32, I16, I32, I64, load, plus, splat, store
from rung.kernels.isa.generic import fetch_add
from rung.kernels.isa.scalar import read_i64
from rung.kernels.isa.vector import INT, VOID

#: Rows of activations that are taken at once, and rows of weights that then share them in registers. For a single one
#: memory is read in one piece: eight streams of 1.5 kB, which end before the prefetcher has learnt them, came at 14 to
#: 21 instead of 34 GB/s.
TILES = {1: 1, 2: 4, 4: 4, 8: 2}
#: Independent chains of additions for a single row, so that none waits for the one before.
_CHAINS = 4
#: How 16 weights of a format are loaded, and bytes of one.
_LOADS = {"f32": (v.load_f32, 4), "f16": (v.load_f16, 2), "bf16": (v.load_bf16, 2), "e4m3": (v.load_e4m3, 1)}


@dataclass(frozen=True)
class StoredAs:
    """How floats lie in a row: ``load`` widens 16 of ``width`` bytes each.

    ``block`` columns share a scale of the dtype ``scale``, which stands before them; 0 and "" where there is none.
    """

    load: Any
    width: int
    block: int = 0
    scale: str = ""

    @property
    def head(self) -> int:
        """Bytes of a scale."""
        return SCALES[self.scale].itemsize if self.scale else 0


def stored_as(format: str) -> StoredAs | None:
    """How a format of floats lies in a row; None for other formats."""
    kind = format.split(":")[0]
    if kind not in _LOADS:
        return None
    stored, (emitter, width) = formats.get(format), _LOADS[kind]
    if stored.family != "grouped":
        return StoredAs(emitter, width)
    return StoredAs(emitter, width, stored.block, scale_of(stored))


def _spread(b: ir.IRBuilder, address: ir.Value, dtype: str) -> ir.Value:
    """A scale in every lane, float32."""
    if dtype == "f32":
        return v.broadcast_f32.emit(b, address)
    if dtype == "f16":
        return splat(b, emit.widen(b, load(b, address, F16)), v.LANES)
    return splat(b, b.bitcast(b.shl(b.zext(load(b, address, I16), I32), I32(16)), F32), v.LANES)


@intrinsic(prefer_literal=True)
def _multiply_rows(typing_context, format, tile, wide, weights, row_bytes, x, stride, columns, y, out_stride, rows):
    """``wide`` rows of weights times ``tile`` rows of activations; all arguments but the first three are int64.

    ``x`` has ``stride`` bytes between rows, ``columns`` is a multiple of 16 and of a block. Writes float32
    [rows, weights] to ``y``, with ``out_stride`` bytes between rows.
    """
    if not isinstance(format, types.StringLiteral):
        return None
    stored = stored_as(format.literal_value)
    assert stored is not None
    count, weight_rows = tile.literal_value, wide.literal_value

    def generate(context: Any, b: ir.IRBuilder, signature: Any, values: list[ir.Value]) -> Any:
        weights, row_bytes, x, stride, columns, y, out_stride, rows = values[3:]
        chains = _CHAINS if count * weight_rows == 1 else 1

        def zeros() -> list[list[list[ir.Value]]]:
            sums = [[[alloca_once(b, v.F32S) for _ in range(count)] for _ in range(weight_rows)] for _ in range(chains)]
            clear(sums)
            return sums

        def clear(totals: list[list[list[ir.Value]]]) -> None:
            for total in (each for chain in totals for row in chain for each in row):
                b.store(v.zero_f32.emit(b), total)

        def add_vector(totals: list[list[ir.Value]], number: ir.Value, weights: ir.Value, x: ir.Value) -> None:
            at = b.mul(number, I64(16 * stored.width))
            values = [
                v.load_f32.emit(b, b.add(x, b.add(b.mul(stride, I64(row)), b.mul(number, I64(64)))))
                for row in range(count)
            ]
            for index, row in enumerate(totals):
                weight = stored.load.emit(b, b.add(weights, b.add(b.mul(row_bytes, I64(index)), at)))
                for total, activations in zip(row, values, strict=True):
                    b.store(v.fma_f32.emit(b, weight, activations, b.load(total)), total)

        def add(totals: list[list[list[ir.Value]]], vectors: ir.Value, weights: ir.Value, x: ir.Value) -> None:
            turns = b.sdiv(vectors, I64(chains))
            with for_range(b, turns) as loop:
                for number, chain in enumerate(totals):
                    add_vector(chain, b.add(b.mul(loop.index, I64(chains)), I64(number)), weights, x)
            if chains > 1:
                with for_range(b, vectors, b.mul(turns, I64(chains))) as loop:
                    add_vector(totals[0], loop.index, weights, x)

        def whole(totals: list[list[list[ir.Value]]], index: int, number: int) -> ir.Value:
            return functools.reduce(b.fadd, (b.load(chain[index][number]) for chain in totals))

        totals = zeros()
        if stored.block:
            sums, step = zeros(), stored.head + stored.width * stored.block
            with for_range(b, b.sdiv(columns, I64(stored.block))) as loop:
                address = b.add(weights, b.mul(loop.index, I64(step)))
                clear(sums)
                panel = b.add(x, b.mul(loop.index, I64(4 * stored.block)))
                add(sums, I64(stored.block // 16), plus(b, address, stored.head), panel)
                for index, row in enumerate(totals[0]):
                    scale = _spread(b, b.add(address, b.mul(row_bytes, I64(index))), stored.scale)
                    for number, total in enumerate(row):
                        b.store(v.fma_f32.emit(b, whole(sums, index, number), scale, b.load(total)), total)
        else:
            add(totals, b.lshr(columns, I64(4)), weights, x)
        for number in range(count):
            with b.if_then(b.icmp_signed(">", rows, I64(number))):
                for index in range(weight_rows):
                    address = b.add(y, b.add(b.mul(out_stride, I64(number)), I64(4 * index)))
                    store(b, address, v.sum_f32.emit(b, whole(totals, index, number)))
        return context.get_dummy_value()

    return VOID(format, tile, wide, *[INT] * 8), generate


@functools.cache
def multiply_stored(format: str, tile: int) -> Kernel:
    """The kernel ``f(words, thread, threads)`` of a format and a tile, for ``parallel.run``.

    Words: counter, weights, bytes of a row, x, bytes between rows of x, columns, y, bytes between rows of y, rows of
    activations, rows of weights, rows of weights in a chunk (a multiple of ``TILES[tile]``). The activations must
    have ``tile`` rows in memory. The last rows are computed from the end, so there must be ``TILES[tile]`` in all.
    """
    wide = TILES[tile]

    @kernel(3)
    def run(words, thread, threads):
        weights, row_bytes, x, stride = (
            read_i64(words + 8),
            read_i64(words + 16),
            read_i64(words + 24),
            read_i64(words + 32),
        )
        columns, y, out_stride, rows = (
            read_i64(words + 40),
            read_i64(words + 48),
            read_i64(words + 56),
            read_i64(words + 64),
        )
        count, chunk = read_i64(words + 72), read_i64(words + 80)
        while True:
            first = fetch_add(words, 1) * chunk
            if first >= count:
                break
            for row in range(first, min(first + chunk, count), wide):
                at = min(row, count - wide)
                address = weights + at * row_bytes
                _multiply_rows(format, tile, wide, address, row_bytes, x, stride, columns, y + 4 * at, out_stride, rows)

    return run


@dataclass(frozen=True, eq=False)
class FloatRows:
    """A weight [out, in] of floats as it is stored: ``data`` uint8 [out, bytes of a row] in ``format``."""

    format: str
    shape: tuple[int, int]
    data: npt.NDArray[np.uint8]


@functools.cache
def multiply_one(format: str) -> Kernel:
    """The kernel of a format for one row of activations, called as those of ``linear.multiply`` are.

    ``f(weights, row_bytes, x, y, columns, lanes, unused, first, last, ...)``: the rows [16 first, 16 last) of a weight
    of ``lanes`` rows times float32 [columns] at ``x``, a multiple of 16, to float32 at ``y``.
    """

    @kernel(16)
    def run(weights, row_bytes, x, y, columns, lanes, u0, first, last, u1, u2, u3, u4, u5, u6, u7):
        for row in range(16 * first, min(16 * last, lanes)):
            _multiply_rows(format, 1, 1, weights + row * row_bytes, row_bytes, x, 0, columns, y + 4 * row, 0, 1)

    return run
