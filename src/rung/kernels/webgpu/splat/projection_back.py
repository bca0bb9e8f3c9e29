"""From what tiles tell of splats back to the world: a thread for each splat, which sums in the order of its tiles.

It writes ``g_shapes`` (gradients in the layout of ``shapes``, then those of the centers in pixels [N, 2], the sums of
their absolute values [N, 2], and the view's by groups of 64 splats [groups, 12]) and ``g_colors``; both are zeros
before, and stay so for a splat on no tile.
"""

from __future__ import annotations

import functools

from rung.kernels.webgpu.gpu import Kernel
from rung.kernels.webgpu.splat.camera import INFO, INFO_BYTES, Words, color_back
from rung.kernels.webgpu.splat.projection import RECORD, SHAPE, SHAPE_CODE
from rung.kernels.webgpu.splat.sorting import shader

#: Splats of a workgroup, and of a row of the view's gradients.
GROUP = 64
#: What a tile tells of a splat: sums of the loss's derivative by its power, alone and times x, y, xx, xy, yy (offsets
#: from the center), and its derivatives by red, green, blue and depth; and where they are asked for, the sums of the
#: absolute derivatives by the center.
PARTS, UNSIGNED = 10, 2
#: Floats of ``g_shapes`` for each splat, and of the view's gradient.
SLOPES, VIEW = SHAPE + 4, 12

_CODE = """
fn put(first: u32, v: vec3<f32>) {
    g_shapes[first] = v.x;
    g_shapes[first + 1u] = v.y;
    g_shapes[first + 2u] = v.z;
}
// the derivative by a quaternion of any length from that by its rotation, whose rows are a, b, c
fn quat_back(q: vec4<f32>, inverse: f32, a: vec3<f32>, b: vec3<f32>, c: vec3<f32>) -> vec4<f32> {
    let w = q.x;
    let x = q.y;
    let y = q.z;
    let z = q.w;
    let slope = 2.0 * vec4<f32>(
        -z * a.y + y * a.z + z * b.x - x * b.z - y * c.x + x * c.y,
        y * a.y + z * a.z + y * b.x - 2.0 * x * b.y - w * b.z + z * c.x + w * c.y - 2.0 * x * c.z,
        -2.0 * y * a.x + x * a.y + w * a.z + x * b.x + z * b.z - w * c.x + z * c.y - 2.0 * y * c.z,
        -2.0 * z * a.x - w * a.y + x * a.z + w * b.x - 2.0 * z * b.y + y * b.z + x * c.x + y * c.y);
    return (slope - dot(slope, q) * q) * inverse;
}
// the derivative by the covariance in the picture (xx, xy, yy as a symmetric matrix) from those by the inverse of the
// blurred one (its xy counted once) and by the share of the opacity that blur leaves
fn cov_back(a: vec3<f32>, b: vec3<f32>, by_inverse: vec3<f32>, by_share: f32) -> vec3<f32> {
    let xy = dot(a, b);
    let wide = dot(a, a) + BLUR;
    let high = dot(b, b) + BLUR;
    let area = area_of(a, b);
    let i = vec3<f32>(high, -xy, wide) / area;
    let g = vec3<f32>(by_inverse.x, 0.5 * by_inverse.y, by_inverse.z);
    let left = vec4<f32>(i.x * g.x + i.y * g.y, i.x * g.y + i.y * g.z, i.y * g.x + i.z * g.y, i.y * g.y + i.z * g.z);
    var v = -vec3<f32>(left.x * i.x + left.y * i.y, left.x * i.y + left.y * i.z, left.z * i.y + left.w * i.z);
    let share = bare_area_of(a, b) / area;
    if (by_share != 0.0 && share > 0.0) {
        let factor = 0.5 * by_share / (sqrt(share) * area);
        v += factor * vec3<f32>(dot(b, b) - share * high, share * xy - xy, dot(a, a) - share * wide);
    }
    return v;
}
var<workgroup> views: array<f32, 768>;
%MAIN%
    let i = 64u * block + thread;
    let told = 10u + 2u * info.unsigned;
    var view = array<vec4<f32>, 3>();
    if (i < info.count && starts[min(i, info.count - 1u) + 1u] > starts[min(i, info.count - 1u)]) {
        var sums = array<f32, 12>();
        for (var entry = starts[i]; entry < starts[i + 1u]; entry++) {
            for (var part = 0u; part < 10u; part++) { sums[part] += parts[entry * told + part]; }
            if (info.unsigned != 0u) {
                sums[10] += parts[entry * told + 10u];
                sums[11] += parts[entry * told + 11u];
            }
        }
        let n = info.count;
        let center = vector_at(3u * i);
        let p = point_of(center);
        let rows = rows_of(p);
        let quat = quat_of(i);
        let inverse = 1.0 / max(length(quat), 1e-12);
        let turn = turn_of(quat * inverse);
        let scales = scales_of(i);
        let a = along(rows.across, turn) * scales;
        let b = along(rows.down, turn) * scales;
        let area = area_of(a, b);
        let share = share_of(a, b);
        let opacity = shapes[10u * n + i];
        let by_seen = -sums[0] / (opacity * share);
        g_shapes[10u * n + i] = by_seen * share;
        let by_share = select(0.0, by_seen * opacity, info.antialiased != 0u);
        let v = cov_back(a, b, vec3<f32>(0.5 * sums[3], sums[4], 0.5 * sums[5]), by_share);
        let xy = dot(a, b);
        let gx = -((dot(b, b) + BLUR) * sums[1] - xy * sums[2]) / area;
        let gy = -((dot(a, a) + BLUR) * sums[2] - xy * sums[1]) / area;
        g_shapes[11u * n + 2u * i] = gx;
        g_shapes[11u * n + 2u * i + 1u] = gy;
        g_shapes[13u * n + 2u * i] = sums[10];
        g_shapes[13u * n + 2u * i + 1u] = sums[11];
        let ga = 2.0 * (v.x * a + v.y * b);
        let gb = 2.0 * (v.y * a + v.z * b);
        let ma = rows.across.x * ga + rows.down.x * gb;  // by the rotation with its columns times the scales
        let mb = rows.across.y * ga + rows.down.y * gb;
        let mc = rows.across.z * ga + rows.down.z * gb;
        put(7u * n + 3u * i, ma * turn.a + mb * turn.b + mc * turn.c);
        let slope = quat_back(quat * inverse, inverse, ma * scales, mb * scales, mc * scales);
        put(3u * n + 4u * i, slope.xyz);
        g_shapes[3u * n + 4u * i + 3u] = slope.w;
        let sa = ga * scales;
        let sb = gb * scales;
        let ra = vec3<f32>(dot(sa, turn.a), dot(sa, turn.b), dot(sa, turn.c));  // by the rows of the projection's slope
        let rb = vec3<f32>(dot(sb, turn.a), dot(sb, turn.b), dot(sb, turn.c));
        let wide = info.fx / p.z;
        let high = info.fy / p.z;
        let gu = -wide * dot(ra, row(2u));
        let gv = -high * dot(rb, row(2u));
        var by_point = vec3<f32>(wide * gx, high * gy, sums[9] - (wide * p.x * gx + high * p.y * gy) / p.z);
        by_point.z -= (dot(ra, rows.across) + dot(rb, rows.down)) / p.z;
        if (p.x / p.z > info.low_u && p.x / p.z < info.high_u) {
            by_point.x += gu / p.z;
            by_point.z -= gu * rows.u / p.z;
        }
        if (p.y / p.z > info.low_v && p.y / p.z < info.high_v) {
            by_point.y += gv / p.z;
            by_point.z -= gv * rows.v / p.z;
        }
        let eye = center - vec3<f32>(info.eye_x, info.eye_y, info.eye_z);
        let near = 1.0 / max(length(eye), 1e-12);
        var given = vec3<f32>(sums[6], sums[7], sums[8]);
        if (info.terms > 0u) { given = select(vec3<f32>(0.0), given, records[3u * i + 2u].xyz > vec3<f32>(0.0)); }
        let by_direction = color_back(3u * i * max(info.terms, 1u), eye * near, given);
        let by_eye = (by_direction - dot(by_direction, eye * near) * eye * near) * near;
        put(3u * i, by_point.x * row(0u) + by_point.y * row(1u) + by_point.z * row(2u) + by_eye);
        view[0] = vec4<f32>(wide * ra + by_point.x * center + info.view[3] * by_eye, by_point.x + dot(row(0u), by_eye));
        view[1] = vec4<f32>(high * rb + by_point.y * center + info.view[7] * by_eye, by_point.y + dot(row(1u), by_eye));
        view[2] = vec4<f32>(by_point.z * center - wide * rows.u * ra - high * rows.v * rb + info.view[11] * by_eye,
                            by_point.z + dot(row(2u), by_eye));
    }
    if (info.posed == 0u) { return; }
    for (var k = 0u; k < 12u; k++) { views[12u * thread + k] = view[k / 4u][k % 4u]; }
    workgroupBarrier();
    if (thread < 12u && 64u * block < info.count) {
        var sum = 0.0;
        for (var k = 0u; k < 64u; k++) { sum += views[12u * k + thread]; }
        g_shapes[15u * info.count + 12u * block + thread] = sum;
    }
}"""


@functools.cache
def _code(degree: int | None) -> str:
    kinds = ["info: Info", "shapes: array<f32>", "colors: array<f32>", "records: array<vec4<f32>>"]
    kinds += ["starts: array<u32>", "parts: array<f32>", "g_shapes: array<f32>", "g_colors: array<f32>"]
    code = shader(kinds, (6, 7), SHAPE_CODE + color_back(degree) + _CODE)
    return INFO + code.replace("@workgroup_size(256)", f"@workgroup_size({GROUP})")


def project_back(words: Words, degree: int | None, listed: int) -> Kernel:
    """Return the kernel over info, shapes, colors, records, starts, parts (of ``listed`` entries), g_shapes and
    g_colors; a workgroup for ``GROUP`` splats."""
    count, parts = words.splats, PARTS + UNSIGNED * words.unsigned
    colors = 12 * count * max(words.terms, 1)
    reads = (INFO_BYTES, 4 * SHAPE * count, colors, 4 * RECORD * count, 4 * count + 4, 4 * parts * listed)
    return Kernel(_code(degree), (False,) * 6 + (True,) * 2, (*reads, slopes_bytes(count), colors), 4 * VIEW * GROUP)


def slopes_bytes(count: int) -> int:
    """Return the bytes of ``g_shapes`` of so many splats."""
    return 4 * (SLOPES * count + VIEW * -(-count // GROUP))
