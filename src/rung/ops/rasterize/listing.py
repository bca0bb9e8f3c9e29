"""Which splats touch which tile, by depth: what rungs of GPUs share."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rung.ops.rasterize import TILE
from rung.ops.rasterize.projecting import Flat


class Lists(NamedTuple):
    """All int64: ``listed`` the splats of all tiles by depth, one tile after the other; ``counts`` how many each tile
    has; ``order`` all splats by depth and ``touched`` how many tiles each of those touches; ``entries`` where a splat
    on a tile stands when they are one splat after the other."""

    listed: Tensor
    counts: Tensor
    order: Tensor
    touched: Tensor
    entries: Tensor


def lists(flat: Flat, across: int, down: int) -> Lists:
    """The splats of ``across`` x ``down`` tiles; splats of one depth stay in their order."""
    centers, radii = flat.means.detach(), flat.radii
    edge = torch.tensor([across, down], device=radii.device)
    low = ((centers - radii) / TILE).floor().long().clamp_min(0)
    high = torch.minimum(((centers + radii) / TILE).ceil().long(), edge)
    spans = (high - low).clamp_min(0) * (radii > 0)
    order = torch.argsort(flat.depths.detach(), stable=True)
    touched = spans.prod(-1)[order]
    listed = order.repeat_interleave(touched)
    local = torch.arange(len(listed), device=radii.device) - (touched.cumsum(0) - touched).repeat_interleave(touched)
    wide = spans[listed, 0]
    x, y = low[listed, 0] + local % wide, low[listed, 1] + local // wide
    tiles, permutation = torch.sort(y * across + x, stable=True)
    return Lists(listed[permutation], torch.bincount(tiles, minlength=across * down), order, touched, permutation)
