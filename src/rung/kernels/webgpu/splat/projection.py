"""All splats on the plane of the picture (Zwicker et al., EWA Splatting, 2002): a thread for each.

Its buffers: ``shapes`` are centers [N, 3], rotations [N, 4], scales [N, 3] and opacities [N], one after the other, and
``colors`` [N, 3] or harmonics [N, terms, 3], all f32. It writes ``records`` [N, 3] of vec4 (x, y, opacity, depth; the
inverse covariance xx, xy, yy; red, green, blue), ``seen`` [N] (x, y as f32 and the radii as i32), ``spans`` [N] (the
tiles that a splat lies on: from and to, 16 bits each, across and down) and ``counts`` [N], how many these are.
"""

from __future__ import annotations

import functools

from rung.kernels.webgpu.gpu import Kernel
from rung.kernels.webgpu.splat.camera import INFO, INFO_BYTES, Words, view_color
from rung.kernels.webgpu.splat.sorting import shader

#: Numbers of a splat in ``shapes``, floats in ``records``.
SHAPE, RECORD = 11, 12

#: A splat in the camera's axes and its covariance in the picture; the constants are those of rung.ops.rasterize.
SHAPE_CODE = """
const BLUR = 0.3;
const LEAST = 0.00392156862745098;
fn vector_at(first: u32) -> vec3<f32> { return vec3<f32>(shapes[first], shapes[first + 1u], shapes[first + 2u]); }
fn row(number: u32) -> vec3<f32> {
    return vec3<f32>(info.view[4u * number], info.view[4u * number + 1u], info.view[4u * number + 2u]);
}
fn point_of(center: vec3<f32>) -> vec3<f32> {
    return vec3<f32>(dot(row(0u), center) + info.view[3], dot(row(1u), center) + info.view[7],
                     dot(row(2u), center) + info.view[11]);
}
fn quat_of(i: u32) -> vec4<f32> {
    let first = 3u * info.count + 4u * i;
    return vec4<f32>(shapes[first], shapes[first + 1u], shapes[first + 2u], shapes[first + 3u]);
}
fn scales_of(i: u32) -> vec3<f32> { return vector_at(7u * info.count + 3u * i); }
struct Turn { a: vec3<f32>, b: vec3<f32>, c: vec3<f32> }  // the rows
fn turn_of(q: vec4<f32>) -> Turn {  // q is (w, x, y, z)
    return Turn(
        vec3<f32>(1.0 - 2.0 * (q.z * q.z + q.w * q.w), 2.0 * (q.y * q.z - q.x * q.w), 2.0 * (q.y * q.w + q.x * q.z)),
        vec3<f32>(2.0 * (q.y * q.z + q.x * q.w), 1.0 - 2.0 * (q.y * q.y + q.w * q.w), 2.0 * (q.z * q.w - q.x * q.y)),
        vec3<f32>(2.0 * (q.y * q.w - q.x * q.z), 2.0 * (q.z * q.w + q.x * q.y), 1.0 - 2.0 * (q.y * q.y + q.z * q.z)));
}
struct Rows { across: vec3<f32>, down: vec3<f32>, u: f32, v: f32 }
fn rows_of(p: vec3<f32>) -> Rows {  // the projection's slope, held at what lies a little beyond the edge
    let u = clamp(p.x / p.z, info.low_u, info.high_u);
    let v = clamp(p.y / p.z, info.low_v, info.high_v);
    return Rows(info.fx / p.z * (row(0u) - u * row(2u)), info.fy / p.z * (row(1u) - v * row(2u)), u, v);
}
fn along(line: vec3<f32>, turn: Turn) -> vec3<f32> { return line.x * turn.a + line.y * turn.b + line.z * turn.c; }
fn finite(x: f32) -> bool { return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u; }
// areas of the splat and of what blur makes of it, squared: by |a|^2 |b|^2 - (a b)^2 = |a x b|^2, which loses no digits
fn bare_area_of(a: vec3<f32>, b: vec3<f32>) -> f32 { let n = cross(a, b); return dot(n, n); }
fn area_of(a: vec3<f32>, b: vec3<f32>) -> f32 { return bare_area_of(a, b) + BLUR * (dot(a, a) + dot(b, b) + BLUR); }
fn share_of(a: vec3<f32>, b: vec3<f32>) -> f32 {
    if (info.antialiased == 0u) { return 1.0; }
    return sqrt(bare_area_of(a, b) / area_of(a, b));
}
"""
_PROJECT = """
%MAIN%
    let i = 256u * block + thread;
    if (i >= info.count) { return; }
    var x = 0.0;
    var y = 0.0;
    var reach = vec2<f32>(0.0);
    var span = vec2<u32>(0u);
    var count = 0u;
    let center = vector_at(3u * i);
    let p = point_of(center);
    if (finite(p.x) && finite(p.y) && p.z > info.near && p.z < info.far && finite(p.z)) {
        let quat = quat_of(i);
        let rows = rows_of(p);
        let turn = turn_of(quat / max(length(quat), 1e-12));
        let scales = scales_of(i);
        let a = along(rows.across, turn) * scales;
        let b = along(rows.down, turn) * scales;
        let cov = vec3<f32>(dot(a, a), dot(a, b), dot(b, b));
        let wide = cov.x + BLUR;
        let high = cov.z + BLUR;
        let area = area_of(a, b);
        x = info.fx * p.x / p.z + info.cx;
        y = info.fy * p.y / p.z + info.cy;
        let rx = ceil(3.33 * sqrt(wide));
        let ry = ceil(3.33 * sqrt(high));
        let inside = x + rx > 0.0 && x - rx < f32(info.width) && y + ry > 0.0 && y - ry < f32(info.height);
        let opacity = shapes[10u * info.count + i] * share_of(a, b);
        if (finite(x) && finite(y) && finite(area) && area > 0.0 && inside) {
            reach = min(vec2<f32>(rx, ry), vec2<f32>(1e9));
            if (finite(opacity) && opacity >= LEAST) {
                let far = 2.0 * log(opacity / LEAST);  // beyond it its alpha is below the least
                let ex = sqrt(far * wide) * 1.0001 + 2e-3;
                let ey = sqrt(far * high) * 1.0001 + 2e-3;
                let x0 = u32(clamp((x - ex) / 16.0, 0.0, f32(info.across)));
                let x1 = u32(clamp((x + ex) / 16.0 + 1.0, 0.0, f32(info.across)));
                let y0 = u32(clamp((y - ey) / 16.0, 0.0, f32(info.down)));
                let y1 = u32(clamp((y + ey) / 16.0 + 1.0, 0.0, f32(info.down)));
                span = vec2<u32>(x0 | (x1 << 16u), y0 | (y1 << 16u));
                if (x1 > x0 && y1 > y0) { count = (x1 - x0) * (y1 - y0); }
                let eye = center - vec3<f32>(info.eye_x, info.eye_y, info.eye_z);
                let color = view_color(3u * i * max(info.terms, 1u), eye / max(length(eye), 1e-12));
                records[3u * i] = vec4<f32>(x, y, opacity, p.z);
                records[3u * i + 1u] = vec4<f32>(high / area, -cov.y / area, wide / area, 0.0);
                records[3u * i + 2u] = vec4<f32>(color, 0.0);
            }
        } else {
            x = 0.0;
            y = 0.0;
        }
    }
    seen[i] = vec4<i32>(bitcast<i32>(x), bitcast<i32>(y), i32(reach.x), i32(reach.y));
    spans[i] = span;
    counts[i] = count;
}"""


@functools.cache
def _code(degree: int | None) -> str:
    kinds = ["info: Info", "shapes: array<f32>", "colors: array<f32>", "records: array<vec4<f32>>"]
    kinds += ["seen: array<vec4<i32>>", "spans: array<vec2<u32>>", "counts: array<u32>"]
    return INFO + shader(kinds, (3, 4, 5, 6), SHAPE_CODE + view_color(degree) + _PROJECT)


def project(words: Words, degree: int | None) -> Kernel:
    """Return the kernel over info, shapes, colors, records, seen, spans and counts; a workgroup for 256 splats."""
    count = words.splats
    reads = INFO_BYTES, 4 * SHAPE * count, 12 * count * max(words.terms, 1)
    return Kernel(
        _code(degree), (False,) * 3 + (True,) * 4, (*reads, 4 * RECORD * count, 16 * count, 8 * count, 4 * count)
    )
