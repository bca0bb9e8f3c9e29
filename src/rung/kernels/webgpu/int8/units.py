"""Activations as signed bytes: 32 numbers with their scale, in the memory of a GPU and in NumPy.

A unit is 12 words: eight of four codes each, the scale (float32), the sums of the first 16 codes and of the others
(int32), and the sum of the squares of the numbers before the gain of a norm (float32), which the next product's norm
needs. What is no number makes a scale that is none.
"""

from __future__ import annotations

import numpy as np

from rung.formats.codec import Floats
from rung.kernels.webgpu.layouts import UNIT

#: Vectors of four words of a unit.
VECTORS = 3


def units_bytes(rows: int, columns: int) -> int:
    """Return the bytes of rows of activations as units."""
    return 16 * VECTORS * rows * (columns // UNIT)


def quantize(value: str, gain: str = "") -> str:
    """Return the WGSL function ``quantize(from, column, to)``: numbers to the unit that begins at vector ``to`` of
    ``quantized``.

    ``value`` is WGSL of the vec4 of the numbers ``at`` to ``at`` + 3, which begins with ``from``; ``gain`` of what the
    numbers from ``column`` on are multiplied with first.
    """
    return f"""fn quantize(begin: u32, column: u32, to: u32) {{
    var v: array<vec4<f32>, 8>;
    var squares = 0.0;
    var largest = vec4<f32>(0.0);
    var odd = vec4<bool>(false);
    for (var i = 0u; i < 8u; i++) {{
        let at = begin + 4u * i;
        let number = {value};
        squares += dot(number, number);
        v[i] = number{f" * {gain}" if gain else ""};
        largest = max(largest, abs(v[i]));
        odd = odd | ((bitcast<vec4<u32>>(v[i]) & vec4<u32>(0x7f800000u)) == vec4<u32>(0x7f800000u));
    }}
    let most = max(max(largest.x, largest.y), max(largest.z, largest.w));
    let inverse = select(0.0, 127.0 / most, most > 1e-30);
    var codes: array<u32, 8>;
    var sums = vec2<i32>(0);
    for (var i = 0u; i < 8u; i++) {{
        codes[i] = pack4xI8(vec4<i32>(round(v[i] * inverse)));
        let sum = dot4I8Packed(codes[i], 0x01010101u);
        sums += select(vec2<i32>(sum, 0), vec2<i32>(0, sum), i > 3u);
    }}
    let scale = select(bitcast<u32>(most / 127.0), 0x7fc00000u, any(odd));
    quantized[to] = vec4<u32>(codes[0], codes[1], codes[2], codes[3]);
    quantized[to + 1u] = vec4<u32>(codes[4], codes[5], codes[6], codes[7]);
    quantized[to + 2u] = vec4<u32>(scale, bitcast<u32>(sums.x), bitcast<u32>(sums.y), bitcast<u32>(squares));
}}"""


def rounded(x: Floats) -> Floats:
    """Return activations [rows, columns] as the codes of their units have them."""
    units = x.reshape(len(x), -1, UNIT)
    most = np.abs(units).max(axis=2, keepdims=True)
    inverse = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 1e-30)
    values: Floats = (np.rint(units * inverse) * (most / np.float32(127))).reshape(x.shape)
    return values


def units_of(x: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
    """Return the units [rows, columns / 32, 12] of activations [rows, columns] without a norm."""
    apart = x.reshape(len(x), -1, UNIT)
    most = np.abs(apart).max(axis=2, keepdims=True)
    inverse = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 1e-30)
    codes = np.rint(apart * inverse).astype(np.int8)
    sums = codes.reshape(*codes.shape[:2], 2, 16).sum(axis=3, dtype=np.int32)
    squares = (apart * apart).sum(axis=2, keepdims=True)
    parts = [codes.view(np.uint32), (most / np.float32(127)).view(np.uint32), sums.view(np.uint32)]
    return np.concatenate([*parts, squares.view(np.uint32)], axis=2)
