"""Blocks of values that share a scale and index a codebook of 256, for ``torch.ops.bitsandbytes``."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

#: Values that are worked on at once by torch: bounds the float32 copies.
PIECE = 1 << 22
#: bitsandbytes looks 8-bit codes up on a CPU in a table of that many steps between -1 and 1.
_STEPS = 65536

_tables: WeakIdKeyDictionary = WeakIdKeyDictionary()


def _blocks(flat: Tensor, blocksize: int) -> tuple[Tensor, Tensor]:
    """Values f32 [blocks, blocksize], zeros at the end, and the largest magnitude of each block."""
    count = -(-len(flat) // blocksize)
    padded = torch.zeros(count * blocksize, device=flat.device)
    padded[: len(flat)] = flat
    table = padded.view(count, blocksize)
    return table, table.abs().amax(dim=1) if count else table.new_empty(0)


def nearest(flat: Tensor, blocksize: int, values: Tensor) -> tuple[Tensor, Tensor]:
    """Indices int64 [n] of the sorted values, the smaller of two equally near ones, and the magnitudes of blocks."""
    table, absmax = _blocks(flat, blocksize)
    scaled = table * (1 / absmax.clamp_min(1e-38))[:, None]
    if len(flat) % blocksize:  # a short block is divided, where whole ones are multiplied
        absmax[-1].clamp_min_(1e-38)
        scaled[-1] = table[-1] / absmax[-1]
    return torch.bucketize(scaled.clamp_(-1, 1).view(-1)[: len(flat)], (values[:-1] + values[1:]) / 2), absmax


def quantize_blockwise(a: Tensor, code: Tensor, blocksize: int) -> tuple[Tensor, Tensor]:
    """Any floats -> codes uint8 like a, absmax f32 [blocks].

    On a CPU bitsandbytes does not look for the nearest of the 256 values but up in a table of 65,536 steps, so that
    what is smaller than 1.5e-5 of the largest has a code that is not the nearest: the same codes come from here.
    """
    flat = a.reshape(-1)
    codes = torch.empty(len(flat), dtype=torch.uint8, device=a.device)
    absmax = torch.empty(-(-len(flat) // blocksize), device=a.device)
    step = max(1, PIECE // blocksize) * blocksize
    for first in range(0, len(flat), step):
        piece, blocks = flat[first : first + step], slice(first // blocksize, -(-(first + step) // blocksize))
        if a.device.type == "cpu":
            found, absmax[blocks] = _looked_up(piece, blocksize, code)
        else:
            found, absmax[blocks] = nearest(piece, blocksize, code)
        codes[first : first + step] = found
    return codes.view(a.shape), absmax


def _looked_up(flat: Tensor, blocksize: int, code: Tensor) -> tuple[Tensor, Tensor]:
    table, absmax = _blocks(flat, min(blocksize, len(flat)))
    scaled = table.mul_((1 / absmax)[:, None]).clamp_(-1, 1)
    steps = scaled.add_(1).mul_(0.5 * (_STEPS - 1)).add_(0.5).to(torch.int32).clamp_(0, _STEPS - 1)
    codes = _table(code).index_select(0, steps.view(-1)).view(table.shape)
    codes[absmax == 0] = 0
    return codes.view(-1)[: len(flat)], absmax


def _table(code: Tensor) -> Tensor:
    """The code uint8 of each step between -1 and 1."""
    version = 0 if code.is_inference() else code._version
    known = _tables.get(code)
    if known is None or known[0] != version:
        steps = -1 + 2 * torch.arange(_STEPS, dtype=torch.float32) / (_STEPS - 1)
        known = _tables[code] = (version, torch.bucketize(steps, (code[:-1] + code[1:]) / 2).to(torch.uint8))
    found: Tensor = known[1]
    return found


def dequantize_blockwise(a: Tensor, absmax: Tensor, code: Tensor, blocksize: int, dtype: torch.dtype) -> Tensor:
    """Codes uint8 -> the same shape in ``dtype``."""
    flat = a.reshape(-1)
    out = torch.empty(len(flat), dtype=dtype, device=a.device)
    step = max(1, PIECE // blocksize) * blocksize
    for first in range(0, len(flat), step):
        piece = flat[first : first + step]
        own = absmax[first // blocksize : -(-(first + step) // blocksize)]
        out[first : first + step] = code.float()[piece.int()] * own.repeat_interleave(blocksize)[: len(piece)]
    return out.view(a.shape)
