"""Spherical harmonics of a direction and their slopes, in compiled functions of float64.

Signs are those of 3D Gaussian Splatting. Source: Sloan, Efficient Spherical Harmonic Evaluation (JCGT 2013).
"""

from __future__ import annotations

import numba

from rung.kernels.cpu.compiled import OPTIONS

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
