"""Where cameras stand, what they look at, and which points are in their pictures. Without torch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rung.models.card import View

Doubles = npt.NDArray[np.float64]


#: Of its own width, how far a picture lies beside its neighbor's where nothing else says how far the scene is: surveys
#: are flown with overlaps of 60 to 80 %.
_SIDEWAYS = 1 / 3


def pose_of(view: View) -> Doubles:
    """World to camera [4, 4]."""
    return np.vstack([np.array(view.pose, np.float64).reshape(3, 4), [0, 0, 0, 1]])


def places(views: Sequence[View]) -> Doubles:
    """Where the cameras stand, [N, 3]."""
    poses = np.stack([pose_of(view) for view in views])
    result: Doubles = -np.einsum("nji,nj->ni", poses[:, :3, :3], poses[:, :3, 3])
    return result


def focus(views: Sequence[View]) -> Doubles:
    """The point nearest to the axes of all cameras, [3]; where these are parallel, among the cameras."""
    positions = places(views)
    mean = positions.mean(0)
    axes = np.stack([pose_of(view)[2, :3] for view in views])
    across = np.eye(3) - axes[:, :, None] * axes[:, None, :]  # what of a distance lies beside each axis
    total = across.sum(0) + 1e-3 * len(views) * np.eye(3)  # parallel axes meet nowhere: a little weight for the mean
    found: Doubles = np.linalg.solve(total, (across @ (positions - mean)[..., None])[..., 0].sum(0)) + mean
    return found


def converge(views: Sequence[View]) -> bool:
    """Return whether most cameras have their common ``focus`` in the picture; in a survey from the air they have
    not."""
    goal = focus(views)
    return 2 * sum(bool(in_picture(view, goal[None])[0][0]) for view in views) > len(views)


def reaches(views: Sequence[View]) -> Doubles:
    """About how far along its axis what each camera looks at is, [N]: their common ``focus``; where they do not
    ``converge``, so far that pictures of neighbors overlap by two thirds."""
    positions = places(views)
    if converge(views):
        axes = np.stack([pose_of(view)[2, :3] for view in views])
        along: Doubles = np.einsum("nj,nj->n", axes, focus(views) - positions)
        return np.maximum(along, 0.1 * float(np.median(along)))
    away = np.linalg.norm(positions[:, None] - positions, axis=2)
    nearest = np.where(away > 0, away, np.inf).min(1)
    if not np.isfinite(nearest).any():  # all stand in one place
        return np.ones(len(views))
    widths = np.array([min(view.width / view.fx, view.height / view.fy) for view in views])
    return float(np.median(nearest)) / (_SIDEWAYS * widths)


def in_picture(view: View, points: npt.NDArray[np.floating]) -> tuple[npt.NDArray[np.bool_], Doubles]:
    """Which points [N, 3] a pinhole camera has in its picture [N], and how far they are along its axis [N]."""
    pose = pose_of(view)
    x, y, depth = (points @ pose[:3, :3].T + pose[:3, 3]).T
    ahead = np.where(depth > 0, depth, 1)
    u, v = view.fx * x / ahead + view.cx, view.fy * y / ahead + view.cy
    return (depth > 0) & (u >= 0) & (u < view.width) & (v >= 0) & (v < view.height), depth
