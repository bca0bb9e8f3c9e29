"""Hold what is learned of the photographs, not of the scene: how each was exposed, and where its camera really
stood."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from rung.splats.training.model import adam, arrays_of

#: Learning rates at the beginning and at the end: of exposures as 3D Gaussian Splatting has them, of poses as gsplat.
_EXPOSURE, _POSE = (1e-2, 1e-3), (1e-5, 1e-7)


class Corrections:
    """For each of ``count`` photographs: ``exposure`` [3, 4], which turns colors into the photograph's, and ``pose``
    [6], a turn and a shift of the camera; either may be left out."""

    def __init__(self, count: int, exposure: bool, poses: bool, device: torch.device) -> None:
        self.values: dict[str, Tensor] = {}
        if exposure:
            self.values["exposure"] = torch.eye(3, 4, device=device).repeat(count, 1, 1)
        if poses:
            self.values["pose"] = torch.zeros(count, 6, device=device)
        self.first = {name: torch.zeros_like(value) for name, value in self.values.items()}
        self.second = {name: torch.zeros_like(value) for name, value in self.values.items()}
        for value in self.values.values():
            value.requires_grad_()

    def exposed(self, index: int, color: Tensor) -> Tensor:
        """The picture [H, W, 3] as that photograph's camera would show it."""
        if "exposure" not in self.values:
            return color
        matrix = self.values["exposure"][index]
        return color @ matrix[:, :3].T + matrix[:, 3]

    def moved(self, index: int, pose: Tensor) -> Tensor:
        """World to camera [4, 4] of that photograph."""
        if "pose" not in self.values:
            return pose
        x, y, z, *shift = self.values["pose"][index].unbind()
        none = torch.zeros_like(x)
        rows = [torch.stack(row) for row in ([none, -z, y, shift[0]], [z, none, -x, shift[1]], [-y, x, none, shift[2]])]
        change = torch.cat([torch.stack(rows), torch.zeros(1, 4, device=pose.device)])
        moved_pose: Tensor = torch.linalg.matrix_exp(change) @ pose
        return moved_pose

    @torch.no_grad()
    def step(self, done: float, taken: int) -> None:
        """One step of Adam on what has gradients, which are forgotten."""
        for name, (begin, end) in (("exposure", _EXPOSURE), ("pose", _POSE)):
            value = self.values.get(name)
            if value is not None and value.grad is not None:
                rates = (begin * (end / begin) ** done,) * value[0].numel()
                adam(value, value.grad, self.first[name], self.second[name], rates, taken)
                value.grad = None

    def state(self) -> dict[str, np.ndarray]:
        """Everything, by name, for a checkpoint."""
        return arrays_of(self.values, self.first, self.second)

    @torch.no_grad()
    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Takes what ``state`` gave."""
        groups = {"value": self.values, "first": self.first, "second": self.second}
        for kind, group in groups.items():
            for name, value in group.items():
                value.copy_(torch.from_numpy(state[f"{kind}.{name}"]))
                value.grad = None
