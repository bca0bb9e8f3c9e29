"""Gaussian splats by gsplat's kernels for CUDA, where they are built and give what ``ref`` gives.

Projection and harmonics are torch's, so that thresholds and gradients of the camera are those of the other rungs.
"""

from __future__ import annotations

import torch
from gsplat.cuda import _wrapper as kernels
from torch import Tensor

from rung.ops.rasterize import TILE, Camera, Picture, Splats
from rung.ops.rasterize.projecting import project


class Tiles:
    """See ``rung.ops.rasterize``."""

    def apply(self, splats: Splats, pose: Tensor, camera: Camera, screen: Tensor | None = None) -> Picture:
        """The picture of the splats."""
        flat = project(splats, pose, camera, screen)
        across, down = -(-camera.width // TILE), -(-camera.height // TILE)
        means, conics, opacities, depths, radii = (
            each[None].contiguous() for each in (flat.means, flat.conics, flat.opacities, flat.depths, flat.radii)
        )
        channels = torch.cat([flat.colors, flat.depths[:, None]], dim=1)[None]
        _, keys, listed = kernels.isect_tiles(means.detach(), radii, depths.detach(), TILE, across, down, n_images=1)
        starts = kernels.isect_offset_encode(keys, 1, across, down)
        image, alpha = kernels.rasterize_to_pixels(
            means, conics, channels, opacities, camera.width, camera.height, TILE, starts, listed
        )
        return Picture(image[0, ..., :3], alpha[0, ..., 0], image[0, ..., 3], flat.radii, flat.means)


RUNG = Tiles()
