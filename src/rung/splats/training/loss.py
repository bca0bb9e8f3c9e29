"""How far a picture is from its photograph: L1 and SSIM (Wang et al., 2004), with their gradient."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rung.splats.training.adam_8bit import compiled_for

#: Share of SSIM in the loss, as in 3D Gaussian Splatting.
SHARE = 0.2
_WINDOW, _SIGMA = 11, 1.5
_C1, _C2 = 0.01**2, 0.03**2


@functools.lru_cache(16)
def _weights(width: int) -> Tensor:
    """Return the weights of a window's side, float32."""
    places = torch.arange(width, dtype=torch.float64) - (width - 1) / 2
    weights = torch.exp(-(places**2) / (2 * _SIGMA**2))
    return (weights / weights.sum()).float()


@functools.lru_cache(16)
def _windows(size: int, width: int, device: torch.device) -> Tensor:
    """Band matrix [size - width + 1, size] of the weighted means of all whole windows."""
    weights = _weights(width)
    rows = torch.zeros(size - width + 1, size)
    for at in range(width):
        rows.diagonal(at)[:] = weights[at]
    return rows.to(device)


class _Photometric(torch.autograd.Function):
    """The gradient is known with the value: both are found at once."""

    @staticmethod
    def forward(ctx: Any, color: Tensor, truth: Tensor) -> Tensor:
        window = min(_WINDOW, *color.shape[:2])
        if compiled := compiled_for(color):
            known, gradient = compiled.likeness_of(color.detach(), truth, _weights(window).numpy(), SHARE)
            ctx.save_for_backward(gradient)
            return torch.tensor(known)
        value, gradient = plain(color.detach(), truth, window)
        ctx.save_for_backward(gradient)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * given, None


def plain(color: Tensor, truth: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Loss and gradient in torch's own operations."""
    x, y = color.permute(2, 0, 1).contiguous(), truth.permute(2, 0, 1).contiguous()
    down, across = (_windows(size, window, x.device) for size in x.shape[1:])

    def means(values: Tensor) -> Tensor:
        return down @ (values @ across.T)

    def back(values: Tensor) -> Tensor:
        return down.T @ (values @ across)

    mx, my = means(x), means(y)
    xx, yy, xy = means(x * x), means(y * y), means(x * y)
    top_a, top_b = 2 * mx * my + _C1, 2 * (xy - mx * my) + _C2
    low_a, low_b = mx * mx + my * my + _C1, xx - mx * mx + yy - my * my + _C2
    near = top_a * top_b / (low_a * low_b)
    by_xy = 2 * top_a / (low_a * low_b)
    by_xx = -near / low_b
    by_mx = 2 * my * (top_b - top_a) / (low_a * low_b) - 2 * mx * near / low_a + 2 * mx * near / low_b
    slope = back(by_mx) + 2 * x * back(by_xx) + y * back(by_xy)
    away = x - y
    gradient = away.sign() * ((1 - SHARE) / away.numel()) - slope * (SHARE / near.numel())
    return (1 - SHARE) * away.abs().mean() + SHARE * (1 - near.mean()), gradient.permute(1, 2, 0)


def photometric(color: Tensor, truth: Tensor) -> Tensor:
    """``0.8 L1 + 0.2 (1 - SSIM)`` of pictures [H, W, 3] with values from 0 to 1; gradients for the first.

    SSIM of each channel alone, over whole windows of 11 x 11 (of the smaller side, where that is less).
    """
    made: Tensor = _Photometric.apply(color, truth)
    return made
