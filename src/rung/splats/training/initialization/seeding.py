"""Hold what training begins with: a splat for each point of the scene, or for random pixels of its pictures, or a
file's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rung.models.card import View
from rung.splats.cloud import C0, Cloud, Floats
from rung.splats.files.packing import spread_bits
from rung.splats.poses import in_picture, places, pose_of, reaches
from rung.splats.training.normalization import World

#: Points beside a point, in an order along a curve through space, among which its neighbors are looked for.
_NEAR = 8
_BITS = 21

Bytes = npt.NDArray[np.uint8]


def count_views(points: Floats, views: Sequence[View]) -> npt.NDArray[np.int64]:
    """How many cameras have each point in their picture, [N]."""
    counts = np.zeros(len(points), np.int64)
    for view in views:
        counts += in_picture(view, points)[0]
    return counts


def random_points(
    views: Sequence[View], pictures: Sequence[Bytes], count: int, chance: np.random.Generator
) -> tuple[Floats, Bytes]:
    """Points on the rays of random pixels of these pictures, with their colors, where several cameras look at.

    They lie from a quarter of to three times as far as what the cameras look at.
    """
    positions, reach = places(views), reaches(views)
    enough = min(3, len(views))
    centers, colors, found = [], [], 0
    for _ in range(20):
        which = chance.integers(len(views), size=2 * count)
        share = np.exp(chance.uniform(np.log(0.25), np.log(3.0), size=2 * count))
        across, down = chance.random((2, 2 * count))
        points, tints = np.zeros((2 * count, 3)), np.zeros((2 * count, 3), np.uint8)
        for index, view in enumerate(views):
            mine = which == index
            u, v = across[mine] * view.width, down[mine] * view.height
            turn = pose_of(view)[:3, :3]
            rays = np.stack([(u - view.cx) / view.fx, (v - view.cy) / view.fy, np.ones(mine.sum())], axis=1)
            points[mine] = positions[index] + (rays @ turn) * (reach[index] * share[mine])[:, None]
            tints[mine] = pictures[index][v.astype(int), u.astype(int)]
        good = count_views(points.astype(np.float32), views) >= enough
        centers.append(points[good])
        colors.append(tints[good])
        found += int(good.sum())
        if found >= count:
            break
    return np.concatenate(centers)[:count].astype(np.float32), np.concatenate(colors)[:count]


def apart(points: Floats) -> Floats:
    """About how far the three nearest points are from each point, the root of their mean square, [N].

    Neighbors are looked for along two curves through space (Morton's, the second shifted), not among all points.
    """
    if len(points) < 2:
        return np.ones(len(points), np.float32)
    low, high = points.min(0).astype(np.float64), points.max(0).astype(np.float64)
    near = np.full((len(points), 3), np.inf)
    for shift in (0.0, 0.37):
        cells = ((points - low) / max(float((high - low).max()), 1e-12) + shift) / 2 * (2**_BITS - 1)
        x, y, z = (spread_bits(column.astype(np.uint64)) for column in cells.T)
        order = np.argsort(x | y << np.uint64(1) | z << np.uint64(2), kind="stable")
        lined = points[order].astype(np.float64)
        for step in range(1, min(_NEAR + 1, len(points))):
            squares = np.sum((lined[step:] - lined[:-step]) ** 2, axis=1)
            for them in (order[step:], order[:-step]):
                candidates = np.concatenate([near[them], squares[:, None]], axis=1)
                near[them] = np.sort(_unlike(candidates), axis=1)[:, :3]
    near = np.where(np.isfinite(near), near, near[:, :1])
    found: Floats = np.sqrt(near.mean(1)).astype(np.float32)
    return np.maximum(found, np.float32(1e-7))


def _unlike(candidates: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The last one of each row is infinite where it stands there already: the other curve found it too."""
    twice = (candidates[:, :3] == candidates[:, 3:]).any(axis=1)
    candidates[twice, 3] = np.inf
    return candidates


def cloud_of(points: Floats, colors: Bytes, degree: int, opacity: float, scale: float) -> Cloud:
    """Round splats at these points, ``scale`` times as large as their neighbors are apart."""
    number = len(points)
    harmonics = np.zeros((number, (degree + 1) ** 2, 3), np.float32)
    harmonics[:, 0] = (colors.astype(np.float32) / 255 - 0.5) / C0
    sizes = np.log(apart(points) * scale)[:, None].repeat(3, axis=1).astype(np.float32)
    logits = np.full(number, np.log(opacity / (1 - opacity)), np.float32)
    turns = np.zeros((number, 4), np.float32)
    turns[:, 0] = 1
    return Cloud(points.astype(np.float32), turns, sizes, logits, harmonics)


def thinned(rows: int, most: int, chance: np.random.Generator) -> npt.NDArray[np.int64]:
    """At most so many of the rows, by chance, in their order."""
    if rows <= most:
        return np.arange(rows)
    return np.sort(chance.choice(rows, most, replace=False))


def with_degree(cloud: Cloud, degree: int) -> Cloud:
    """The splats with harmonics of that degree: higher ones left out, missing ones zero."""
    needed, present = (degree + 1) ** 2, cloud.harmonics.shape[1]
    harmonics = np.zeros((len(cloud.means), needed, 3), np.float32)
    harmonics[:, : min(needed, present)] = cloud.harmonics[:, :needed]
    return cloud._replace(harmonics=harmonics)


def inner_start(cloud: Cloud, world: World, degree: int, most: int, chance: np.random.Generator) -> Cloud:
    """The splats of a file as training begins with them."""
    rows = thinned(len(cloud.means), most, chance)
    return world.inner(with_degree(cloud.chosen(rows), degree))
