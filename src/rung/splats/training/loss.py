"""How far a picture is from its photograph: L1 and SSIM (Wang et al., 2004), with their gradient."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rung.measure.metrics import ssim_window, structural_similarity
from rung.splats.training.adam_8bit import compiled_for

#: Share of SSIM in the loss, as in 3D Gaussian Splatting.
SHARE = 0.2


@functools.lru_cache(16)
def _windows(size: int, width: int, device: torch.device) -> Tensor:
    """Band matrix [size - width + 1, size] of the weighted means of all whole windows."""
    weights = ssim_window(width, width).astype(np.float32)
    rows = torch.zeros(size - width + 1, size)
    for at in range(width):
        rows.diagonal(at)[:] = float(weights[at])
    return rows.to(device)


class _Photometric(torch.autograd.Function):
    """The gradient is known with the value: both are found at once."""

    @staticmethod
    def forward(ctx: Any, color: Tensor, truth: Tensor) -> Tensor:
        weights = ssim_window(*color.shape[:2]).astype(np.float32)
        if compiled := compiled_for(color):
            known, gradient = compiled.likeness_of(color.detach(), truth, weights, SHARE)
            ctx.save_for_backward(gradient)
            return torch.tensor(known)
        value, gradient = plain(color.detach(), truth, len(weights))
        ctx.save_for_backward(gradient)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * upstream, None


def plain(color: Tensor, truth: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Loss and gradient in torch's own operations."""
    x, y = color.permute(2, 0, 1).contiguous(), truth.permute(2, 0, 1).contiguous()
    down, across = (_windows(size, window, x.device) for size in x.shape[1:])
    with torch.enable_grad():
        x.requires_grad_()
        near = structural_similarity(x, y, lambda values: down @ (values @ across.T)).mean()
        value = (1 - SHARE) * (x - y).abs().mean() + SHARE * (1 - near)
        (gradient,) = torch.autograd.grad(value, x)
    return value.detach(), gradient.permute(1, 2, 0)


def photometric(color: Tensor, truth: Tensor) -> Tensor:
    """``0.8 L1 + 0.2 (1 - SSIM)`` of pictures [H, W, 3] with values from 0 to 1; gradients for the first.

    SSIM of each channel alone, over whole windows of 11 x 11 (of the smaller side, where that is less).
    """
    loss: Tensor = _Photometric.apply(color, truth)
    return loss
