"""Activations as signed bytes: 32 numbers with their scale, in the memory of a GPU and in NumPy.

A unit is 12 words: eight of four codes each, the scale (float32), the sums of the first 16 codes and of the others
(int32), and the sum of the squares of the numbers before the gain of a norm (float32), which the next product's norm
needs. What is no number makes a scale that is none. The largest number becomes one of the codes 127 to 120: that with
which the codes miss the numbers by the least sum of squares. The scale then is the one that misses the least with these
codes: of Gaussian numbers 0.79 of what is missed with 127.
"""

from __future__ import annotations

import numpy as np

from rung.formats.codec import Floats
from rung.kernels.webgpu.layouts import UNIT

#: Vectors of four words of a unit.
VECTORS = 3
#: Codes that the largest number may become, and the largest of them.
_TRIED, _LARGEST = 8, 127
#: The same of units that each workgroup makes for itself, whose scales are those of the largest number.
NEAR = (127, 125)


def units_bytes(rows: int, columns: int) -> int:
    """Return the bytes of rows of activations as units."""
    return 16 * VECTORS * rows * (columns // UNIT)


def making_bytes(units: int) -> int:
    """Return the memory of a workgroup that ``quantize`` needs for so many units at once."""
    return 4 * _TRIED * units


def lanes(units: int, threads: int) -> int:
    """Return how many threads of a workgroup make each of its units."""
    return _TRIED if _TRIED * units <= threads else threads // units


def _least(tried: str) -> str:
    """Return the WGSL that finds the code for the largest number, number k of those tried, that misses the least."""
    return f"""for (var k = 0u; k < {_TRIED}u; k++) {{
        let tried = {tried};
        if (k == 0u || tried < least) {{ least = tried; code = {_LARGEST}.0 - f32(k); }}
    }}"""


def quantize(value: str, gain: str = "", units: int = 0, threads: int = 1) -> str:
    """Return the WGSL function ``quantize(begin, column, to)``: numbers to the unit that begins at vector ``to`` of
    ``quantized``.

    ``value`` is WGSL of the vec4 of the numbers ``at`` to ``at`` + 3, which begins with ``begin``; ``gain`` of what the
    numbers from ``column`` on are multiplied with first. With ``units`` it is ``quantize(begin, column, to, thread,
    there)``, which all ``threads`` of a workgroup call: ``lanes`` of them with the same unit, one of so many, where it
    is ``there``, each trying some codes for its largest number.
    """
    head, end = "fn quantize(begin: u32, column: u32, to: u32) {", ""
    tried = f"miss(&v, most, {_LARGEST}.0 - f32(k))"
    choose = _least(tried)
    if units:
        own = lanes(units, threads)
        at = f"misses[{_TRIED}u * (thread / {own}u) + k]"
        head = f"""var<workgroup> misses: array<f32, {_TRIED * units}>;
fn quantize(begin: u32, column: u32, to: u32, thread: u32, there: bool) {{"""
        choose = f"""if (there) {{
        for (var k = thread % {own}u; k < {_TRIED}u; k += {own}u) {{ {at} = {tried}; }}
    }}
    workgroupBarrier();
    if (there && thread % {own}u == 0u) {{
    {_least(at)}"""
        end = "}"
    load = f"""for (var i = 0u; i < 8u; i++) {{
        let at = begin + 4u * i;
        let number = {value};
        squares += dot(number, number);
        v[i] = number{f" * {gain}" if gain else ""};
        largest = max(largest, abs(v[i]));
        odd = odd | ((bitcast<vec4<u32>>(v[i]) & vec4<u32>(0x7f800000u)) == vec4<u32>(0x7f800000u));
    }}"""
    return f"""fn miss(v: ptr<function, array<vec4<f32>, 8>>, most: f32, code: f32) -> f32 {{
    let inverse = select(0.0, code / most, most > 1e-30);
    var sum = 0.0;
    for (var i = 0u; i < 8u; i++) {{
        let exact = (*v)[i] * inverse;
        let off = round(exact) - exact;
        sum += dot(off, off);
    }}
    return sum / (code * code);
}}
{head}
    var v: array<vec4<f32>, 8>;
    var squares = 0.0;
    var largest = vec4<f32>(0.0);
    var odd = vec4<bool>(false);
    {f"if (there) {{ {load} }}" if units else load}
    let most = max(max(largest.x, largest.y), max(largest.z, largest.w));
    var least = 0.0;
    var code = 0.0;
    {choose}
    let inverse = select(0.0, code / most, most > 1e-30);
    var codes: array<u32, 8>;
    var sums = vec2<i32>(0);
    var product = 0.0;
    var length = 0;
    for (var i = 0u; i < 8u; i++) {{
        let near = round(v[i] * inverse);
        product += dot(v[i], near);
        codes[i] = pack4xI8(vec4<i32>(near));
        length += dot4I8Packed(codes[i], codes[i]);
        let sum = dot4I8Packed(codes[i], 0x01010101u);
        sums += select(vec2<i32>(sum, 0), vec2<i32>(0, sum), i > 3u);
    }}
    let least_squares = select(0.0, product / f32(length), length > 0);
    let scale = select(bitcast<u32>(least_squares), 0x7fc00000u, any(odd));
    quantized[to] = vec4<u32>(codes[0], codes[1], codes[2], codes[3]);
    quantized[to + 1u] = vec4<u32>(codes[4], codes[5], codes[6], codes[7]);
    quantized[to + 2u] = vec4<u32>(scale, bitcast<u32>(sums.x), bitcast<u32>(sums.y), bitcast<u32>(squares));
    {end}
}}"""


def _codes(x: Floats, near: bool = False) -> tuple[Floats, Floats]:
    """Return the codes [rows, units, 32] of activations [rows, columns] as float32, and their scales [rows, units, 1]:
    with that of some codes for the largest number that misses the least, and the scale that does with them."""
    units = x.reshape(len(x), -1, UNIT)
    most = np.abs(units).max(axis=2, keepdims=True)
    largest = np.array(NEAR if near else range(_LARGEST, _LARGEST - _TRIED, -1), np.float32)
    exact = [units * np.divide(code, most, out=np.zeros_like(most), where=most > 1e-30) for code in largest]
    misses = [((np.rint(t) - t) ** 2).sum(axis=2) / code**2 for t, code in zip(exact, largest, strict=True)]
    best = np.argmin(misses, axis=0)[..., None]
    codes: Floats = np.rint(np.take_along_axis(np.stack(exact, axis=-1), best[..., None], axis=-1)[..., 0])
    if near:
        return codes, most / largest[best]
    product, length = ((each * codes).sum(axis=2, keepdims=True) for each in (units, codes))
    return codes, np.divide(product, length, out=np.zeros_like(most), where=length > 0)


def rounded(x: Floats, near: bool = False) -> Floats:
    """Return activations [rows, columns] as the codes of their units have them; ``near``: of units that a workgroup
    makes for itself (``tiles``)."""
    codes, scales = _codes(x, near)
    values: Floats = (codes * scales).reshape(x.shape)
    return values


def units_of(x: Floats) -> np.ndarray[tuple[int, ...], np.dtype[np.uint32]]:
    """Return the units [rows, columns / 32, 12] of activations [rows, columns] without a norm."""
    exact, scales = _codes(x)
    codes = exact.astype(np.int8)
    sums = codes.reshape(*codes.shape[:2], 2, 16).sum(axis=3, dtype=np.int32)
    squares = np.square(x.reshape(codes.shape)).sum(axis=2, keepdims=True)
    parts = [codes.view(np.uint32), scales.view(np.uint32), sums.view(np.uint32)]
    return np.concatenate([*parts, squares.view(np.uint32)], axis=2)
