"""Gaussian splats on the processor: compiled tiles of 16 x 16 pixels, 16 at a time, with analytic gradients.

Projection and gradients of splats are float64, tiles float32. The same inputs give the same bits, whatever the
number of threads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rung.kernels.isa.splats import OUTPUTS, STATE
from rung.ops.rasterize import TILE, Camera, Picture, Splats
from rung.ops.rasterize.compiled_picture import CompiledPicture, Floats


def _arrays(splats: Splats) -> dict[str, Floats]:
    """Views of tensors without gaps, by name."""
    return {name: tensor.numpy() for name, tensor in splats._asdict().items()}


def _outputs(drawn: CompiledPicture) -> tuple[Tensor, Tensor, Tensor]:
    """Color [H, W, 3], alpha [H, W] and depth [H, W]."""
    height, width = drawn.camera.height, drawn.camera.width
    planes = torch.from_numpy(drawn.states).permute(3, 0, 2, 1, 4)
    planes = planes.reshape(STATE, TILE * drawn.down, TILE * drawn.across)[:, :height, :width]
    return planes[1:4].permute(1, 2, 0).contiguous(), 1 - planes[0].abs(), planes[4].contiguous()


def _by_tiles(drawn: CompiledPicture, color: Tensor, alpha: Tensor, depth: Tensor) -> Tensor:
    """Gradients of the outputs as ``CompiledPicture.back`` takes them."""
    height, width = drawn.camera.height, drawn.camera.width
    gradients = torch.zeros(OUTPUTS, TILE * drawn.down, TILE * drawn.across)
    gradients[:3, :height, :width] = color.permute(2, 0, 1)
    gradients[3, :height, :width], gradients[4, :height, :width] = depth, alpha
    return gradients.reshape(OUTPUTS, drawn.down, TILE, drawn.across, TILE).permute(1, 3, 2, 0, 4).contiguous()


class _Rasterize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, camera: Camera, pose: Tensor, screen: Tensor | None, *tensors: Tensor) -> tuple[Tensor, ...]:
        splats = Splats(*(tensor.detach().contiguous() for tensor in tensors))
        drawn = CompiledPicture(_arrays(splats), pose.detach().double().cpu().numpy(), camera)
        ctx.drawn, ctx.columns = drawn, 0 if screen is None else screen.shape[1]
        ctx.save_for_backward(*splats)
        radii, means = torch.from_numpy(drawn.radii), torch.from_numpy(drawn.means())
        ctx.mark_non_differentiable(radii, means)
        return (*_outputs(drawn), radii, means)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, color: Tensor, alpha: Tensor, depth: Tensor, *unused: Tensor) -> tuple[Any, ...]:
        drawn: CompiledPicture = ctx.drawn
        gradients = _by_tiles(drawn, color, alpha, depth)
        found, screen, view = drawn.back(_arrays(Splats(*ctx.saved_tensors)), gradients, ctx.columns == 4)
        pose = torch.cat([torch.from_numpy(view), torch.zeros(1, 4)])
        splats = (torch.from_numpy(found[name]) for name in Splats._fields)
        return (None, pose, torch.from_numpy(screen) if ctx.columns else None, *splats)


class Tiles:
    """See ``rung.ops.rasterize``."""

    def apply(self, splats: Splats, pose: Tensor, camera: Camera, screen: Tensor | None = None) -> Picture:
        """The picture of the splats."""
        color, alpha, depth, radii, means = _Rasterize.apply(camera, pose, screen, *splats)
        return Picture(color, alpha, depth, radii, means)


RUNG = Tiles()
