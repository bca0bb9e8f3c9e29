"""Gaussian splats by gsplat's kernels for CUDA, where they are built and give what ``ref`` gives.

Projection and harmonics are torch's, so that thresholds and gradients of the camera are those of the other rungs.
"""

from __future__ import annotations

from typing import Any

import torch
from gsplat.cuda import _wrapper as kernels
from torch import Tensor
from torch.autograd.function import once_differentiable

from rung.ops.rasterize import TILE, Camera, Picture, Splats
from rung.ops.rasterize.projecting import absolute_of, project


class _Absolute(torch.autograd.Function):
    """Centers [1, N, 2] as they are, put into ``out``; what gsplat leaves on them goes to ``absolute`` [N, 2]."""

    @staticmethod
    def forward(ctx: Any, means: Tensor, absolute: Tensor, out: list[Tensor]) -> Tensor:
        ctx.means = out
        return means.view_as(means)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        means = ctx.means.pop()  # which would hold on to this for ever
        return gradient, means.absgrad[0], None


class Tiles:
    """See ``rung.ops.rasterize``."""

    def apply(self, splats: Splats, pose: Tensor, camera: Camera, screen: Tensor | None = None) -> Picture:
        """The picture of the splats."""
        flat = project(splats, pose, camera, screen)
        across, down = -(-camera.width // TILE), -(-camera.height // TILE)
        means, conics, opacities, depths, radii = (
            each[None].contiguous() for each in (flat.means, flat.conics, flat.opacities, flat.depths, flat.radii)
        )
        absolute, gradients = absolute_of(screen), list[Tensor]()
        if absolute is not None:
            means = _Absolute.apply(means, absolute, gradients)
            gradients.append(means)
        channels = torch.cat([flat.colors, flat.depths[:, None]], dim=1)[None]
        _, keys, listed = kernels.isect_tiles(means.detach(), radii, depths.detach(), TILE, across, down, n_images=1)
        starts = kernels.isect_offset_encode(keys, 1, across, down)
        size = (camera.width, camera.height, TILE)
        image, alpha = kernels.rasterize_to_pixels(
            means, conics, channels, opacities, *size, starts, listed, absgrad=absolute is not None
        )
        return Picture(image[0, ..., :3], alpha[0, ..., 0], image[0, ..., 3], flat.radii, flat.means)


RUNG = Tiles()
