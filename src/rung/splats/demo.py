"""A small scene to try training with: balls and boxes on a chequered floor, cast by rays, seen from all around.

Written as ``transforms.json`` with photographs (transparent where nothing is) and points, so that it is read like any
other scene. Nothing in it is random.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

#: What training is planned with where nothing else is asked for: it takes about a minute.
SPLATS, STEPS = 3000, 1500
#: Photographs, pixels of a side, rays for each pixel's side, and their focal length in pixels.
VIEWS, SIZE, _RAYS, _FOCAL = 24, 128, 2, 140.0
_POINTS = 1500

Array = npt.NDArray[np.float64]
#: Center, radius and color.
_BALLS = (
    ((0.0, 0.45, 0.0), 0.45, (0.85, 0.25, 0.2)),
    ((0.8, 0.25, 0.45), 0.25, (0.2, 0.5, 0.85)),
    ((-0.55, 0.2, 0.75), 0.2, (0.95, 0.8, 0.25)),
)
#: Lowest and highest corner, and color.
_BOXES = (
    ((-1.0, 0.0, -0.7), (-0.5, 0.7, -0.2), (0.3, 0.7, 0.4)),
    ((0.4, 0.0, -0.9), (1.0, 0.35, -0.45), (0.7, 0.45, 0.75)),
)
_FLOOR, _SQUARE = 1.6, 0.4
_LIGHT = np.array([0.45, 0.8, 0.4]) / np.linalg.norm([0.45, 0.8, 0.4])


def _look(number: int) -> Array:
    """Camera to world: on two rings around the scene."""
    angle, high = 2 * math.pi * number / VIEWS, 1.1 if number % 2 else 1.9
    return facing(np.array([3.2 * math.cos(angle), high, 3.2 * math.sin(angle)]), np.array([0.0, 0.25, 0.0]))


def facing(position: Array, at: Array) -> Array:
    """Camera to world [4, 4], axes right, up, backward, of an upright camera [3] that looks at a point [3]."""
    back = position - at
    back /= np.linalg.norm(back)
    right = np.cross([0.0, 1.0, 0.0], back)
    right /= np.linalg.norm(right)
    pose = np.eye(4)
    pose[:3, :3] = np.stack([right, np.cross(back, right), back], axis=1)
    pose[:3, 3] = position
    return pose


def _ball(start: Array, ray: Array, center: Array, radius: float) -> tuple[Array, Array]:
    """How far along each ray [N, 3] a ball is hit (infinite: not), and the normals there [N, 3]."""
    to = start - center
    along = (to * ray).sum(1)
    under = along**2 - (to * to).sum(1) + radius**2
    far = -along - np.sqrt(np.maximum(under, 0))
    far = np.where((under > 0) & (far > 1e-6), far, np.inf)
    hit = to + np.where(np.isfinite(far), far, 0)[:, None] * ray
    return far, hit / radius


def _box(start: Array, ray: Array, low: Array, high: Array) -> tuple[Array, Array]:
    """The same for a box along the axes."""
    with np.errstate(divide="ignore", invalid="ignore"):
        one, two = (low - start) / ray, (high - start) / ray
    near, far = np.fmin(one, two), np.fmax(one, two)
    axis, enters = near.argmax(1), near.max(1)
    hit = (enters < far.min(1)) & (enters > 1e-6)
    normals = np.zeros_like(ray)
    rows = np.arange(len(ray))
    normals[rows, axis] = -np.sign(ray[rows, axis])
    return np.where(hit, enters, np.inf), normals


def _floor(start: Array, ray: Array) -> tuple[Array, Array, Array]:
    """The same for the floor, and its colors."""
    with np.errstate(divide="ignore", invalid="ignore"):
        far = -start[:, 1] / ray[:, 1]
    far = np.where((far > 1e-6) & np.isfinite(far), far, np.inf)
    hit = start + np.where(np.isfinite(far), far, 0)[:, None] * ray
    inside = (np.abs(hit[:, [0, 2]]) <= _FLOOR).all(1)
    squares = np.floor(hit[:, [0, 2]] / _SQUARE).sum(1) % 2
    colors = np.where(squares[:, None] > 0, [0.75, 0.72, 0.66], [0.35, 0.33, 0.32])
    return np.where(inside, far, np.inf), np.tile([0.0, 1.0, 0.0], (len(ray), 1)), colors


def _nearest(start: Array, ray: Array) -> tuple[Array, Array, Array]:
    """How far the first surface is, its normals and its colors."""
    far, normals, colors = _floor(start, ray)
    found = [(*_ball(start, ray, np.array(center), radius), tint) for center, radius, tint in _BALLS]
    found += [(*_box(start, ray, np.array(low), np.array(high)), tint) for low, high, tint in _BOXES]
    for distance, turned, tint in found:
        nearer = distance < far
        far = np.where(nearer, distance, far)
        normals = np.where(nearer[:, None], turned, normals)
        colors = np.where(nearer[:, None], tint, colors)
    return far, normals, colors


def _cast(start: Array, ray: Array) -> tuple[Array, Array]:
    """Colors [N, 3] in 0 to 1 that rays see, and how far away."""
    far, normals, colors = _nearest(start, ray)
    hit = np.isfinite(far)
    at = start + np.where(hit, far, 0)[:, None] * ray + 1e-4 * normals
    lit = np.maximum(normals @ _LIGHT, 0)
    lit = np.where(np.isfinite(_nearest(at, np.broadcast_to(_LIGHT, ray.shape))[0]), 0, lit)
    mirrored = ray - 2 * (ray * normals).sum(1)[:, None] * normals
    shine = np.where(lit > 0, np.maximum(mirrored @ _LIGHT, 0) ** 24, 0)
    shown = colors * (0.35 + 0.65 * lit)[:, None] + 0.25 * shine[:, None]
    return np.clip(np.where(hit[:, None], shown, 0), 0, 1), far


def photograph(pose: Array) -> tuple[npt.NDArray[np.uint8], Array, Array]:
    """The picture [SIZE, SIZE, 4] of a camera, transparent where nothing is, and points [N, 3] with their colors
    [N, 3] in 0 to 1."""
    steps = (np.arange(SIZE * _RAYS) + 0.5) / _RAYS - SIZE / 2
    across, down = np.meshgrid(steps / _FOCAL, steps / _FOCAL)
    rays = np.stack([across, -down, -np.ones_like(across)], axis=-1).reshape(-1, 3) @ pose[:3, :3].T
    rays /= np.linalg.norm(rays, axis=1, keepdims=True)
    start = np.broadcast_to(pose[:3, 3], rays.shape)
    colors, far = _cast(start, rays)
    lit, share = (part.reshape(SIZE, _RAYS, SIZE, _RAYS, -1).mean((1, 3)) for part in (colors, np.isfinite(far)))
    picture = np.concatenate([lit / np.maximum(share, 1 / _RAYS**2), share], axis=2)
    hit = np.flatnonzero(np.isfinite(far))
    hit = hit[:: max(1, len(hit) * VIEWS // _POINTS)]
    return np.rint(picture * 255).astype(np.uint8), start[hit] + far[hit, None] * rays[hit], colors[hit]


def make(folder: Path) -> None:
    """Writes the scene: ``transforms.json`` last. Raises ``OSError``."""
    from PIL import Image

    from rung.core.files import write_whole, written_whole

    (folder / "images").mkdir(parents=True, exist_ok=True)
    frames, points, colors = [], [], []
    for number in range(VIEWS):
        pose = _look(number)
        picture, hit, covered = photograph(pose)
        name = f"images/{number:03d}.png"
        with written_whole(folder / name) as temporary:
            Image.fromarray(picture).save(temporary)
        frames.append({"file_path": name, "transform_matrix": pose.tolist()})
        points.append(hit)
        colors.append(covered)
    write_whole(folder / "points.ply", _ply(np.concatenate(points), np.concatenate(colors)))
    camera = {"w": SIZE, "h": SIZE, "fl_x": _FOCAL, "fl_y": _FOCAL, "cx": SIZE / 2, "cy": SIZE / 2}
    fields = {"camera_model": "PINHOLE", **camera, "ply_file_path": "points.ply", "frames": frames}
    write_whole(folder / "transforms.json", json.dumps(fields, indent=1).encode())


def _ply(points: Array, colors: Array) -> bytes:
    """A cloud of points as binary PLY."""
    kinds = [*((name, "<f4") for name in "xyz"), *((name, "u1") for name in ("red", "green", "blue"))]
    rows = np.zeros(len(points), kinds)
    for column, name in enumerate("xyz"):
        rows[name] = points[:, column]
    for column, name in enumerate(("red", "green", "blue")):
        rows[name] = np.rint(colors[:, column] * 255)
    head = ["ply", "format binary_little_endian 1.0", f"element vertex {len(points)}"]
    head += [*(f"property float {name}" for name in "xyz"), *(f"property uchar {n}" for n in ("red", "green", "blue"))]
    return "\n".join([*head, "end_header", ""]).encode() + rows.tobytes()
