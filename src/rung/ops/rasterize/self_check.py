"""Check a rung of rasterize: a picture of seeded splats, and its gradients."""

from __future__ import annotations

from typing import Any

import torch

from rung.core.types import Case, Rung
from rung.kernels.webgpu import tensor_device
from rung.ops.proof import SEED, compare
from rung.ops.rasterize import Camera, Splats, ref, where


def splats(count: int, degree: int | None, seed: int = SEED) -> Splats:
    """Seeded splats before a camera at the origin, thin enough that each is seen."""
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
    """Thousands of splats and every one's gradients: one in a thousand that vanishes is seen.

    A pixel may decide another way where it lies on a threshold, which changes it by 1/255 and its splats a little.
    """
    degree = case.options.get("degree")
    camera = Camera(112, 96, 100.0, 101.0, 55.5, 48.5, degree, bool(case.options.get("antialiased")))
    scene = splats(4096, degree)
    if degree is None:
        scene = scene._replace(colors=scene.colors[:, 0])
    got, slopes = gradients(rung.load(), scene, camera, tensor_device(location), **where(rung, location))
    want, right = gradients(ref.RUNG, Splats(*(x.double() for x in scene)), camera)
    for name, scale in (("color", 1.0), ("alpha", 1.0), ("depth", 5.0)):
        here, there = getattr(got, name).detach().cpu(), getattr(want, name).detach()
        reason = compare(here, there, scale, 1 / 128)
        if reason or float((here - there).abs().mean()) > 1e-4 * scale:
            return f"{name}: {reason or 'differs all over'}"
    for name, here, there in zip((*Splats._fields, "pose"), slopes, right, strict=True):
        rows, right_rows = (slope.double().reshape(len(slope), -1) for slope in (here, there))
        size = right_rows.norm(dim=1, keepdim=True) + 1e-3 * right_rows.norm() / len(right_rows) ** 0.5
        reason = compare(rows, right_rows, size, 0.05)
        if reason or float((rows - right_rows).norm() / right_rows.norm()) > 2e-3:
            return f"gradient of {name}: {reason or 'differs all over'}"
    return ""
