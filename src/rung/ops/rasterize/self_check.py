"""Check a rung of rasterize: a picture of seeded splats, and its gradients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from rung.core.types import Case, Rung
from rung.kernels.webgpu import tensor_device
from rung.ops.proof import SEED, compare
from rung.ops.rasterize import Camera, Splats, where

if TYPE_CHECKING:
    import torch

Arrays = Mapping[str, npt.NDArray[Any]]


def splats(count: int, degree: int | None, seed: int = SEED) -> Splats:
    """Seeded splats before a camera at the origin, thin enough that each is seen."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    spread = torch.tensor([1.2, 1.2, 0.6])
    means = (torch.rand(count, 3, generator=generator) - 0.5) * 2 * spread + torch.tensor([0.0, 0.0, 3.5])
    return Splats(
        means,
        torch.randn(count, 4, generator=generator),
        torch.rand(count, 3, generator=generator) * 0.03 + 0.01,
        torch.rand(count, generator=generator) * 0.3 + 0.1,
        torch.randn(count, 16 if degree is not None else 1, 3, generator=generator) * 0.3 + 0.2,
    )


def gradients(
    implementation: Any, scene: Splats, camera: Camera, location: str = "cpu", **options: str
) -> tuple[Any, list[torch.Tensor]]:
    """The picture, and the gradients of a seeded sum of it by every tensor of the splats and by the pose.

    ``location`` is where torch has the tensors, ``options`` what else the implementation is given."""
    import torch

    taken = [tensor.detach().to(location).requires_grad_() for tensor in scene]
    pose = torch.eye(4, dtype=scene.means.dtype, device=location).requires_grad_()
    drawn = implementation.apply(Splats(*taken), pose, camera, **options)
    generator = torch.Generator().manual_seed(SEED)
    loss = sum(
        (picture * torch.randn(picture.shape, generator=generator).to(picture)).sum()
        for picture in (drawn.color, drawn.alpha, drawn.depth)
    )
    loss.backward()
    return drawn, [slope.cpu() for slope in (tensor.grad for tensor in (*taken, pose)) if slope is not None]


def check(rung: Rung, case: Case, location: str) -> str:
    """Thousands of splats and every one's gradients: one in a thousand that vanishes is found."""
    from rung.ops.rasterize import ref

    degree = case.options.get("degree")
    camera = Camera(112, 96, 100.0, 101.0, 55.5, 48.5, degree, bool(case.options.get("antialiased")))
    scene = splats(4096, degree)
    if degree is None:
        scene = scene._replace(colors=scene.colors[:, 0])
    got, slopes = gradients(rung.load(), scene, camera, tensor_device(location), **where(rung, location))
    want, right = gradients(ref.RUNG, Splats(*(x.double() for x in scene)), camera)
    return wrong_picture(outputs(got), outputs(want)) or wrong_gradients(by_name(slopes), by_name(right))


def outputs(drawn: Any) -> dict[str, npt.NDArray[Any]]:
    """Return color, alpha and depth of a picture as arrays."""
    return {name: getattr(drawn, name).detach().cpu().numpy() for name in ("color", "alpha", "depth")}


def by_name(slopes: list[torch.Tensor]) -> dict[str, npt.NDArray[Any]]:
    """Return the gradients of ``gradients`` as arrays: of the splats by the names of their fields, then of the pose."""
    return {name: slope.numpy() for name, slope in zip((*Splats._fields, "pose"), slopes, strict=True)}


def wrong_picture(got: Arrays, want: Arrays) -> str:
    """Return how the outputs differ; empty where they do not.

    A pixel may decide another way where it lies on a threshold, which changes it by 1/255 and its splats a little.
    """
    for name, scale in (("color", 1.0), ("alpha", 1.0), ("depth", 5.0)):
        reason = compare(got[name], want[name], scale, 1 / 128)
        if reason or float(np.abs(got[name].astype(np.float64) - want[name]).mean()) > 1e-4 * scale:
            return f"{name}: {reason or 'differs all over'}"
    return ""


def wrong_gradients(got: Arrays, want: Arrays) -> str:
    """Return how gradients differ; empty where they do not."""
    for name, there in want.items():
        rows, right = (slope.astype(np.float64).reshape(len(there), -1) for slope in (got[name], there))
        whole = np.linalg.norm(right)
        size = np.linalg.norm(right, axis=1, keepdims=True) + 1e-3 * whole / len(right) ** 0.5
        reason = compare(rows, right, size, 0.05)
        if reason or float(np.linalg.norm(rows - right) / whole) > 2e-3:
            return f"gradient of {name}: {reason or 'differs all over'}"
    return ""
