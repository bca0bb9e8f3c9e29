"""Scenes put together, cut, thinned and moved: clouds of splats in, a cloud out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from rung.models.card import View
from rung.ops.rasterize.projecting import basis
from rung.splats.cloud import Cloud, Floats

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Move:
    """First ``scale``, then turned by ``angles`` in degrees about x, then y, then z, then moved by ``shift``."""

    shift: tuple[float, float, float] = (0.0, 0.0, 0.0)
    angles: tuple[float, float, float] = (0.0, 0.0, 0.0)
    scale: float = 1.0

    @property
    def rotation(self) -> Matrix:
        """[3, 3] of determinant 1."""
        matrix = np.eye(3)
        for axis, angle in enumerate(np.radians(self.angles)):
            turn, (a, b) = np.eye(3), ((axis + 1) % 3, (axis + 2) % 3)
            turn[[a, b], [a, b]] = np.cos(angle)
            turn[b, a], turn[a, b] = np.sin(angle), -np.sin(angle)
            matrix = turn @ matrix
        return matrix


def merged(clouds: Sequence[Cloud]) -> Cloud:
    """All splats of at least one cloud, in order, with harmonics of the highest degree among them."""
    terms = max(cloud.harmonics.shape[1] for cloud in clouds)
    padded = [np.pad(cloud.harmonics, ((0, 0), (0, terms - cloud.harmonics.shape[1]), (0, 0))) for cloud in clouds]
    columns = zip(*(cloud._replace(harmonics=own) for cloud, own in zip(clouds, padded, strict=True)), strict=True)
    return Cloud(*(np.concatenate(parts) for parts in columns))


def cropped(cloud: Cloud, low: Sequence[float], high: Sequence[float]) -> Cloud:
    """The splats whose centers lie in the box from ``low`` [3] to ``high`` [3]."""
    inside = (cloud.means >= np.asarray(low)) & (cloud.means <= np.asarray(high))
    return cloud.chosen(np.asarray(inside.all(1)))


def pruned(cloud: Cloud, opacity: float) -> Cloud:
    """The splats of at least this opacity."""
    return cloud.chosen(cloud.opacities >= opacity)


def weightiest(cloud: Cloud, most: int) -> Cloud:
    """At most so many splats, in their order: those of the most opacity times size, which is the root of their
    broadest side's area (the two largest scales). Of a trained scene of which half stayed, this kept 1 dB more than
    opacity times the area, and 4 more than times the volume."""
    if len(cloud.means) <= most:
        return cloud
    scales = np.sort(cloud.log_scales.astype(np.float64), axis=1)
    weights = (scales[:, 1] + scales[:, 2]) / 2 + np.log(np.maximum(cloud.opacities, 1e-30))
    return cloud.chosen(np.sort(np.argsort(-weights, kind="stable")[:most]))


def lowered(cloud: Cloud, degree: int) -> Cloud:
    """With harmonics of at most this degree."""
    return cloud._replace(harmonics=cloud.harmonics[:, : (degree + 1) ** 2])


def moved(cloud: Cloud, move: Move) -> Cloud:
    """The scene scaled, turned and moved: it looks the same from cameras that are ``seen`` from there."""
    rotation = move.rotation
    means = cloud.means.astype(np.float64) @ rotation.T * move.scale + move.shift
    return Cloud(
        means.astype(np.float32),
        _turned(cloud.quats, rotation) if any(move.angles) else cloud.quats,
        (cloud.log_scales + np.float32(np.log(move.scale))).astype(np.float32),
        cloud.logits,
        turned_harmonics(cloud.harmonics, rotation) if any(move.angles) else cloud.harmonics,
    )


def moved_view(view: View, move: Move) -> View:
    """The camera that sees of a moved scene what ``view`` sees of the scene; depths are scaled."""
    pose = np.array(view.pose).reshape(3, 4)
    turn = pose[:, :3] @ move.rotation.T
    position = move.scale * pose[:, 3] - turn @ np.array(move.shift)
    return replace(view, pose=tuple(np.concatenate([turn, position[:, None]], axis=1).reshape(-1).tolist()))


def _turned(quats: Floats, rotation: Matrix) -> Floats:
    """[N, 4]: each first, then the rotation; lengths stay."""
    a, b, c, d = _quaternion(rotation)
    w, x, y, z = quats.astype(np.float64).T
    parts = [a * w - b * x - c * y - d * z, a * x + b * w + c * z - d * y]
    parts += [a * y - b * z + c * w + d * x, a * z + b * y - c * x + d * w]
    return np.stack(parts, axis=1).astype(np.float32)


def _quaternion(rotation: Matrix) -> Matrix:
    """[4] (w, x, y, z): the axis of the largest eigenvalue (Bar-Itzhack, 2000)."""
    (a, b, c), (d, e, f), (g, h, i) = rotation
    rows = [
        [a + e + i, 0, 0, 0],
        [h - f, a - e - i, 0, 0],
        [c - g, b + d, e - a - i, 0],
        [d - b, c + g, f + h, i - a - e],
    ]
    quat: Matrix = np.linalg.eigh(np.array(rows))[1][:, -1]  # of a symmetric matrix: the lower half is enough
    return quat


def turned_harmonics(harmonics: Floats, rotation: Matrix) -> Floats:
    """[N, (degree + 1)^2, 3] of splats that are turned: their color in a direction is what it was in the direction
    turned back.

    Each degree by its own Wigner matrix, in float64. It is found by looking: it is what takes the values of the basis
    in enough directions to those in the directions turned back.
    """
    degree = int(harmonics.shape[1] ** 0.5) - 1
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((64, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    there, back = (basis(degree, torch.from_numpy(each)).numpy() for each in (directions, directions @ rotation))
    turned = harmonics.copy()
    for band in range(1, degree + 1):
        terms = slice(band**2, (band + 1) ** 2)
        wigner = np.linalg.lstsq(there[:, terms], back[:, terms])[0]
        turned[:, terms] = np.einsum("ij,njc->nic", wigner.astype(np.float32), harmonics[:, terms])
    return turned
