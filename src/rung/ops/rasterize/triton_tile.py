"""Gaussian splats on GPUs: projection by torch, tiles by kernels that Triton compiles for the card at hand.

Nothing but float32 arithmetic is asked of a card: no matrix units, no 16-bit numbers, no atomic additions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rung.kernels.gpu import splat_tiles
from rung.ops.rasterize import TILE, Camera, Picture, Splats
from rung.ops.rasterize.listing import Lists, lists
from rung.ops.rasterize.projecting import absolute_of, project

#: Splats that a program of ``sum_parts`` adds up.
_BLOCK = 32


def _starts(counts: Tensor) -> Tensor:
    """Where each begins, and the end of the last, int64."""
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)])


class _Tiles(torch.autograd.Function):
    """Records [N, RECORD] to states [tiles, STATE, 256]; the last two of these have no gradient. ``absolute`` is
    that of ``absolute_of``."""

    @staticmethod
    def forward(
        ctx: Any, records: Tensor, absolute: Tensor | None, tile_lists: Lists, across: int, width: int, height: int
    ) -> Tensor:
        records = records.detach().contiguous()
        starts, tiles = _starts(tile_lists.counts), len(tile_lists.counts)
        states = records.new_empty(tiles, splat_tiles.STATE, TILE * TILE)
        splat_tiles.composite[(tiles,)](records, tile_lists.listed, starts, states, across, width, height)
        ctx.save_for_backward(records, starts, states, *tile_lists)
        ctx.across, ctx.unsigned = across, absolute is not None
        return states

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradients: Tensor) -> tuple[Any, ...]:
        records, starts, states, *saved = ctx.saved_tensors
        tile_lists, tiles = Lists(*saved), len(states)
        gradients = gradients.clone()
        gradients[:, 4] = -gradients[:, 4]  # alpha is what is not left
        columns = splat_tiles.PARTS + (splat_tiles.UNSIGNED if ctx.unsigned else 0)
        parts = records.new_zeros(len(tile_lists.listed), columns)
        splat_tiles.blame[(tiles,)](
            records,
            tile_lists.listed,
            tile_lists.entries,
            starts,
            states,
            gradients.contiguous(),
            parts,
            ctx.across,
            columns,
        )
        count = len(records)
        sums, touched = records.new_empty(count, columns), _starts(tile_lists.touched)
        splat_tiles.sum_parts[(-(-count // _BLOCK),)](parts, touched, sums, count, columns, _BLOCK)
        by_splat = torch.empty_like(sums)
        by_splat[tile_lists.order] = sums
        unsigned = by_splat[:, splat_tiles.PARTS :] if ctx.unsigned else None
        return (_record_slopes(records, by_splat[:, : splat_tiles.PARTS]), unsigned, None, None, None, None)


def _record_slopes(records: Tensor, sums: Tensor) -> Tensor:
    """Gradients of the records [N, RECORD] from what the tiles told."""
    xx, xy, yy, opacity = records[:, 2:6].unbind(-1)
    power, by_x, by_y = sums[:, :3].unbind(-1)
    found = torch.empty_like(records)
    found[:, 0], found[:, 1] = -(xx * by_x + xy * by_y), -(xy * by_x + yy * by_y)
    found[:, 2], found[:, 3], found[:, 4] = 0.5 * sums[:, 3], sums[:, 4], 0.5 * sums[:, 5]
    found[:, 5] = torch.where(power != 0, -power / opacity, torch.zeros_like(power))
    found[:, 6:] = sums[:, 6:]
    return found


class Tiles:
    """See ``rung.ops.rasterize``."""

    def apply(self, splats: Splats, pose: Tensor, camera: Camera, screen: Tensor | None = None) -> Picture:
        """The picture of the splats."""
        flat = project(splats, pose, camera, screen)
        across, down = -(-camera.width // TILE), -(-camera.height // TILE)
        columns = (flat.means, flat.conics, flat.opacities[:, None], flat.colors, flat.depths[:, None])
        tile_lists = lists(flat, across, down)
        states = _Tiles.apply(
            torch.cat(columns, dim=1), absolute_of(screen), tile_lists, across, camera.width, camera.height
        )
        image = states.reshape(down, across, splat_tiles.STATE, TILE, TILE).permute(0, 3, 1, 4, 2)
        image = image.reshape(down * TILE, across * TILE, splat_tiles.STATE)[: camera.height, : camera.width]
        return Picture(image[..., :3], 1 - image[..., 4], image[..., 3], flat.radii, flat.means)


RUNG = Tiles()
