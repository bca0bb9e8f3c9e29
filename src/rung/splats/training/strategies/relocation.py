"""Hold what splats become when they are copied (Kheradmand et al., 2024, arXiv:2404.09591), and their covariances."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rung.ops.rasterize.projecting import rotations

#: The least opacity of a splat that shows; the paper's.
DEAD = 0.005
#: More copies than these of one splat count as these.
COPIES = 51


def divided(opacities: Tensor, scales: Tensor, copies: Tensor) -> tuple[Tensor, Tensor]:
    """Opacities [N] and scales [N, 3] with which so many copies [N] of a splat look as it did: equation 9.

    In float64, because its sums alternate; on the host where the device, as Apple's, has none.
    """
    if opacities.device.type == "mps":
        faint, small = divided(opacities.cpu(), scales.cpu(), copies.cpu())
        return faint.to(opacities.device), small.to(opacities.device)
    each = 1 - (1 - opacities.double()).pow(1 / copies)
    weights = torch.zeros_like(each)
    power = torch.ones_like(each)
    for k in range(int(copies.max()) if len(copies) else 0):
        power = power * each
        # the sum over i of C(i, k), i from k to copies - 1, is C(copies, k + 1)
        ways = torch.tensor([math.comb(n, k + 1) for n in range(COPIES + 1)], dtype=torch.float64, device=each.device)
        weights += (-1) ** k * ways[copies] * power / math.sqrt(k + 1)
    factor = opacities.double() / weights
    kept = each.clamp(DEAD, 1 - torch.finfo(torch.float32).eps)
    return kept.float(), (scales.double() * factor[:, None]).float()


def covariances(quats: Tensor, scales: Tensor) -> Tensor:
    """[N, 3, 3] of splats with quaternions [N, 4] as (w, x, y, z) and standard deviations [N, 3]."""
    axes = rotations(quats) * scales[:, None, :]
    return axes @ axes.mT
