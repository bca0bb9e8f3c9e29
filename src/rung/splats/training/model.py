"""Splats that are learned: their parameters, the two means that Adam keeps of each, and changes of their number."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from rung.nn.stepping import adam_update
from rung.ops.rasterize import Camera, Splats
from rung.splats.cloud import Cloud
from rung.splats.training import adam_8bit

#: Adam's (arXiv:1412.6980), with the epsilon of 3D Gaussian Splatting.
BETAS, EPSILON = (0.9, 0.999), 1e-15
#: Names of the parameters, as ``Cloud`` has them.
NAMES = Cloud._fields
#: Under which 8-bit means of harmonics have their magnitudes.
_SIZES = "harmonics.sizes"


def adam(value: Tensor, gradient: Tensor, first: Tensor, second: Tensor, rates: tuple[float, ...], taken: int) -> None:
    """One step for ``value`` and the two means, of the same shape, with a rate for each value of a row; ``taken``
    counts steps, this one too."""
    if compiled := adam_8bit.compiled_for(value):
        compiled.adam_step(value, gradient, first, second, rates, taken, BETAS, EPSILON)
        return
    update, factor = adam_update(gradient, first, second, BETAS, EPSILON, taken)
    value.sub_(update.mul_(torch.tensor(rates, device=value.device).view(value.shape[1:]) * factor))


def arrays_of(
    values: Mapping[str, Tensor], first: Mapping[str, Tensor], second: Mapping[str, Tensor]
) -> dict[str, np.ndarray]:
    """Return the parameters and both Adam moments as a checkpoint stores them: ``value.NAME``, ``first.NAME`` ..."""
    groups = {"value": values, "first": first, "second": second}
    return {
        f"{kind}.{name}": value.detach().cpu().numpy()
        for kind, group in groups.items()
        for name, value in group.items()
    }


class Model:
    """N splats; ``values``, ``first`` and ``second`` hold a tensor for each of ``NAMES``; ``taken`` counts steps.

    With a ``state`` of ``8bit`` both means of harmonics are codes of ``eight``, ``first`` and ``second`` hold the
    magnitudes too, and harmonics have no gradient of their own; they may be ``f16`` then. All else is float32.
    """

    def __init__(self, cloud: Cloud, device: torch.device, state: str = "f32", harmonics: str = "f32") -> None:
        self.lean = state == "8bit"
        self.values = {
            name: torch.from_numpy(np.ascontiguousarray(value)).to(device, copy=True)
            for name, value in cloud._asdict().items()
        }
        if harmonics == "f16":
            self.values["harmonics"] = self.values["harmonics"].half()
        self.first = {name: torch.zeros_like(value) for name, value in self.values.items()}
        self.second = {name: torch.zeros_like(value) for name, value in self.values.items()}
        if self.lean:
            for group in (self.first, self.second):
                group["harmonics"] = torch.zeros_like(group["harmonics"], dtype=torch.uint8)
                group[_SIZES] = torch.zeros(len(self), device=device)
        self._color_gradients: adam_8bit.ColorGradients | None = None
        self.taken = 0
        self._ask()

    def _ask(self) -> None:
        """Gradients of what has one of its own."""
        for name, value in self.values.items():
            value.requires_grad_(not (self.lean and name == "harmonics"))

    def __len__(self) -> int:
        return len(self.values["means"])

    @property
    def device(self) -> torch.device:
        """Where the tensors are."""
        return self.values["means"].device

    def prepare(self) -> None:
        """Sees to it that compiled kernels are on disk, so that this process needs no memory for compiling them."""
        if compiled := adam_8bit.compiled_for(self.values["means"]):
            compiled.prepare(self.lean)

    def splats(self, camera: Camera, pose: Tensor) -> tuple[Splats, Camera]:
        """Return the splats that a camera draws from a pose [4, 4], with gradients, and the camera, whose degree is
        that of the harmonics."""
        v = self.values
        colors = v["harmonics"]
        if self.lean:
            assert camera.degree is not None
            position = -pose[:3, :3].T @ pose[:3, 3]
            self._color_gradients = adam_8bit.ColorGradients(position, camera.degree)
            colors, camera = (
                adam_8bit.Shade.apply(colors, v["means"], position, self._color_gradients),
                camera._replace(degree=None),
            )
        return Splats(v["means"], v["quats"], v["log_scales"].exp(), v["logits"].sigmoid(), colors), camera

    def cloud(self) -> Cloud:
        """The splats as files have them, in the space of training; quaternions of length one."""
        found = {name: value.detach().float().cpu().numpy() for name, value in self.values.items()}
        result = Cloud(**{name: np.array(value) for name, value in found.items()})
        return result._replace(quats=result.units)

    @torch.no_grad()
    def step(self, rates: Mapping[str, float], degree: int) -> None:
        """One step of Adam on all gradients, which are forgotten. Of the harmonics ``base`` is the rate of the first
        and ``harmonics`` of those up to ``degree``; the others stay what they are."""
        self.taken += 1
        width = self.values["harmonics"][:1].numel()
        learned = 3 * (degree + 1) ** 2
        terms = (rates["base"],) * 3 + (rates["harmonics"],) * (learned - 3) + (0.0,) * (width - learned)
        if self.lean:  # before the centers change: it goes by where they were seen
            self._learn(terms)
        for name, value in self.values.items():
            if not value.requires_grad:
                continue
            assert value.grad is not None
            each = terms if name == "harmonics" else (rates.get(name, 0.0),) * value[:1].numel()
            adam(value, value.grad, self.first[name], self.second[name], each, self.taken)
            value.grad = None

    def _learn(self, rates: tuple[float, ...]) -> None:
        assert self._color_gradients is not None
        states = [each[name] for each in (self.first, self.second) for name in ("harmonics", _SIZES)]
        state = adam_8bit.Means8(*states)
        harmonics, means = self.values["harmonics"], self.values["means"]
        adam_8bit.learn(harmonics, means, self._color_gradients, state, rates, self.taken, BETAS, EPSILON)
        self._color_gradients = None

    @torch.no_grad()
    def choose(self, rows: Tensor, fresh: int = 0) -> None:
        """Makes these rows the splats, in that order; what Adam keeps of the last ``fresh`` of them begins anew."""
        for group in (self.values, self.first, self.second):
            for name, value in group.items():
                group[name] = value.detach()[rows]
        if fresh:
            for group in (self.first, self.second):
                for value in group.values():
                    value[-fresh:] = 0
        self._ask()

    @torch.no_grad()
    def replace(self, rows: Tensor, **values: Tensor) -> None:
        """Gives rows other values."""
        for name, value in values.items():
            self.values[name][rows] = value

    @torch.no_grad()
    def forget(self, rows: Tensor, *names: str) -> None:
        """Begin anew what Adam keeps of these rows; of all parameters, or those named."""
        for group in (self.first, self.second):
            for name in names or group:
                group[name][rows] = 0

    def state(self) -> dict[str, np.ndarray]:
        """Everything, by name, for a checkpoint."""
        return arrays_of(self.values, self.first, self.second)

    @classmethod
    def of_state(cls, state: Mapping[str, np.ndarray], taken: int, device: torch.device) -> Model:
        """Restore the model of ``state``. Raises ``KeyError`` and ``ValueError`` for another state."""
        begun = Cloud(**{name: state[f"value.{name}"] for name in NAMES})
        kept = "8bit" if f"first.{_SIZES}" in state else "f32"
        model = cls(begun, device, kept, "f16" if begun.harmonics.dtype == np.float16 else "f32")
        for kind, group in (("first", model.first), ("second", model.second)):
            for name, value in group.items():
                value.copy_(torch.from_numpy(state[f"{kind}.{name}"]))
        model.taken = taken
        return model


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
