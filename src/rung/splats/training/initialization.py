"""The splats that training begins with: of a file, of points of the scene, of pictures that agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from rung.core.errors import UsageError
from rung.core.text import count
from rung.models.card import SceneCard, View
from rung.splats.cloud import C0, Cloud, Floats
from rung.splats.files import read
from rung.splats.files.packing import spread_bits
from rung.splats.photographs import Photographs, Shot
from rung.splats.poses import converge, in_picture, places, pose_of, reaches
from rung.splats.scenes.colmap import points_of
from rung.splats.training.normalization import World
from rung.splats.training.settings import Settings
from rung.splats.training.trainer import Strategy

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


#: Pixels of the longer side that are compared, planes a picture, neighbors it is compared with, pixels of a window.
_SIDE, _PLANES, _NEIGHBORS, _WINDOW = 160, 64, 4, 5
_AT_ONCE = 16
#: Planes lie from and to so many times as far as the scene, at equal steps of the inverse depth.
_NEAREST, _FARTHEST = 0.2, 6.0
#: The angle in degrees between the rays of two views that is best: less tells depths badly, more looks different.
_ANGLE = 10.0
#: The least correlation, the difference between depths that are the same, and how many other views must have found it.
_LIKE, _SAME, _FOUND = 0.5, 0.02, 2

Doubles = npt.NDArray[np.float64]


class _Small(NamedTuple):
    """A view as it is compared: colors [3, h, w] and gray [1, h, w] in 0..1, which pixels count [h, w]."""

    colors: Tensor
    gray: Tensor
    counts: Tensor
    lens: Doubles  # [3, 3]
    pose: Doubles  # world to camera [4, 4]

    def rays(self) -> Tensor:
        """Through the pixels' centers, in the camera's axes, with z = 1: [h, w, 3]."""
        height, width = self.counts.shape
        down, across = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
        x, y = (across - self.lens[0, 2]) / self.lens[0, 0], (down - self.lens[1, 2]) / self.lens[1, 1]
        return torch.stack([x, y, torch.ones_like(x)], -1).float()


def matched_points(views: Sequence[View], shots: Sequence[Shot]) -> tuple[Floats, Bytes]:
    """Points [N, 3] on which at least three of the views agree, and their colors [N, 3]; there may be none."""
    smalls = [_small(view, shot) for view, shot in zip(views, shots, strict=True)]
    positions, reach = places(views), reaches(views)
    maps = [
        _depths(small, [smalls[other] for other in _neighbors(at, smalls, positions, reach[at])], reach[at])
        for at, small in enumerate(smalls)
    ]
    points, colors = [np.zeros((0, 3), np.float32)], [np.zeros((0, 3), np.uint8)]
    for at, small in enumerate(smalls):
        depths = maps[at].reshape(-1, 1)
        matched = np.flatnonzero(np.isfinite(depths[:, 0]))
        there = small.rays().numpy().reshape(-1, 3)[matched] * depths[matched] - small.pose[:3, 3]
        there = there @ small.pose[:3, :3]
        found = np.zeros(len(there), np.int64)
        for other in range(len(smalls)):
            found += _agree(there, smalls[other], maps[other]) if other != at else 0
        good = found >= _FOUND
        points.append(there[good].astype(np.float32))
        tints = small.colors.flatten(1).T.numpy()[matched][good]
        colors.append((tints * 255).round().astype(np.uint8))
    return np.concatenate(points), np.concatenate(colors)


def _small(view: View, shot: Shot) -> _Small:
    height, width = shot.rgb.shape[:2]
    share = min(1.0, _SIDE / max(height, width))
    size = (max(round(height * share), 1), max(round(width * share), 1))
    planes = [shot.rgb] if shot.alpha is None else [shot.rgb, shot.alpha[..., None]]
    whole = torch.from_numpy(np.concatenate(planes, axis=2)).permute(2, 0, 1)[None].float() / 255
    resized = functional.interpolate(whole, size=size, mode="area")[0]
    counts = resized[3] > 0.99 if len(resized) > 3 else torch.ones(size, dtype=torch.bool)
    x, y = size[1] / view.width, size[0] / view.height
    lens = np.array([[view.fx * x, 0, view.cx * x], [0, view.fy * y, view.cy * y], [0, 0, 1]], np.float64)
    return _Small(resized[:3], resized[:3].mean(0, keepdim=True), counts, lens, pose_of(view))


def _neighbors(at: int, smalls: Sequence[_Small], positions: Doubles, reach: float) -> list[int]:
    """The views that look the same way from a little beside."""
    axes = np.stack([small.pose[2, :3] for small in smalls])
    turned = np.degrees(np.arccos(np.clip(axes @ axes[at], -1, 1)))
    angles = np.degrees(np.arctan(np.linalg.norm(positions - positions[at], axis=1) / reach))
    worse = np.abs(np.log(np.maximum(angles, 1e-3) / _ANGLE)) + turned / 30
    worse[at] = np.inf
    order = [int(other) for other in np.argsort(worse, kind="stable") if turned[other] < 45 and other != at]
    return order[:_NEIGHBORS]


def _means(picture: Tensor) -> Tensor:
    """Over the window around each pixel, [N, C, h, w]."""
    half = _WINDOW // 2
    rows = functional.avg_pool2d(picture, (1, _WINDOW), 1, (0, half), count_include_pad=False)
    return functional.avg_pool2d(rows, (_WINDOW, 1), 1, (half, 0), count_include_pad=False)


def _depths(small: _Small, others: Sequence[_Small], reach: float) -> npt.NDArray[np.float32]:
    """How far each pixel's surface is along the axis [h, w]; not a number where nothing is alike."""
    if not others:
        return np.full(small.counts.shape, np.nan, np.float32)
    planes = torch.linspace(1 / (_FARTHEST * reach), 1 / (_NEAREST * reach), _PLANES)
    # some planes at a time, which bounds the memory
    like = torch.stack([torch.cat([_alike(small, other, some) for some in planes.split(_AT_ONCE)]) for other in others])
    # the better half of the neighbors: the others may have something before the surface
    like = like.topk(max(len(others) // 2, 1), dim=0).values.mean(0)
    best, at = like.max(0)
    inner = at.clamp(1, _PLANES - 2)
    before, here, after = (like.gather(0, inner[None] + step)[0] for step in (-1, 0, 1))
    offset = ((before - after) / (2 * (before - 2 * here + after)).clamp_max(-1e-6)).clamp(-0.5, 0.5)
    inverse = planes[at] + torch.where(at == inner, offset, 0.0) * (planes[1] - planes[0])
    good = (best > _LIKE) & small.counts
    return torch.where(good, 1 / inverse, torch.nan).numpy()


def _alike(small: _Small, other: _Small, planes: Tensor) -> Tensor:
    """Correlation of each pixel's window with that of the other view, were it on each plane: [planes, h, w]."""
    move = other.pose @ np.linalg.inv(small.pose)
    turn, shift = (torch.from_numpy(other.lens @ part).float() for part in (move[:3, :3], move[:3, 3]))
    across = small.rays() @ turn.T + planes[:, None, None, None] * shift
    ahead = across[..., 2] > 1e-6
    coordinates = across[..., :2] / across[..., 2:].clamp_min(1e-6)
    height, width = other.counts.shape
    grid = coordinates / torch.tensor([width, height]) * 2 - 1
    there = functional.grid_sample(other.gray.expand(len(planes), 1, -1, -1), grid, align_corners=False)
    mine = small.gray[None]
    mean, square = _means(torch.cat([mine, mine * mine], 1)).split(1, 1)
    mean_there, square_there, both = _means(torch.cat([there, there * there, there * mine], 1)).split(1, 1)
    spread = (square - mean * mean).clamp_min(0) * (square_there - mean_there * mean_there).clamp_min(0)
    like = (both - mean * mean_there) / (spread.sqrt() + 1e-4)
    return torch.where(ahead & (grid.abs() < 1).all(-1), like[:, 0], -1.0)


def _agree(points: Doubles, other: _Small, depths: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """1 for each point [N] that another view found as far away as it is."""
    x, y, z = (points @ other.pose[:3, :3].T + other.pose[:3, 3]).T
    ahead = z > 1e-6
    depth = np.where(ahead, z, 1)
    u, v = other.lens[0, 0] * x / depth + other.lens[0, 2], other.lens[1, 1] * y / depth + other.lens[1, 2]
    height, width = depths.shape
    inside = ahead & (u >= 0) & (u < width) & (v >= 0) & (v < height)
    there = depths[np.where(inside, v, 0).astype(int), np.where(inside, u, 0).astype(int)]
    with np.errstate(invalid="ignore"):
        result: npt.NDArray[np.int64] = (inside & (np.abs(there - z) < _SAME * z)).astype(np.int64)
        return result


#: Points that are looked for in the pictures; views that are compared where there are none, and the share of all
#: splats that a run then begins with at the points found.
_LOOKED_AT, _COMPARED, _MATCHED = 2000, 40, 0.8
#: Of cameras that look past each other, how many that stand side by side are compared.
_TOGETHER = 5

Points = tuple[Floats, Bytes]


def first_splats(
    settings: Settings,
    card: SceneCard,
    shots: Photographs,
    train: Sequence[int],
    world: World,
    strategy: Strategy,
    most: int,
    note: Callable[[str], None],
) -> Cloud:
    """At most so many splats of the inner space; ``train`` are the indexes of the pictures that may be looked at.

    Raises ``UsageError`` for a scene without points and without a place that several cameras look at, and for a file
    without splats.
    """
    chance = np.random.default_rng(settings.seed)
    if settings.init is not None:
        cloud = read(settings.init)
        if not len(cloud.means):
            raise UsageError(f"{settings.init} holds no splats to begin with.", [], ["leave --init out"])
        return inner_start(cloud, world, settings.sh_degree, most, chance)
    views = [shots.views[index] for index in train]
    points, colors = _thinned(points_of(card), most, chance)
    if len(points):
        _check(views, points, note)
    else:
        which = _compared(views, chance)
        pictures = [shots.shot(train[at]) for at in which]
        points, colors = _points_of([views[at] for at in which], pictures, most, chance, note)
    inner = world.inward(points)
    return cloud_of(inner, colors, settings.sh_degree, strategy.init_opacity, strategy.init_scale)


def _thinned(points: Points, most: int, chance: np.random.Generator) -> Points:
    rows = thinned(len(points[0]), most, chance)
    return points[0][rows], points[1][rows]


def _compared(views: Sequence[View], chance: np.random.Generator) -> list[int]:
    """Which of the views are compared: some by chance; where those would have nothing in common, some and the views
    that stand nearest to them."""
    if len(views) <= _COMPARED or converge(views):
        return list(thinned(len(views), _COMPARED, chance).tolist())
    positions, chosen = places(views), dict[int, None]()
    for at in chance.permutation(len(views)):
        nearest = np.argsort(np.linalg.norm(positions - positions[at], axis=1), kind="stable")[:_TOGETHER]
        chosen |= dict.fromkeys(nearest.tolist())
        if len(chosen) >= _COMPARED:
            break
    return sorted(list(chosen)[:_COMPARED])


def _check(views: Sequence[View], points: Floats, note: Callable[[str], None]) -> None:
    some = points[:: -(-len(points) // _LOOKED_AT)]
    unseen = float((count_views(some, views) == 0).mean())
    if unseen > 0.5:
        note(
            f"{unseen:.0%} of the points are in no picture: do the cameras look at the scene, and are poses and "
            "points of the same world?"
        )


def _points_of(
    views: Sequence[View],
    pictures: Sequence[Shot],
    most: int,
    chance: np.random.Generator,
    note: Callable[[str], None],
) -> Points:
    """Points that pictures agree on; where those are few, random ones too, which are a fog that has to clear."""
    found, tints = _thinned(matched_points(views, pictures), int(_MATCHED * most), chance)
    rest = max(most // 2 - len(found), 0)
    random, dyes = random_points(views, [shot.rgb for shot in pictures], rest, chance)
    if not len(found) + len(random):
        raise UsageError(
            "The scene has no points, and no place that several cameras look at.",
            [f"{count(len(views), 'training picture')}"],
            ["check the poses", "give points, or splats to begin with: --init FILE.ply"],
        )
    parts = [f"{len(found):,} found by comparing its pictures"] * bool(len(found))
    parts += [f"{len(random):,} random ones"] * bool(len(random))
    note(f"no points in the scene: begins with {' and '.join(parts)}")
    return np.concatenate([found, random]), np.concatenate([tints, dyes])
