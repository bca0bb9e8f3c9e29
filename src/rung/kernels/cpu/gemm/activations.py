"""Activations as the quantized products read them: panels of a tile of rows, int8 with a scale for 32 columns.

A unit of a panel of T rows holds, for 32 columns: T x 32 signed bytes (interleaved as the level multiplies them, see
``Level.activation_offset``), T float32 scales, then for each part of the
unit (see ``Layout.activations``) T sums of the signed bytes: int32 times -offset, or float32 times the scale when
the offset is 0. A value is quantized to the nearest of 255 levels, as llama.cpp does (Q8_0). Weights that are stored as
floats want the floats themselves.
"""

from __future__ import annotations

import numpy as np

from rung.kernels.cpu.compiled import Kernel, kernel, per_level
from rung.kernels.cpu.decode.elementwise import copy
from rung.kernels.isa.registers import (
    add_i32,
    largest_magnitude,
    load_bf16,
    load_f16,
    load_f32,
    mul_f32,
    splat_f32,
    store_activations,
    sum_i32,
    to_i32,
)
from rung.kernels.isa.scalar import write_f32, write_u32

_SMALLEST = np.float32(2.0**-100)


@per_level
def quantize(dtype: str) -> Kernel:
    """The kernel for activations in f32, f16 or bf16.

    ``f(x, stride, rows, panel, tile, parts, offset, first, last, at)`` quantizes columns [32 first, 32 last) of
    ``rows`` rows into the rows from ``at`` on of a panel of ``tile`` rows. ``x`` is the address of the first row,
    ``stride`` the bytes between rows, ``panel`` the panel's. Other rows of the panel stay as they are. A row with NaN
    or Inf in a unit makes that unit NaN.
    """
    f32, f16 = dtype == "f32", dtype == "f16"  # numbers: a kernel that holds an instruction is never found on disk
    size = 4 if f32 else 2

    @kernel(10)
    def run(x, stride, rows, panel, tile, parts, offset, first, last, at):
        step = tile * (36 + 4 * parts)
        for unit in range(first, last):
            codes = panel + unit * step
            scales = codes + 32 * tile
            sums = scales + 4 * tile
            for row in range(at, at + rows):
                scale = np.float32(0)
                inverse = splat_f32(np.float32(0))
                source = x + 32 * size * unit + (row - at) * stride
                if f32:
                    u, v = load_f32(source), load_f32(source + 64)
                elif f16:
                    u, v = load_f16(source), load_f16(source + 32)
                else:
                    u, v = load_bf16(source), load_bf16(source + 32)
                largest = largest_magnitude(u, v)
                if not largest < _SMALLEST:
                    scale = largest / np.float32(127)
                    inverse = splat_f32(np.float32(127) / largest)
                a, b = to_i32(mul_f32(u, inverse)), to_i32(mul_f32(v, inverse))
                store_activations(codes, tile, row, 0, a)
                store_activations(codes, tile, row, 1, b)
                write_f32(scales + 4 * row, scale)
                if parts == 1:
                    low, high = sum_i32(add_i32(a, b)), 0
                else:
                    low, high = sum_i32(a), sum_i32(b)
                if offset:
                    write_u32(sums + 4 * row, -offset * low)
                    if parts == 2:
                        write_u32(sums + 4 * (tile + row), -offset * high)
                else:
                    write_f32(sums + 4 * row, scale * np.float32(low))
                    if parts == 2:
                        write_f32(sums + 4 * (tile + row), scale * np.float32(high))

    return run


@kernel(10)
def keep(x, stride, rows, panel, tile, parts, offset, first, last, at):
    """Copies columns [16 first, 16 last) of one row of float32 to a panel; called as those of ``quantize`` are."""
    copy(panel + 64 * first, x + 64 * first, 16 * (last - first))
