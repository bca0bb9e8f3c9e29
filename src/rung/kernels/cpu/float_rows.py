"""Products of float weights, read as they are stored, with a few rows of float32 activations."""

from __future__ import annotations

import functools
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.cgutils import alloca_once, for_range
from numba.extending import intrinsic

from rung.kernels.cpu.compiled import Kernel, kernel
from rung.kernels.simd import avx512 as v
from rung.kernels.simd.generic import fetch_add
from rung.kernels.simd.scalar import read_i64
from rung.kernels.simd.vector import I64, INT, VOID, store

#: Rows of activations that are taken at once, and rows of weights that then share them in registers.
TILES = {1: 8, 2: 4, 4: 4, 8: 2}
_LOADS = {"f32": (v.load_f32, 4), "f16": (v.load_f16, 2), "bf16": (v.load_bf16, 2)}


@intrinsic(prefer_literal=True)
def _multiply_rows(typing_context, format, tile, weights, row_bytes, x, stride, columns, y, out_stride, rows):
    """A few rows of weights times ``tile`` rows of activations; all arguments but the first two are int64.

    ``x`` has ``stride`` bytes between rows, ``columns`` is a multiple of 16. Writes float32 [rows, weights] to ``y``,
    with ``out_stride`` bytes between rows.
    """
    if not isinstance(format, types.StringLiteral):
        return None
    load, width = _LOADS[format.literal_value]
    count, weight_rows = tile.literal_value, TILES[tile.literal_value]

    def generate(context: Any, b: ir.IRBuilder, signature: Any, values: list[ir.Value]) -> Any:
        weights, row_bytes, x, stride, columns, y, out_stride, rows = values[2:]
        totals = [[alloca_once(b, v.F32S) for _ in range(count)] for _ in range(weight_rows)]
        for total in (each for row in totals for each in row):
            b.store(v.zero_f32.emit(b), total)
        with for_range(b, b.lshr(columns, I64(4))) as loop:
            at = b.mul(loop.index, I64(16 * width))
            given = [
                v.load_f32.emit(b, b.add(x, b.add(b.mul(stride, I64(row)), b.mul(loop.index, I64(64)))))
                for row in range(count)
            ]
            for index, row in enumerate(totals):
                weight = load.emit(b, b.add(weights, b.add(b.mul(row_bytes, I64(index)), at)))
                for total, activations in zip(row, given, strict=True):
                    b.store(v.fma_f32.emit(b, weight, activations, b.load(total)), total)
        for number in range(count):
            with b.if_then(b.icmp_signed(">", rows, I64(number))):
                for index in range(weight_rows):
                    place = b.add(y, b.add(b.mul(out_stride, I64(number)), I64(4 * index)))
                    store(b, place, v.sum_f32.emit(b, b.load(totals[index][number])))
        return context.get_dummy_value()

    return VOID(format, tile, *[INT] * 8), generate


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
                place = weights + at * row_bytes
                _multiply_rows(format, tile, place, row_bytes, x, stride, columns, y + 4 * at, out_stride, rows)

    return run
