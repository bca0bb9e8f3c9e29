"""One splat on the plane of the picture, and its gradients on the way back: compiled functions of float64.

A camera is an array of float64: world to camera in rows of four (12), fx, fy, cx, cy, the limits of x/z and y/z at
which the projection's slope is held (low x, high x, low y, high y), the near and the far plane.
"""

from __future__ import annotations

import math

import numba

from rung.kernels.cpu.compiled import OPTIONS

CAMERA = 22
BLUR = 0.3  # of the contract in rung.ops.rasterize


@numba.njit(**OPTIONS)
def _rotation(quat, at):
    """The rotation of a quaternion (w, x, y, z) by rows, the unit quaternion, and one over its length."""
    w, x, y, z = float(quat[at]), float(quat[at + 1]), float(quat[at + 2]), float(quat[at + 3])
    inverse = 1 / max(math.sqrt(w * w + x * x + y * y + z * z), 1e-12)
    w, x, y, z = w * inverse, x * inverse, y * inverse, z * inverse
    rows = (
        1 - 2 * (y * y + z * z),
        2 * (x * y - w * z),
        2 * (x * z + w * y),
        2 * (x * y + w * z),
        1 - 2 * (x * x + z * z),
        2 * (y * z - w * x),
        2 * (x * z - w * y),
        2 * (y * z + w * x),
        1 - 2 * (x * x + y * y),
    )
    return rows, (w, x, y, z), inverse


@numba.njit(**OPTIONS)
def point(camera, means, at):
    """The center in the camera's axes."""
    x, y, z = float(means[at]), float(means[at + 1]), float(means[at + 2])
    return (
        camera[0] * x + camera[1] * y + camera[2] * z + camera[3],
        camera[4] * x + camera[5] * y + camera[6] * z + camera[7],
        camera[8] * x + camera[9] * y + camera[10] * z + camera[11],
    )


@numba.njit(**OPTIONS)
def _flat_rows(camera, x, y, z):
    """The slope of the projection times the camera's rotation: two rows of three; and the held x/z, y/z."""
    u = min(max(x / z, camera[16]), camera[17])
    v = min(max(y / z, camera[18]), camera[19])
    across, down = camera[12] / z, camera[13] / z
    rows = (
        across * (camera[0] - u * camera[8]),
        across * (camera[1] - u * camera[9]),
        across * (camera[2] - u * camera[10]),
        down * (camera[4] - v * camera[8]),
        down * (camera[5] - v * camera[9]),
        down * (camera[6] - v * camera[10]),
    )
    return rows, u, v


@numba.njit(**OPTIONS)
def flat_axes(camera, x, y, z, quats, scales, index):
    """The splat's three axes in the picture, times their lengths: (a0 a1 a2) across and (b0 b1 b2) down."""
    rows, _, _ = _flat_rows(camera, x, y, z)
    turn, _, _ = _rotation(quats, 4 * index)
    s0, s1, s2 = float(scales[3 * index]), float(scales[3 * index + 1]), float(scales[3 * index + 2])
    return (
        (rows[0] * turn[0] + rows[1] * turn[3] + rows[2] * turn[6]) * s0,
        (rows[0] * turn[1] + rows[1] * turn[4] + rows[2] * turn[7]) * s1,
        (rows[0] * turn[2] + rows[1] * turn[5] + rows[2] * turn[8]) * s2,
        (rows[3] * turn[0] + rows[4] * turn[3] + rows[5] * turn[6]) * s0,
        (rows[3] * turn[1] + rows[4] * turn[4] + rows[5] * turn[7]) * s1,
        (rows[3] * turn[2] + rows[4] * turn[5] + rows[5] * turn[8]) * s2,
    )


@numba.njit(**OPTIONS)
def spread_of(axes):
    """The covariance in the picture, without blur: xx, xy, yy."""
    a0, a1, a2, b0, b1, b2 = axes
    return a0 * a0 + a1 * a1 + a2 * a2, a0 * b0 + a1 * b1 + a2 * b2, b0 * b0 + b1 * b1 + b2 * b2


@numba.njit(**OPTIONS)
def spread_slopes(xx, xy, yy, g_xx, g_xy, g_yy, g_share):
    """The loss's derivative by the covariance, as a symmetric matrix (xx, xy, yy), from those by the inverse of the
    blurred covariance (its xy counted once) and by the share of its area that blurring leaves."""
    wide, high = xx + BLUR, yy + BLUR
    area = wide * high - xy * xy
    i_xx, i_xy, i_yy = high / area, -xy / area, wide / area
    g_xy *= 0.5
    left = (i_xx * g_xx + i_xy * g_xy, i_xx * g_xy + i_xy * g_yy, i_xy * g_xx + i_yy * g_xy, i_xy * g_xy + i_yy * g_yy)
    v_xx = -(left[0] * i_xx + left[1] * i_xy)
    v_xy = -(left[0] * i_xy + left[1] * i_yy)
    v_yy = -(left[2] * i_xy + left[3] * i_yy)
    ratio = (xx * yy - xy * xy) / area
    if g_share != 0 and ratio > 0:
        factor = 0.5 * g_share / (math.sqrt(ratio) * area)
        v_xx += factor * (yy - ratio * high)
        v_xy -= factor * (xy - ratio * xy)
        v_yy += factor * (xx - ratio * wide)
    return v_xx, v_xy, v_yy


@numba.njit(**OPTIONS)
def _quat_slopes(g, quat, inverse):
    """The derivative by a quaternion of any length from that by its rotation (nine entries)."""
    w, x, y, z = quat
    gw = 2 * (-z * g[1] + y * g[2] + z * g[3] - x * g[5] - y * g[6] + x * g[7])
    gx = 2 * (y * g[1] + z * g[2] + y * g[3] - 2 * x * g[4] - w * g[5] + z * g[6] + w * g[7] - 2 * x * g[8])
    gy = 2 * (-2 * y * g[0] + x * g[1] + w * g[2] + x * g[3] + z * g[5] - w * g[6] + z * g[7] - 2 * y * g[8])
    gz = 2 * (-2 * z * g[0] - w * g[1] + x * g[2] + w * g[3] - 2 * z * g[4] + y * g[5] + x * g[6] + y * g[7])
    along = gw * w + gx * x + gy * y + gz * z
    return (
        (gw - w * along) * inverse,
        (gx - x * along) * inverse,
        (gy - y * along) * inverse,
        (gz - z * along) * inverse,
    )


@numba.njit(**OPTIONS)
def shape_slopes(camera, x, y, z, quats, scales, index, slopes, g_quats, g_scales, g_rotation):
    """From the derivative by the covariance to those by quaternion, scales, the camera's rotation and the point.

    Writes the first two, adds to ``g_rotation`` (nine float64), returns the last (x, y, z).
    """
    v_xx, v_xy, v_yy = slopes
    axes = flat_axes(camera, x, y, z, quats, scales, index)
    rows, u, v = _flat_rows(camera, x, y, z)
    turn, quat, inverse = _rotation(quats, 4 * index)
    ga0, ga1, ga2 = (
        2 * (v_xx * axes[0] + v_xy * axes[3]),
        2 * (v_xx * axes[1] + v_xy * axes[4]),
        2 * (v_xx * axes[2] + v_xy * axes[5]),
    )
    gb0, gb1, gb2 = (
        2 * (v_xy * axes[0] + v_yy * axes[3]),
        2 * (v_xy * axes[1] + v_yy * axes[4]),
        2 * (v_xy * axes[2] + v_yy * axes[5]),
    )
    s0, s1, s2 = float(scales[3 * index]), float(scales[3 * index + 1]), float(scales[3 * index + 2])
    # m = turn with its columns times the scales; its derivative is rows^T times that of the axes
    m = (
        rows[0] * ga0 + rows[3] * gb0, rows[0] * ga1 + rows[3] * gb1, rows[0] * ga2 + rows[3] * gb2,
        rows[1] * ga0 + rows[4] * gb0, rows[1] * ga1 + rows[4] * gb1, rows[1] * ga2 + rows[4] * gb2,
        rows[2] * ga0 + rows[5] * gb0, rows[2] * ga1 + rows[5] * gb1, rows[2] * ga2 + rows[5] * gb2,
    )  # fmt: skip
    g_scales[3 * index] = m[0] * turn[0] + m[3] * turn[3] + m[6] * turn[6]
    g_scales[3 * index + 1] = m[1] * turn[1] + m[4] * turn[4] + m[7] * turn[7]
    g_scales[3 * index + 2] = m[2] * turn[2] + m[5] * turn[5] + m[8] * turn[8]
    turned = (m[0] * s0, m[1] * s1, m[2] * s2, m[3] * s0, m[4] * s1, m[5] * s2, m[6] * s0, m[7] * s1, m[8] * s2)
    gw, gx, gy, gz = _quat_slopes(turned, quat, inverse)
    g_quats[4 * index], g_quats[4 * index + 1] = gw, gx
    g_quats[4 * index + 2], g_quats[4 * index + 3] = gy, gz
    # by the two rows: the axes' derivative times m^T
    gr0 = ga0 * turn[0] * s0 + ga1 * turn[1] * s1 + ga2 * turn[2] * s2
    gr1 = ga0 * turn[3] * s0 + ga1 * turn[4] * s1 + ga2 * turn[5] * s2
    gr2 = ga0 * turn[6] * s0 + ga1 * turn[7] * s1 + ga2 * turn[8] * s2
    gr3 = gb0 * turn[0] * s0 + gb1 * turn[1] * s1 + gb2 * turn[2] * s2
    gr4 = gb0 * turn[3] * s0 + gb1 * turn[4] * s1 + gb2 * turn[5] * s2
    gr5 = gb0 * turn[6] * s0 + gb1 * turn[7] * s1 + gb2 * turn[8] * s2
    across, down = camera[12] / z, camera[13] / z
    for column, first, second in ((0, gr0, gr3), (1, gr1, gr4), (2, gr2, gr5)):
        g_rotation[column] += across * first
        g_rotation[3 + column] += down * second
        g_rotation[6 + column] -= across * u * first + down * v * second
    g_u = -across * (gr0 * camera[8] + gr1 * camera[9] + gr2 * camera[10])
    g_v = -down * (gr3 * camera[8] + gr4 * camera[9] + gr5 * camera[10])
    px, py = 0.0, 0.0
    pz = -(gr0 * rows[0] + gr1 * rows[1] + gr2 * rows[2] + gr3 * rows[3] + gr4 * rows[4] + gr5 * rows[5]) / z
    if camera[16] < x / z < camera[17]:
        px += g_u / z
        pz -= g_u * u / z
    if camera[18] < y / z < camera[19]:
        py += g_v / z
        pz -= g_v * v / z
    return px, py, pz


_C0, _C1 = 0.28209479177387814, 0.4886025119029199
_C2, _C2_ZZ, _C2_XX = 1.0925484305920792, 0.31539156525252005, 0.5462742152960396
_C3_XX, _C3_XYZ, _C3_ZZ = 0.5900435899266435, 2.890611442640554, 0.4570457994644658
_C3_Z, _C3_ZXX = 0.3731763325901154, 1.445305721320277


@numba.njit(**OPTIONS)
def harmonics(degree, x, y, z, out):
    """Writes the (degree + 1)^2 values of the unit vector to ``out``."""
    out[0] = _C0
    if degree > 0:
        out[1], out[2], out[3] = -_C1 * y, _C1 * z, -_C1 * x
    if degree > 1:
        xx, yy, zz = x * x, y * y, z * z
        out[4], out[5], out[6] = _C2 * x * y, -_C2 * y * z, _C2_ZZ * (2 * zz - xx - yy)
        out[7], out[8] = -_C2 * x * z, _C2_XX * (xx - yy)
        if degree > 2:
            out[9], out[10] = -_C3_XX * y * (3 * xx - yy), _C3_XYZ * x * y * z
            out[11], out[12] = -_C3_ZZ * y * (4 * zz - xx - yy), _C3_Z * z * (2 * zz - 3 * xx - 3 * yy)
            out[13], out[14] = -_C3_ZZ * x * (4 * zz - xx - yy), _C3_ZXX * z * (xx - yy)
            out[15] = -_C3_XX * x * (xx - 3 * yy)


@numba.njit(**OPTIONS)
def harmonic_slopes(degree, x, y, z, by):
    """The derivative by (x, y, z) of the sum of the harmonics, each times its entry of ``by``."""
    if degree < 1:
        return 0.0, 0.0, 0.0
    sx, sy, sz = -_C1 * by[3], -_C1 * by[1], _C1 * by[2]
    if degree > 1:
        sx += _C2 * y * by[4] - 2 * _C2_ZZ * x * by[6] - _C2 * z * by[7] + 2 * _C2_XX * x * by[8]
        sy += _C2 * x * by[4] - _C2 * z * by[5] - 2 * _C2_ZZ * y * by[6] - 2 * _C2_XX * y * by[8]
        sz += -_C2 * y * by[5] + 4 * _C2_ZZ * z * by[6] - _C2 * x * by[7]
    if degree > 2:
        xx, yy, zz, xy, xz, yz = x * x, y * y, z * z, x * y, x * z, y * z
        sx += -6 * _C3_XX * xy * by[9] + _C3_XYZ * yz * by[10] + 2 * _C3_ZZ * xy * by[11] - 6 * _C3_Z * xz * by[12]
        sx += -_C3_ZZ * (4 * zz - 3 * xx - yy) * by[13] + 2 * _C3_ZXX * xz * by[14] - 3 * _C3_XX * (xx - yy) * by[15]
        sy += -3 * _C3_XX * (xx - yy) * by[9] + _C3_XYZ * xz * by[10] - _C3_ZZ * (4 * zz - xx - 3 * yy) * by[11]
        sy += -6 * _C3_Z * yz * by[12] + 2 * _C3_ZZ * xy * by[13] - 2 * _C3_ZXX * yz * by[14] + 6 * _C3_XX * xy * by[15]
        sz += _C3_XYZ * xy * by[10] - 8 * _C3_ZZ * yz * by[11] + _C3_Z * (6 * zz - 3 * xx - 3 * yy) * by[12]
        sz += -8 * _C3_ZZ * xz * by[13] + _C3_ZXX * (xx - yy) * by[14]
    return sx, sy, sz
