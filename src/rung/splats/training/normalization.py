"""Where training computes: a space in which the cameras stand around the origin, at most a unit away.

The published learning rates of centers are for scenes of that size. Files are in the input's world.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rung.core.value import Value
from rung.models.card import View
from rung.splats.cloud import Cloud, Floats
from rung.splats.poses import places, pose_of

#: As gsplat's trainer has it: a little beyond the farthest camera.
_BEYOND = 1.1


@dataclass(frozen=True)
class World(Value):
    """The inner space is ``(x - center) / extent``."""

    center: tuple[float, float, float]
    extent: float

    def pose(self, view: View) -> Floats:
        """World to camera [4, 4] of the inner space."""
        pose = pose_of(view)
        pose[:3, 3] = (pose[:3, :3] @ np.array(self.center) + pose[:3, 3]) / self.extent
        return pose.astype(np.float32)

    def outer_pose(self, pose: npt.NDArray[np.floating]) -> tuple[float, ...]:
        """Return the inner pose as a ``View`` stores it."""
        outer = pose[:3].astype(np.float64)
        outer[:, 3] = outer[:, 3] * self.extent - outer[:, :3] @ np.array(self.center)
        return tuple(outer.reshape(-1).tolist())

    def inward(self, points: Floats) -> Floats:
        """Points of the input's world in the inner space."""
        result: Floats = ((points - np.array(self.center)) / self.extent).astype(np.float32)
        return result

    def inner(self, cloud: Cloud) -> Cloud:
        """Splats of the input's world in the inner space."""
        return cloud._replace(
            means=self.inward(cloud.means), log_scales=cloud.log_scales - np.float32(np.log(self.extent))
        )

    def outer(self, cloud: Cloud) -> Cloud:
        """Splats of the inner space in the input's world."""
        means = cloud.means.astype(np.float64) * self.extent + np.array(self.center)
        return cloud._replace(
            means=means.astype(np.float32), log_scales=cloud.log_scales + np.float32(np.log(self.extent))
        )


def around(views: Sequence[View], points: Floats) -> World:
    """The world of these cameras; cameras that stand in one place are measured by the points that they look at."""
    positions = places(views)
    center = positions.mean(0)
    extent = _BEYOND * float(np.linalg.norm(positions - center, axis=1).max())
    if len(points):
        extent = max(extent, 0.05 * float(np.median(np.linalg.norm(points - center, axis=1))))
    x, y, z = center.tolist()
    return World((x, y, z), extent if extent > 1e-9 else 1.0)
