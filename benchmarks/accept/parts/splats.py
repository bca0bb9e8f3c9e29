"""Pictures of splats and their gradients: the same bits twice, steps of training, and the time of a step."""

from __future__ import annotations

import time
from collections.abc import Iterator

from benchmarks.accept.check import Check, Target

from rung.kernels.webgpu import tensor_device
from rung.ops.rasterize import LADDER, Camera, where
from rung.ops.rasterize.self_check import gradients, splats
from rung.run.torch_device import location

ORDER, SECONDS = 11, 240
#: Shapes in which rungs are asked whether they draw.
_DEGREE = 3


def run(target: Target) -> Iterator[Check]:
    """Draw with every rung that runs on the device."""
    from rung.ops import examples

    (_, case), *_ = examples("rasterize", "f32")
    device = tensor_device(location(target.device.id))
    count, width = (500, 64) if target.small else (20_000, 256)
    camera = Camera(width, width, float(width), float(width), width / 2, width / 2, _DEGREE)
    for rung in LADDER.rungs:
        if rung.name == "ref" or not rung.verdict(case, target.device):
            continue
        implementation, scene, options = rung.load(), splats(count, _DEGREE), where(rung, target.device.id)
        (one, slopes), (two, again) = (gradients(implementation, scene, camera, device, **options) for _ in range(2))
        same = all(bool((a == b).all()) for a, b in zip((one.color, *slopes), (two.color, *again), strict=True))
        begun = time.perf_counter()
        gradients(implementation, scene, camera, device, **options)
        holds = same or (None if rung.name == "torch.tile" else False)  # torch adds in any order
        yield Check(rung.name, holds, {"same_bits_twice": same, "seconds": time.perf_counter() - begun})
    yield _training(target)


def _training(target: Target) -> Check:
    """Fit a picture for some steps."""
    import torch

    from rung.splats import rasterization

    drawn = location(target.device.id)
    device = tensor_device(drawn)
    torch.manual_seed(0)
    count, steps = (300, 20) if target.small else (5000, 200)
    parts = [
        torch.randn(count, 3) * 0.6 + torch.tensor([0.0, 0.0, 3.5]),
        torch.randn(count, 4),
        torch.rand(count, 3) * 0.05 + 0.02,
        torch.rand(count) * 0.8 + 0.1,
        torch.rand(count, 3),
    ]
    parameters = [part.to(device).requires_grad_() for part in parts]
    goal = torch.linspace(0, 1, 96, device=device)[None, :, None].expand(96, 96, 3)
    intrinsics = torch.tensor([[[100.0, 0, 48], [0, 100, 48], [0, 0, 1]]], device=device)
    optimizer, losses = torch.optim.Adam(parameters, lr=1e-2), []
    for _ in range(steps):
        picture, _, _ = rasterization(*parameters, torch.eye(4, device=device)[None], intrinsics, 96, 96, device=drawn)
        loss = (picture[0] - goal).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    ratio = losses[-1] / losses[0]
    return Check("training", ratio < 0.6, {"first": losses[0], "last": losses[-1], "steps": steps})
