"""Activations as the quantised products read them: panels of a tile of rows, int8 with a scale for 32 columns.

A unit of a panel of T rows holds, for 32 columns: T x 32 signed bytes, T float32 scales, then for each part of the
unit (see ``Layout.activations``) T sums of the signed bytes: int32 times -offset, or float32 times the scale when
the offset is 0. A value is quantised to the nearest of 255 levels, as llama.cpp does (Q8_0). Weights that are stored as
floats want the floats themselves.
"""

from __future__ import annotations

import numpy as np

from rung.kernels.cpu.compiled import kernel
from rung.kernels.cpu.glue import copy
from rung.kernels.simd.avx512 import (
    largest_magnitude,
    load_f32,
    mul_f32,
    splat_f32,
    store_low_bytes,
    sum_i32,
    to_i32,
)
from rung.kernels.simd.scalar import write_f32, write_u32

_SMALLEST = np.float32(2.0**-100)


@kernel(9)
def quantise(x, stride, rows, panel, tile, parts, offset, first, last):
    """Quantises columns [32 first, 32 last) of ``rows`` <= ``tile`` rows of float32 into a panel.

    ``x`` is the address of the first row, ``stride`` the bytes between rows, ``panel`` the panel's. Rows that are
    not there become zeros. A row with NaN or Inf in a unit makes that unit NaN.
    """
    step = tile * (36 + 4 * parts)
    for unit in range(first, last):
        codes = panel + unit * step
        scales = codes + 32 * tile
        sums = scales + 4 * tile
        for row in range(tile):
            low = high = 0
            scale = np.float32(0)
            inverse = splat_f32(np.float32(0))
            source = x + 128 * unit
            if row < rows:
                source += row * stride
                largest = largest_magnitude(load_f32(source), load_f32(source + 64))
                if not largest < _SMALLEST:
                    scale = largest / np.float32(127)
                    inverse = splat_f32(np.float32(127) / largest)
            a = to_i32(mul_f32(load_f32(source), inverse))
            b = to_i32(mul_f32(load_f32(source + 64), inverse))
            store_low_bytes(codes + 32 * row, a)
            store_low_bytes(codes + 32 * row + 16, b)
            low, high = sum_i32(a), sum_i32(b)
            write_f32(scales + 4 * row, scale)
            if parts == 1:
                low += high
            if offset:
                write_u32(sums + 4 * row, -offset * low)
                if parts == 2:
                    write_u32(sums + 4 * (tile + row), -offset * high)
            else:
                write_f32(sums + 4 * row, scale * np.float32(low))
                if parts == 2:
                    write_f32(sums + 4 * (tile + row), scale * np.float32(high))


@kernel(9)
def keep(x, stride, rows, panel, tile, parts, offset, first, last):
    """Copies columns [16 first, 16 last) of one row of float32 to a panel; called as ``quantise`` is."""
    copy(panel + 64 * first, x + 64 * first, 16 * (last - first))
