"""Gaussian splats in plain torch with its own gradients, a tile at a time: the specification of the other rungs."""

from __future__ import annotations

import torch
from torch import Tensor

from rung.ops.rasterize import TILE, Camera, Picture, Splats
from rung.ops.rasterize.projecting import Flat, absolute_of, composite, project


def _tile(flat: Flat, order: Tensor, absolute: Tensor | None, left: int, top: int, right: int, bottom: int) -> Tensor:
    """[bottom - top, right - left, 5] of the pixels in that box."""
    kind, device = flat.means.dtype, flat.means.device
    centers, radii = flat.means.detach()[order], flat.radii[order]
    corner, end = torch.tensor([left, top], device=device), torch.tensor([right, bottom], device=device)
    touched = ((centers + radii > corner) & (centers - radii < end)).all(-1)
    down = torch.arange(top, bottom, dtype=kind, device=device) + 0.5
    across = torch.arange(left, right, dtype=kind, device=device) + 0.5
    pixels = torch.stack(torch.meshgrid(across, down, indexing="xy"), dim=-1).reshape(-1, 2)
    return composite(flat, order[touched], pixels, absolute).reshape(bottom - top, right - left, 5)


class Reference:
    """See ``rung.ops.rasterize``; computes in the dtype of the splats."""

    def apply(self, splats: Splats, pose: Tensor, camera: Camera, screen: Tensor | None = None) -> Picture:
        """The picture of the splats."""
        flat = project(splats, pose, camera, screen)
        order = torch.argsort(flat.depths.detach(), stable=True)
        order = order[flat.radii[order, 0] > 0]
        width, height, absolute = camera.width, camera.height, absolute_of(screen)
        rows = [
            torch.cat(
                [
                    _tile(flat, order, absolute, left, top, min(left + TILE, width), min(top + TILE, height))
                    for left in range(0, width, TILE)
                ],
                dim=1,
            )
            for top in range(0, height, TILE)
        ]
        image = torch.cat(rows)
        return Picture(image[..., :3], image[..., 4], image[..., 3], flat.radii, flat.means)


RUNG = Reference()
