"""A textured scene with exactly known cameras, made by casting rays: what training on splats is measured on.

    pip download --no-deps scikit-image
    python benchmarks/splat_scene.py scikit_image-*.whl --out SCENE [--views 60 --size 400]

A room, boxes and spheres with photographs of scikit-image's wheel on them and highlights that move with the camera.
SCENE/images holds the pictures, SCENE/sparse/0 COLMAP's text with points and their tracks, SCENE/poses/transforms.json
the same cameras without points. The last line says how near a copy of another view comes: PSNR in dB, the mean over
the test views, of the training view taken from the nearest place, and of the best of all training views.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from PIL import Image

Array = npt.NDArray[np.floating]

#: Pixels of the longer side of a texture, rays a pixel along each axis, points looked for in each view.
TEXTURE, RAYS, POINTS = 384, 2, 150
LIGHT = np.array([0.6, -0.4, 2.7])


class Hits(NamedTuple):
    """Which rays meet a surface nearer than what they met before: their indexes, the distance in lengths of the ray,
    the place on the texture, the normal."""

    rays: npt.NDArray[np.intp]
    distance: Array
    u: Array
    v: Array
    normal: Array


@dataclass
class Quad:
    """A parallelogram: a corner and two edges at right angles; (u, v) run along them."""

    corner: Array
    right: Array
    down: Array
    texture: Array
    gloss: float

    def hits(self, origin: Array, rays: Array, best: Array) -> Hits:
        """Where rays [N, 3] from one place meet it nearer than ``best`` [N]."""
        normal = np.cross(self.right, self.down)
        with np.errstate(divide="ignore", invalid="ignore"):
            distance = ((self.corner - origin) @ normal) / (rays @ normal)
        near = np.flatnonzero((distance > 1e-4) & (distance < best))
        hit = origin + distance[near, None] * rays[near] - self.corner
        u, v = (hit @ edge / (edge @ edge) for edge in (self.right, self.down))
        inside = (u >= 0) & (u <= 1) & (v >= 0) & (v <= 1)
        near, normal = near[inside], normal / np.linalg.norm(normal)
        return Hits(near, distance[near], u[inside], v[inside], np.broadcast_to(normal, (len(near), 3)))


@dataclass
class Sphere:
    """A sphere; u runs around it, v from its top down."""

    center: Array
    radius: float
    texture: Array
    gloss: float

    def hits(self, origin: Array, rays: Array, best: Array) -> Hits:
        """As ``Quad.hits``, from outside."""
        start = origin - self.center
        a, half, c = (rays * rays).sum(1), rays @ start, start @ start - self.radius**2
        inner = half * half - a * c
        distance = (-half - np.sqrt(np.maximum(inner, 0))) / a
        near = np.flatnonzero((inner > 0) & (distance > 1e-4) & (distance < best))
        normal = (start + distance[near, None] * rays[near]) / self.radius
        u = np.arctan2(normal[:, 1], normal[:, 0]) / (2 * np.pi) + 0.5
        return Hits(near, distance[near], u, np.arccos(normal[:, 2].clip(-1, 1)) / np.pi, normal)


Surface = Quad | Sphere


def photographs(wheel: Path) -> dict[str, Array]:
    """The pictures in scikit-image's wheel by name, colors 0 to 1, reduced."""
    found = {}
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith("skimage/data/") and name.endswith((".png", ".jpg")):
                picture = Image.open(io.BytesIO(archive.read(name))).convert("RGB")
                picture.thumbnail((TEXTURE, TEXTURE), Image.Resampling.LANCZOS)
                found[Path(name).stem] = np.asarray(picture) / 255.0
    return found


def box(
    center: tuple[float, float, float],
    half: tuple[float, float, float],
    turn: float,
    textures: list[Array],
    gloss: float,
) -> list[Surface]:
    """Six sides, turned about the upright axis; textures in the order of four walls, top, bottom, again from the
    first where there are fewer."""
    cos, sin = math.cos(turn), math.sin(turn)
    x, y, z = np.array([cos, sin, 0]) * half[0], np.array([-sin, cos, 0]) * half[1], np.array([0, 0, 1.0]) * half[2]
    sides: list[Surface] = []
    for index, (out, right, up) in enumerate(((x, y, z), (y, -x, z), (-x, -y, z), (-y, x, z), (z, x, y), (-z, x, -y))):
        corner = np.array(center) + out - right + up
        sides.append(Quad(corner, 2 * right, -2 * up, textures[index % len(textures)], gloss))
    return sides


def surfaces(of: dict[str, Array]) -> list[Surface]:
    """The scene: 6 m wide, 3 m high, the floor at 0."""
    walls = [of[name] for name in ("coffee", "motorcycle_left", "astronaut", "rocket", "clock_motion", "brick")]
    return [
        *box((0, 0, 1.5), (3, 3, 1.5), 0, walls, 0),
        *box((0.7, 0.5, 0.35), (0.35, 0.35, 0.35), 0.4, [of["chelsea"], of["astronaut"]], 0.1),
        *box((-0.8, 0.6, 0.5), (0.3, 0.25, 0.5), -0.5, [of["ihc"], of["hubble_deep_field"]], 0.1),
        *box((-0.5, -0.9, 0.25), (0.45, 0.2, 0.25), 0.9, [of["coins"], of["color"]], 0.1),
        *box((1.1, -0.8, 0.15), (0.2, 0.5, 0.15), 0.2, [of["page"], of["motorcycle_right"]], 0.1),
        Sphere(np.array([0.1, -0.1, 0.4]), 0.4, of["retina"], 0.5),
        Sphere(np.array([-1.3, -0.3, 0.3]), 0.3, of["moon"], 0.5),
        Sphere(np.array([0.6, 1.4, 0.35]), 0.35, of["color"], 0.5),
        Sphere(np.array([-0.8, 0.6, 1.25]), 0.25, of["coffee"], 0.4),
    ]


def sampled(texture: Array, u: Array, v: Array) -> Array:
    """Colors [N, 3] between the four nearest texels."""
    height, width, _ = texture.shape
    x, y = (u * width - 0.5).clip(0, width - 1.001), (v * height - 0.5).clip(0, height - 1.001)
    left, top = x.astype(int), y.astype(int)
    x, y = (x - left)[:, None], (y - top)[:, None]
    upper = texture[top, left] * (1 - x) + texture[top, left + 1] * x
    return upper * (1 - y) + (texture[top + 1, left] * (1 - x) + texture[top + 1, left + 1] * x) * y


def cast(scene: list[Surface], origin: Array, rays: Array) -> tuple[Array, Array]:
    """Distances [N] in lengths of the ray and colors [N, 3]: diffuse light, and Blinn's highlights."""
    best, nearest = np.full(len(rays), np.inf), np.zeros(len(rays), int)
    where, normals = np.zeros((len(rays), 2)), np.zeros((len(rays), 3))
    for index, surface in enumerate(scene):
        found = surface.hits(origin, rays, best)
        best[found.rays], nearest[found.rays], normals[found.rays] = found.distance, index, found.normal
        where[found.rays] = np.stack([found.u, found.v], 1)
    color = np.zeros((len(rays), 3))
    for index, surface in enumerate(scene):
        met = np.flatnonzero(nearest == index)
        point = origin + best[met, None] * rays[met]
        eye, light = (way / np.linalg.norm(way, axis=1, keepdims=True) for way in (origin - point, LIGHT - point))
        normal = normals[met] * np.sign((normals[met] * eye).sum(1, keepdims=True))
        middle = eye + light
        middle /= np.linalg.norm(middle, axis=1, keepdims=True)
        diffuse = 0.5 + 0.5 * (normal * light).sum(1, keepdims=True).clip(0)
        highlight = surface.gloss * (normal * middle).sum(1, keepdims=True).clip(0) ** 40
        color[met] = sampled(surface.texture, *where[met].T) * diffuse + highlight
    return best, color.clip(0, 1)


def poses(views: int) -> list[Array]:
    """World to camera [3, 4], axes right, down, forward: around the middle at several heights, looking near it."""
    rng = np.random.default_rng(6)
    found = []
    for index in range(views):
        angle = 2 * math.pi * index * (math.sqrt(5) - 1) / 2
        radius, height = rng.uniform(1.9, 2.6), rng.uniform(0.5, 2.4)
        eye = np.array([radius * math.cos(angle), radius * math.sin(angle), height])
        forward = np.array([*rng.uniform(-0.5, 0.5, 2), rng.uniform(0.2, 0.8)]) - eye
        forward /= np.linalg.norm(forward)
        right = np.cross(forward, [0, 0, 1.0])
        right /= np.linalg.norm(right)
        turn = np.stack([right, np.cross(forward, right), forward])
        found.append(np.concatenate([turn, -turn @ eye[:, None]], axis=1))
    return found


def picture(scene: list[Surface], pose: Array, size: int) -> npt.NDArray[np.uint8]:
    """[size, size, 3] of a camera whose focal length is 0.9 of its width."""
    fine = size * RAYS
    across = ((np.arange(fine) + 0.5) / fine - 0.5) / 0.9
    v, u = np.meshgrid(across, across, indexing="ij")
    rays = np.stack([u, v, np.ones_like(u)], -1).reshape(-1, 3) @ pose[:, :3]
    color = cast(scene, -pose[:, :3].T @ pose[:, 3], rays)[1]
    mean = color.reshape(size, RAYS, size, RAYS, 3).mean((1, 3))
    return np.round(mean * 255).astype(np.uint8)


class Points(NamedTuple):
    """Points on surfaces: places [N, 3], colors uint8 [N, 3], and for each view the (x, y) [N, 2] of them, NaN
    where it does not see them."""

    places: Array
    colors: npt.NDArray[np.uint8]
    pixels: list[Array]


def points(scene: list[Surface], cameras: list[Array], size: int) -> Points:
    """Return points at random pixels of every view that another view sees too."""
    rng = np.random.default_rng(1)
    places, colors = [], []
    for pose in cameras:
        rays = np.append((rng.random((POINTS, 2)) - 0.5) / 0.9, np.ones((POINTS, 1)), 1) @ pose[:, :3]
        origin = -pose[:, :3].T @ pose[:, 3]
        distance, color = cast(scene, origin, rays)
        places.append(origin + distance[:, None] * rays)
        colors.append(color)
    positions, projections = np.concatenate(places), []
    for pose in cameras:
        local = positions @ pose[:, :3].T + pose[:, 3]
        pixel = (local[:, :2] / local[:, 2:] * 0.9 + 0.5) * size
        origin = -pose[:, :3].T @ pose[:, 3]
        free = cast(scene, origin, positions - origin)[0] > 1 - 1e-3
        inside = (local[:, 2] > 0.1) & (pixel > 0).all(1) & (pixel < size).all(1)
        projections.append(np.where((free & inside)[:, None], pixel, np.nan))
    often = np.sum([~np.isnan(pixel[:, 0]) for pixel in projections], axis=0) >= 2
    color = np.round(np.concatenate(colors)[often] * 255).astype(np.uint8)
    return Points(positions[often], color, [pixel[often] for pixel in projections])


def quaternion(turn: Array) -> Array:
    """(w, x, y, z) of a rotation: the eigenvector of Bar-Itzhack's matrix."""
    xx, xy, xz, yx, yy, yz, zx, zy, zz = turn.reshape(-1)
    matrix = np.array([
        [xx + yy + zz, zy - yz, xz - zx, yx - xy],
        [zy - yz, xx - yy - zz, xy + yx, xz + zx],
        [xz - zx, xy + yx, yy - xx - zz, yz + zy],
        [yx - xy, xz + zx, yz + zy, zz - xx - yy],
    ])  # fmt: skip
    found: Array = np.linalg.eigh(matrix)[1][:, -1]
    return found


def write_colmap(folder: Path, names: list[str], cameras: list[Array], size: int, found: Points) -> None:
    """COLMAP's three text files."""
    folder.mkdir(parents=True, exist_ok=True)
    focal = 0.9 * size
    (folder / "cameras.txt").write_text(f"1 PINHOLE {size} {size} {focal} {focal} {size / 2} {size / 2}\n")
    lines, tracks = list[str](), [list[str]() for _ in found.places]
    for number, (name, pose, pixel) in enumerate(zip(names, cameras, found.pixels, strict=True), 1):
        numbers = " ".join(f"{value:.12g}" for value in (*quaternion(pose[:, :3]), *pose[:, 3]))
        there = np.flatnonzero(~np.isnan(pixel[:, 0]))
        lines += [
            f"{number} {numbers} 1 {name}",
            " ".join(f"{pixel[i, 0]:.3f} {pixel[i, 1]:.3f} {i + 1}" for i in there),
        ]
        for position, index in enumerate(there):
            tracks[index].append(f"{number} {position}")
    (folder / "images.txt").write_text("\n".join(lines) + "\n")
    rows = []
    for number, (position, color, track) in enumerate(zip(found.places, found.colors, tracks, strict=True), 1):
        where = " ".join(f"{value:.9g}" for value in position)
        rows.append(f"{number} {where} {' '.join(map(str, color))} 0.1 {' '.join(track)}")
    (folder / "points3D.txt").write_text("\n".join(rows) + "\n")


def write_transforms(path: Path, names: list[str], cameras: list[Array], size: int) -> None:
    """nerfstudio's file: camera to world, axes right, up, backward."""
    frames = []
    for name, pose in zip(names, cameras, strict=True):
        world = np.eye(4)
        world[:3, :3] = pose[:, :3].T * np.array([1, -1, -1])
        world[:3, 3] = -pose[:, :3].T @ pose[:, 3]
        frames.append({"file_path": f"../images/{name}", "transform_matrix": world.tolist()})
    camera = {"w": size, "h": size, "fl_x": 0.9 * size, "fl_y": 0.9 * size, "cx": size / 2, "cy": size / 2}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"camera_model": "OPENCV", **camera, "frames": frames}, indent=1))


def copies(pictures: list[npt.NDArray[np.uint8]], cameras: list[Array]) -> tuple[float, float]:
    """PSNR of training views as answers to the test views: of the nearest by place, and of the best."""
    places = np.stack([-pose[:, :3].T @ pose[:, 3] for pose in cameras])
    train = [index for index in range(len(pictures)) if index % 8]
    nearest, best = [], []
    for test in range(0, len(pictures), 8):
        error = [np.mean((pictures[test].astype(float) - pictures[index]) ** 2) for index in train]
        decibels = 10 * np.log10(255**2 / np.array(error))
        nearest.append(decibels[np.argmin(np.linalg.norm(places[train] - places[test], axis=1))])
        best.append(decibels.max())
    return float(np.mean(nearest)), float(np.mean(best))


def main() -> None:
    """Writes the scene."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--views", type=int, default=60)
    parser.add_argument("--size", type=int, default=400)
    options = parser.parse_args()
    scene, cameras = surfaces(photographs(options.wheel)), poses(options.views)
    names = [f"view_{index:03}.png" for index in range(options.views)]
    (options.out / "images").mkdir(parents=True, exist_ok=True)
    pictures = []
    for name, pose in zip(names, cameras, strict=True):
        pictures.append(picture(scene, pose, options.size))
        Image.fromarray(pictures[-1]).save(options.out / "images" / name)
    found = points(scene, cameras, options.size)
    write_colmap(options.out / "sparse/0", names, cameras, options.size, found)
    write_transforms(options.out / "poses/transforms.json", names, cameras, options.size)
    nearest, best = copies(pictures, cameras)
    print(
        f"{options.views} views, {len(found.places):,} points; as answers the nearest training view {nearest:.1f} dB, "
        f"the best {best:.1f} dB"
    )


if __name__ == "__main__":
    main()
