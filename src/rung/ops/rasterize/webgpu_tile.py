"""Gaussian splats on any GPU that WebGPU reaches: all of it in WGSL, float32, the same bits each time.

Tensors are the processor's; arrays that share their memory cross over.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rung.kernels.webgpu.gpu import gpu
from rung.kernels.webgpu.splat.camera import Words
from rung.kernels.webgpu.splat.drawing import Arrays, Drawing
from rung.ops.rasterize import MARGIN, Camera, Picture, Splats


def _words(pose: Tensor, camera: Camera, splats: Splats) -> Words:
    fx, fy, cx, cy = camera.fx, camera.fy, camera.cx, camera.cy
    wide, high = MARGIN * 0.5 * camera.width / fx, MARGIN * 0.5 * camera.height / fy
    return Words(
        view=pose.detach()[:3].double().reshape(-1).tolist(),
        focal=(fx, fy),
        center=(cx, cy),
        limits=(-cx / fx - wide, (camera.width - cx) / fx + wide, -cy / fy - high, (camera.height - cy) / fy + high),
        planes=(camera.near, camera.far),
        splats=len(splats.means),
        terms=0 if camera.degree is None else splats.colors.shape[1],
        antialiased=camera.antialiased,
        size=(camera.width, camera.height),
    )


def _array(tensor: Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().contiguous().numpy()
    return array


class _Rasterize(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, device: str, camera: Camera, pose: Tensor, screen: Tensor | None, *tensors: Tensor
    ) -> tuple[Tensor, ...]:
        splats = Splats(*tensors)
        drawing = Drawing(gpu(device), Arrays(*map(_array, splats)), _words(pose, camera, splats), camera.degree)
        ctx.drawing, ctx.columns = drawing, 0 if screen is None else screen.shape[1]
        color, depth, left, means, radii = (torch.from_numpy(np.array(part)) for part in drawing.picture)
        ctx.mark_non_differentiable(radii, means)
        return color, 1 - left, depth, radii, means

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, color: Tensor, alpha: Tensor, depth: Tensor, *unused: Tensor) -> tuple[Any, ...]:
        gradients = (_array(each) for each in (color, depth, alpha))
        splat_gradients = ctx.drawing.back(*gradients, posed=ctx.needs_input_grad[2], unsigned=ctx.columns == 4)
        pose, screen = torch.zeros(4, 4), [splat_gradients.screen, splat_gradients.unsigned][: ctx.columns // 2]
        pose[:3] = torch.from_numpy(splat_gradients.view)
        splats = (torch.from_numpy(np.array(part)) for part in splat_gradients.splats)
        return (None, None, pose, torch.from_numpy(np.concatenate(screen, axis=1)) if screen else None, *splats)


class Tiles:
    """See ``rung.ops.rasterize``; ``device`` is the id of a device of WebGPU."""

    def apply(
        self, splats: Splats, pose: Tensor, camera: Camera, screen: Tensor | None = None, *, device: str
    ) -> Picture:
        """The picture of the splats."""
        if camera.degree is not None:  # harmonics of higher degrees stay where they are
            splats = splats._replace(colors=splats.colors[:, : (camera.degree + 1) ** 2])
        color, alpha, depth, radii, means = _Rasterize.apply(device, camera, pose, screen, *splats)
        return Picture(color, alpha, depth, radii, means)


RUNG = Tiles()
