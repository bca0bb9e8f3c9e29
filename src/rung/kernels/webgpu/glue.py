"""Kernels between the products: rows of the embedding, sums with a norm."""

from __future__ import annotations

from rung.kernels.webgpu.gpu import Kernel
from rung.kernels.webgpu.info import INFO, MOST_ROWS, SELECTED, TOKEN, declare
from rung.kernels.webgpu.layouts import UNIT, GpuLayout, address, reader

THREADS = 64


def embed(layout: GpuLayout, rows: int, columns: int, base: int, scale: float) -> Kernel:
    """Return the kernel that writes the scaled rows of the tokens; workgroups [units / 64, rows of activations].

    Its buffers are words, words, info and y [rows, columns].
    """
    kinds = ["vectors: array<vec4<u32>>", "words: array<u32>", "info: array<u32>", "y: array<vec4<f32>>"]
    # with an offset the sum of two products would be rounded otherwise than the decoded weight
    value = f"scale * (w[i] - {layout.offset}.0)" if layout.offset else "scale * w[i] + select(f.z, f.w, i > 3u)"
    code = f"""{declare(kinds, writes=(3,))}
{reader("read_unit", layout, columns)}
@compute @workgroup_size({THREADS})
fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    let unit = id.x;
    if (unit >= {columns // UNIT}u) {{ return; }}
    var w: array<vec4<f32>, 8>;
    let f = read_unit({address(layout, rows, columns, base)}, info[{TOKEN}u + id.y], unit, &w);
    for (var i = 0u; i < 8u; i++) {{
        let scale = select(f.x, f.y, i > 3u);
        y[id.y * {columns // 4}u + 8u * unit + i] = ({value}) * {scale!r}f;
    }}
}}"""
    words = base + layout.sections(rows, columns).words
    return Kernel(code, (False, False, False, True), (4 * words, 4 * words, 4 * INFO, 4 * MOST_ROWS * columns))


def embed_groups(columns: int) -> int:
    """Return the workgroups of a row of ``embed``."""
    return -(-columns // UNIT // THREADS)


def add_and_norm(columns: int, gains: int, epsilon: float, gain: int, normed: bool) -> Kernel:
    """Return the kernel of the sum x + norm(added), in place of x, or of y = norm(x) where it is ``normed``; a
    workgroup for each row.

    Its buffers are gains, info, and (added, x) or (x, y). ``normed`` rows are the selected ones.
    """
    kinds = ["gains: array<vec4<f32>>", "info: array<u32>", "x: array<vec4<f32>>", "y: array<vec4<f32>>"]
    source = f"info[{SELECTED}u + id.x]" if normed else "id.x"
    code = f"""{declare(kinds, writes=(3,))}
var<workgroup> partial: array<f32, {THREADS}>;
@compute @workgroup_size({THREADS})
fn main(@builtin(workgroup_id) id: vec3<u32>, @builtin(local_invocation_index) thread: u32) {{
    let first = {source} * {columns // 4}u;
    let to = id.x * {columns // 4}u;
    var sum = 0.0;
    for (var i = thread; i < {columns // 4}u; i += {THREADS}u) {{ sum += dot(x[first + i], x[first + i]); }}
    partial[thread] = sum;
    workgroupBarrier();
    sum = 0.0;
    for (var t = 0u; t < {THREADS}u; t++) {{ sum += partial[t]; }}
    let scale = inverseSqrt(sum / {columns}.0 + {epsilon!r}f);
    for (var i = thread; i < {columns // 4}u; i += {THREADS}u) {{
        y[to + i] {"=" if normed else "+="} x[first + i] * scale * gains[{gain // 4}u + i];
    }}
}}"""
    size = 4 * MOST_ROWS * columns
    return Kernel(code, (False, False, False, True), (4 * gains, 4 * INFO, size, size), 4 * THREADS)
