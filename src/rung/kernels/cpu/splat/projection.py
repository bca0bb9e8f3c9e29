"""All splats on the plane of the picture, and the gradients from there back to the world, on several threads.

Both kernels take the words named in ``WORDS``; addresses, but for the sizes. Arithmetic is float64, arrays are
float32 unless said otherwise. What a splat got on each tile it touches is summed in the order of its tiles, and the
camera's gradient by chunks of splats, so that results do not depend on threads.
"""

from __future__ import annotations

import math

import numba

from rung.kernels.cpu.compiled import OPTIONS, kernel
from rung.kernels.cpu.splat.shape import (
    BLUR,
    flat_axes,
    harmonic_slopes,
    harmonics,
    point,
    shape_slopes,
    spread_of,
    spread_slopes,
)
from rung.kernels.isa.generic import fetch_add
from rung.kernels.isa.scalar import doubles, floats, numbers, shorts

_NAMES = (
    "counter count harmonics degree antialiased width height across down camera means quats scales "
    "opacities colors records radii tiles tile_counts scratch starts gains g_means g_quats g_scales "
    "g_opacities g_colors g_screen g_camera"
)
#: Words of both kernels: the counter that work is divided by; sizes; camera (float64, see ``splat_shape``) and splats;
#: what is found: records (see ``rung.kernels.isa.splats``), radii [N, 2] and tiles [N, 4] (int32), how many tiles
#: (int64 [N]); scratch for each thread; on the way back: where a splat's tiles begin (int64 [N + 1]), what each gave
#: [tiles, GAINS], the gradients, and the camera's by chunks [chunks, 12] (float64).
WORDS = tuple(_NAMES.split())
(_COUNT, _HARMONICS, _DEGREE, _ANTIALIASED, _WIDTH, _HEIGHT, _ACROSS, _DOWN) = range(1, 9)
(_CAMERA, _MEANS, _QUATS, _SCALES, _OPACITIES, _COLORS, _RECORDS, _RADII, _TILES, _TILE_COUNTS) = range(9, 19)
(_SCRATCH, _STARTS, _GAINS, _G_MEANS, _G_QUATS, _G_SCALES, _G_OPACITIES, _G_COLORS, _G_SCREEN, _G_CAMERA) = range(
    19, 29
)

#: Splats that a thread takes at a time.
CHUNK = 512
#: float64 of scratch for each thread: harmonics, what they are multiplied by, gains, the camera's rotation.
SCRATCH = 32 + 10 + 9
#: What a tile tells of a splat: the sums of the derivative by its power, alone and times x, y, xx, xy, yy (offsets from
#: its center), and the derivatives by red, green, blue and depth.
GAINS = 10
_EXTENT, _LEAST = 3.33, 1 / 255  # of the contract in rung.ops.rasterize
_TILE = 16


@numba.njit(**OPTIONS)
def _direction(camera, means, index):
    """From the camera to the splat: the unit vector and one over its length."""
    x = means[3 * index] + camera[0] * camera[3] + camera[4] * camera[7] + camera[8] * camera[11]
    y = means[3 * index + 1] + camera[1] * camera[3] + camera[5] * camera[7] + camera[9] * camera[11]
    z = means[3 * index + 2] + camera[2] * camera[3] + camera[6] * camera[7] + camera[10] * camera[11]
    inverse = 1 / max(math.sqrt(x * x + y * y + z * z), 1e-12)
    return x * inverse, y * inverse, z * inverse, inverse


@numba.njit(**OPTIONS)
def _color(w, camera, means, index, basis, record):
    """Writes the color that the camera sees into the splat's record."""
    count, colors = w[_HARMONICS], floats(w[_COLORS])
    if count == 0:
        for channel in range(3):
            record[6 + channel] = colors[3 * index + channel]
        return
    x, y, z, _ = _direction(camera, means, index)
    harmonics(w[_DEGREE], x, y, z, basis)
    for channel in range(3):
        value = 0.5
        for term in range((w[_DEGREE] + 1) ** 2):
            value += basis[term] * colors[3 * (count * index + term) + channel]
        record[6 + channel] = max(value, 0.0)


@numba.njit(**OPTIONS)
def _share(w, xx, xy, yy, area):
    """The factor on a splat's opacity that makes up for its blur."""
    if w[_ANTIALIASED] == 0:
        return 1.0
    return math.sqrt(max((xx * yy - xy * xy) / area, 0.0))


@numba.njit(**OPTIONS)
def _project(w, index, basis):
    camera, means = doubles(w[_CAMERA]), floats(w[_MEANS])
    radii, counts = shorts(w[_RADII]), numbers(w[_TILE_COUNTS])
    radii[2 * index], radii[2 * index + 1], counts[index] = 0, 0, 0
    x, y, z = point(camera, means, 3 * index)
    if not camera[20] < z < camera[21]:
        return
    xx, xy, yy = spread_of(flat_axes(camera, x, y, z, floats(w[_QUATS]), floats(w[_SCALES]), index))
    wide, high = xx + BLUR, yy + BLUR
    area = wide * high - xy * xy
    if not 0 < area < 1e300:
        return
    px, py = camera[12] * x / z + camera[14], camera[13] * y / z + camera[15]
    rx, ry = math.ceil(_EXTENT * math.sqrt(wide)), math.ceil(_EXTENT * math.sqrt(high))
    if not (px + rx > 0 and px - rx < w[_WIDTH] and py + ry > 0 and py - ry < w[_HEIGHT]):
        return
    radii[2 * index], radii[2 * index + 1] = int(min(rx, 2e9)), int(min(ry, 2e9))
    opacity = floats(w[_OPACITIES])[index] * _share(w, xx, xy, yy, area)
    if not opacity >= _LEAST:
        return
    record = floats(w[_RECORDS] + 64 * index)
    fx, fy = math.floor(px), math.floor(py)
    record[0], record[1], record[12], record[13] = px - fx, py - fy, fx, fy
    record[2], record[3], record[4] = 0.5 * high / area, -xy / area, 0.5 * wide / area
    record[5], record[9] = opacity, z
    _color(w, camera, means, index, basis, record)
    reach = 2 * math.log(opacity / _LEAST)  # beyond it the splat's alpha is below the least
    ex, ey = math.sqrt(reach * wide) * 1.000001 + 1e-3, math.sqrt(reach * high) * 1.000001 + 1e-3
    record[10], record[11] = ex, ey
    tiles = shorts(w[_TILES] + 16 * index)
    tiles[0], tiles[1] = int(max((px - ex) / _TILE, 0)), int(min((px + ex) / _TILE + 1, w[_ACROSS]))
    tiles[2], tiles[3] = int(max((py - ey) / _TILE, 0)), int(min((py + ey) / _TILE + 1, w[_DOWN]))
    counts[index] = max(tiles[1] - tiles[0], 0) * max(tiles[3] - tiles[2], 0)


@kernel(3)
def project(words, thread, threads):
    """Writes records, radii, tiles and their counts."""
    w = numbers(words)
    basis = doubles(w[_SCRATCH] + 8 * SCRATCH * thread)
    while True:
        first = fetch_add(words, 1) * CHUNK
        if first >= w[_COUNT]:
            break
        for index in range(first, min(first + CHUNK, w[_COUNT])):
            _project(w, index, basis)


@numba.njit(**OPTIONS)
def _color_back(w, camera, means, index, scratch, record, g_color):
    """Gradients of the colors; that of the splat's center through its direction is returned."""
    count, g_colors = w[_HARMONICS], floats(w[_G_COLORS])
    if count == 0:
        for channel in range(3):
            g_colors[3 * index + channel] = g_color[channel]
        return 0.0, 0.0, 0.0
    x, y, z, inverse = _direction(camera, means, index)
    degree, colors = w[_DEGREE], floats(w[_COLORS])
    basis, by = doubles(scratch), doubles(scratch + 128)
    harmonics(degree, x, y, z, basis)
    for term in range(16):
        by[term] = 0.0
    for channel in range(3):
        gradient = g_color[channel] if record[6 + channel] > 0 else 0.0
        for term in range((degree + 1) ** 2):
            at = 3 * (count * index + term) + channel
            g_colors[at] = basis[term] * gradient
            by[term] += colors[at] * gradient
    sx, sy, sz = harmonic_slopes(degree, x, y, z, by)
    along = sx * x + sy * y + sz * z
    return (sx - along * x) * inverse, (sy - along * y) * inverse, (sz - along * z) * inverse


@numba.njit(**OPTIONS)
def _gained(w, index, gains):
    """Sums what the splat's tiles gave."""
    starts, gain_values = numbers(w[_STARTS]), floats(w[_GAINS])
    for entry in range(GAINS):
        gains[entry] = 0.0
    for tile in range(starts[index], starts[index + 1]):
        for entry in range(GAINS):
            gains[entry] += gain_values[GAINS * tile + entry]


@numba.njit(**OPTIONS)
def _back(w, index, scratch, g_camera):
    camera, means, gains = doubles(w[_CAMERA]), floats(w[_MEANS]), doubles(scratch + 256)
    record = floats(w[_RECORDS] + 64 * index)
    _gained(w, index, gains)
    x, y, z = point(camera, means, 3 * index)
    quats, scales = floats(w[_QUATS]), floats(w[_SCALES])
    xx, xy, yy = spread_of(flat_axes(camera, x, y, z, quats, scales, index))
    wide, high = xx + BLUR, yy + BLUR
    area = wide * high - xy * xy
    share, opacity = _share(w, xx, xy, yy, area), float(floats(w[_OPACITIES])[index])
    g_record = -gains[0] / (opacity * share)
    floats(w[_G_OPACITIES])[index] = g_record * share
    g_share = g_record * opacity if w[_ANTIALIASED] else 0.0
    slopes = spread_slopes(xx, xy, yy, 0.5 * gains[3], gains[4], 0.5 * gains[5], g_share)
    gx = -(high * gains[1] - xy * gains[2]) / area
    gy = -(wide * gains[2] - xy * gains[1]) / area
    g_screen, g_means = floats(w[_G_SCREEN]), floats(w[_G_MEANS])
    g_screen[2 * index], g_screen[2 * index + 1] = gx, gy
    rotation = doubles(scratch + 256 + 8 * GAINS)
    for entry in range(9):
        rotation[entry] = 0.0
    px, py, pz = shape_slopes(
        camera, x, y, z, quats, scales, index, slopes, floats(w[_G_QUATS]), floats(w[_G_SCALES]), rotation
    )
    px += camera[12] / z * gx
    py += camera[13] / z * gy
    pz += gains[9] - (camera[12] * x * gx + camera[13] * y * gy) / (z * z)
    vx, vy, vz = _color_back(w, camera, means, index, scratch, record, (gains[6], gains[7], gains[8]))
    g_means[3 * index] = camera[0] * px + camera[4] * py + camera[8] * pz + vx
    g_means[3 * index + 1] = camera[1] * px + camera[5] * py + camera[9] * pz + vy
    g_means[3 * index + 2] = camera[2] * px + camera[6] * py + camera[10] * pz + vz
    for row, gradient in ((0, px), (1, py), (2, pz)):
        moved = camera[4 * row + 3]
        for column, view in ((0, vx), (1, vy), (2, vz)):
            center = means[3 * index + column]
            g_camera[4 * row + column] += rotation[3 * row + column] + gradient * center + moved * view
        along = camera[4 * row] * vx + camera[4 * row + 1] * vy + camera[4 * row + 2] * vz
        g_camera[4 * row + 3] += gradient + along


@kernel(3)
def project_back(words, thread, threads):
    """Writes the gradients of splats that touch a tile, and the camera's by chunks; the others' are not touched."""
    w = numbers(words)
    scratch = w[_SCRATCH] + 8 * SCRATCH * thread
    counts = numbers(w[_TILE_COUNTS])
    while True:
        chunk = fetch_add(words, 1)
        if chunk * CHUNK >= w[_COUNT]:
            break
        g_camera = doubles(w[_G_CAMERA] + 96 * chunk)
        for index in range(chunk * CHUNK, min(chunk * CHUNK + CHUNK, w[_COUNT])):
            if counts[index] > 0:
                _back(w, index, scratch, g_camera)
