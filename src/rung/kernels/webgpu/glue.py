"""Kernels between the products: rows of the embedding, norms behind products, the final norm."""

from __future__ import annotations

from rung.kernels.webgpu.gpu import Kernel
from rung.kernels.webgpu.info import INFO, MOST_ROWS, SELECTED, TOKEN, declare
from rung.kernels.webgpu.int8.units import VECTORS, quantize, units_bytes
from rung.kernels.webgpu.layouts import UNIT, GpuLayout, address, reader

THREADS = 64


def embed(
    layout: GpuLayout, rows: int, columns: int, base: int, scale: float, gains: int = 0, first: int = 0
) -> Kernel:
    """Return the kernel that writes the scaled rows of the tokens; workgroups [units / 64, rows of activations].

    The weight has the rows of tokens from ``first`` on; those of others are not written. Its buffers are words, words,
    info and y [rows, columns]. With ``gains``, so many of them, it writes the units of rows times the first of these
    too; its buffers are then these gains and units besides.
    """
    kinds = ["vectors: array<vec4<u32>>", "words: array<u32>", "info: array<u32>", "y: array<vec4<f32>>"]
    kinds += ["gains: array<vec4<f32>>", "quantized: array<vec4<u32>>"] if gains else []
    units = f"quantize(0u, 32u * unit, (id.y * {columns // UNIT}u + unit) * {VECTORS}u);" if gains else ""
    # with an offset the sum of two products would be rounded otherwise than the decoded weight
    value = f"scale * (w[i] - {layout.offset}.0)" if layout.offset else "scale * w[i] + select(f.z, f.w, i > 3u)"
    code = f"""{declare(kinds, writes=(3, 5))}
{reader("read_unit", layout, columns)}
var<private> row: array<vec4<f32>, 8>;
{quantize("row[i]", "gains[column / 4u + i]") if gains else ""}
@compute @workgroup_size({THREADS})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    let unit = id.x;
    let token = info[{TOKEN}u + id.y] - {first}u;
    if (unit >= {columns // UNIT}u || token >= {rows}u) {{ return; }}
    var w: array<vec4<f32>, 8>;
    let f = read_unit({address(layout, rows, columns, base)}, token, unit, &w);
    for (var i = 0u; i < 8u; i++) {{
        let scale = select(f.x, f.y, i > 3u);
        row[i] = ({value}) * {scale!r}f;
        y[id.y * {columns // 4}u + 8u * unit + i] = row[i];
    }}
    {units}
}}"""
    words = base + layout.sections(rows, columns).words
    sizes = [4 * words, 4 * words, 4 * INFO, 4 * MOST_ROWS * columns]
    if gains:
        return Kernel(code, (False,) * 3 + (True, False, True), (*sizes, 4 * gains, units_bytes(MOST_ROWS, columns)))
    return Kernel(code, (False,) * 3 + (True,), tuple(sizes))


def embed_groups(columns: int) -> int:
    """Return the workgroups of a row of ``embed``."""
    return -(-columns // UNIT // THREADS)


def norm(columns: int, gains: int, epsilon: float, gain: int, post: int) -> Kernel:
    """Return the kernel of y = norm(x) of the selected rows, or of norm(x + norm(added)) where ``post`` is the gain of
    that norm (-1: none); a workgroup for each row.

    Its buffers are gains, info, x, added and y.
    """
    kinds = ["gains: array<vec4<f32>>", "info: array<u32>", "x: array<vec4<f32>>", "added: array<vec4<f32>>"]
    value = f"x[first + i] + added[first + i] * other * gains[{post // 4}u + i]" if post >= 0 else "x[first + i]"
    other = f"""for (var i = thread; i < {columns // 4}u; i += {THREADS}u) {{
        sum += dot(added[first + i], added[first + i]);
    }}
    let other = scale(sum, thread);
    sum = 0.0;"""
    code = f"""{declare([*kinds, "y: array<vec4<f32>>"], writes=(4,))}
var<workgroup> partial: array<f32, {THREADS}>;
fn scale(sum: f32, thread: u32) -> f32 {{
    workgroupBarrier();
    partial[thread] = sum;
    workgroupBarrier();
    var whole = 0.0;
    for (var t = 0u; t < {THREADS}u; t++) {{ whole += partial[t]; }}
    return inverseSqrt(whole / {columns}.0 + {epsilon!r}f);
}}
@compute @workgroup_size({THREADS})
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {{
    let first = info[{SELECTED}u + id.x] * {columns // 4}u;
    let to = id.x * {columns // 4}u;
    var sum = 0.0;
    {other if post >= 0 else ""}
    for (var i = thread; i < {columns // 4}u; i += {THREADS}u) {{
        let v = {value};
        sum += dot(v, v);
    }}
    let own = scale(sum, thread);
    for (var i = thread; i < {columns // 4}u; i += {THREADS}u) {{
        y[to + i] = ({value}) * own * gains[{gain // 4}u + i];
    }}
}}"""
    size = 4 * MOST_ROWS * columns
    return Kernel(code, (False,) * 4 + (True,), (4 * gains, 4 * INFO, size, size, size), 4 * THREADS)


def add_normed(columns: int, gains: int, epsilon: float, post: int, gain: int) -> Kernel:
    """Return the kernel of y = x + norm(added), and of the units of y times a gain; a workgroup for each row.

    Where the gains of the norm and of the units lie in ``gains`` float32 are ``post`` and ``gain``. Its buffers are
    gains, x, added, y and units.
    """
    kinds = ["gains: array<vec4<f32>>", "x: array<vec4<f32>>", "added: array<vec4<f32>>"]
    code = f"""{declare([*kinds, "y: array<vec4<f32>>", "quantized: array<vec4<u32>>"], writes=(3, 4))}
var<workgroup> partial: array<f32, {THREADS}>;
var<private> first: u32;
var<private> scale: f32;
fn add(i: u32) -> vec4<f32> {{
    let sum = x[first + i] + added[first + i] * scale * gains[{post // 4}u + i];
    y[first + i] = sum;
    return sum;
}}
{quantize("add(at / 4u)", f"gains[{gain // 4}u + column / 4u + i]")}
@compute @workgroup_size({THREADS})
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {{
    first = id.x * {columns // 4}u;
    var sum = 0.0;
    for (var i = thread; i < {columns // 4}u; i += {THREADS}u) {{ sum += dot(added[first + i], added[first + i]); }}
    partial[thread] = sum;
    workgroupBarrier();
    sum = 0.0;
    for (var t = 0u; t < {THREADS}u; t++) {{ sum += partial[t]; }}
    scale = inverseSqrt(sum / {columns}.0 + {epsilon!r}f);
    for (var unit = thread; unit < {columns // UNIT}u; unit += {THREADS}u) {{
        quantize({UNIT}u * unit, {UNIT}u * unit, (id.x * {columns // UNIT}u + unit) * {VECTORS}u);
    }}
}}"""
    size = 4 * MOST_ROWS * columns
    sizes = (4 * gains, size, size, size, units_bytes(MOST_ROWS, columns))
    return Kernel(code, (False,) * 3 + (True, True), sizes, 4 * THREADS)
