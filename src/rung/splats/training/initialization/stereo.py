"""Points where pictures agree, for scenes that bring none: a plane sweep.

Windows of a picture are compared with those of its neighbors at many depths (Collins, A space-sweep approach to true
multi-image matching, 1996) by their normalized cross-correlation; a depth counts where other views found it as well.
Splats that begin on surfaces need fewer steps than those that have to find them, and fewer float before a camera.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from rung.models.card import View
from rung.splats.cloud import Floats
from rung.splats.photographs import Shot
from rung.splats.poses import places, pose_of, reaches
from rung.splats.training.initialization.seeding import Bytes

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
