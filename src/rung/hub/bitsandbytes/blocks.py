"""Blocks of values that share a scale and index a codebook of 256, for ``torch.ops.bitsandbytes``."""

from __future__ import annotations

import torch
from torch import Tensor

from rung.nn.stepping import in_blocks, looked_up

#: Values that are worked on at once by torch: bounds the float32 copies.
PIECE = 1 << 22


def nearest(flat: Tensor, blocksize: int, values: Tensor) -> tuple[Tensor, Tensor]:
    """Indices int64 [n] of the sorted values, the smaller of two equally near ones, and the magnitudes of blocks."""
    table, absmax = in_blocks(flat, blocksize)
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
            found, absmax[blocks] = looked_up(piece, blocksize, code)
        else:
            found, absmax[blocks] = nearest(piece, blocksize, code)
        codes[first : first + step] = found
    return codes.view(a.shape), absmax


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
