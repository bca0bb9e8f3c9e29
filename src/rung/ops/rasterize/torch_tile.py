"""Gaussian splats in torch's own operations, many tiles at once: for any device that torch computes on.

Tiles with lists of about one length are composited together; on the way back each such group is computed again,
so that only one is held.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rung.ops.rasterize import TILE, Camera, Picture, Splats
from rung.ops.rasterize.listing import lists
from rung.ops.rasterize.projecting import Flat, absolute_of, composite, project

#: Pixels times splats of a group: about 20 tensors of as many values are held.
_MOST = 1 << 22


def _with_nothing(each: Tensor) -> Tensor:
    """Return the values of all splats, and of one more at the end that nobody sees, for lists that are filled up."""
    return torch.cat([each, each.new_zeros(1, *each.shape[1:])])


class Tiles:
    """See ``rung.ops.rasterize``; computes in the dtype of the splats, where they are."""

    def apply(self, splats: Splats, pose: Tensor, camera: Camera, screen: Tensor | None = None) -> Picture:
        """The picture of the splats."""
        flat = project(splats, pose, camera, screen)
        across, down = -(-camera.width // TILE), -(-camera.height // TILE)
        image = self._composite(flat, absolute_of(screen), across, down)
        image = image.reshape(down, across, TILE, TILE, 5).permute(0, 2, 1, 3, 4)
        image = image.reshape(down * TILE, across * TILE, 5)[: camera.height, : camera.width]
        return Picture(image[..., :3], image[..., 4], image[..., 3], flat.radii, flat.means)

    def _composite(self, flat: Flat, absolute: Tensor | None, across: int, down: int) -> Tensor:
        tile_lists = lists(flat, across, down)
        counts = tile_lists.counts
        listed = torch.cat([tile_lists.listed, counts.new_full((1,), len(flat.radii))])  # one that nobody sees
        starts = counts.cumsum(0) - counts
        lengths, tiles = torch.sort(counts, descending=True)
        padded = Flat(*map(_with_nothing, flat))
        unsigned = None if absolute is None else _with_nothing(absolute)
        within = torch.arange(TILE, dtype=flat.means.dtype, device=flat.means.device) + 0.5
        pixels = torch.stack(torch.meshgrid(within, within, indexing="xy"), dim=-1).reshape(-1, 2)
        pictures: list[Tensor] = []
        first, remaining = 0, lengths.tolist()
        while not pictures or (first < len(remaining) and remaining[first]):
            longest = max(1, remaining[first])
            group = tiles[first : first + max(1, _MOST // (TILE * TILE * longest))]
            entry = torch.arange(longest, device=listed.device)
            entries = torch.where(entry < counts[group, None], starts[group, None] + entry, len(listed) - 1)
            corners = torch.stack([group % across, group // across], dim=-1) * TILE
            centers = pixels + corners[:, None, :]
            pictures.append(checkpoint(_group, *padded, listed[entries], centers, unsigned, use_reentrant=False))
            first += len(group)
        image = flat.means.new_zeros(across * down, TILE * TILE, 5)
        return image.index_copy(0, tiles[:first], torch.cat(pictures))


def _group(*arguments: Any) -> Tensor:
    """``composite`` of tensors, as checkpoints want it."""
    *flat, chosen, centers, unsigned = arguments
    return composite(Flat(*flat), chosen, centers, unsigned)


RUNG = Tiles()
