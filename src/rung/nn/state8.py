"""Optimiser state in 8 bits: blocks of 256 values share a float32 magnitude; codes index a dynamic codebook.

The codebooks are those of "8-bit Optimizers via Block-wise Quantization" (arXiv:2110.02861), as bitsandbytes stores
them beside the codes.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from rung.formats.codebook4 import DYNAMIC

BLOCK = 256


@functools.cache
def codebook(signed: bool, device: torch.device) -> Tensor:
    """The 256 sorted values float32 in -1 ... 1, or for what is never negative in 0 ... 1."""
    if signed:
        return torch.from_numpy(DYNAMIC).to(device)
    values = [0.0, 1.0]
    for exponent in range(7):
        edges = torch.linspace(0.1, 1, 2 ** (exponent + 1) + 1, dtype=torch.float32)
        values += (10.0 ** (exponent - 6) * ((edges[:-1] + edges[1:]) / 2)).tolist()
    return torch.tensor(sorted(values), dtype=torch.float32, device=device)


def blocks(size: int) -> int:
    """How many blocks that many values make."""
    return -(-size // BLOCK)


def decode(codes: Tensor, absmax: Tensor, values: Tensor) -> Tensor:
    """Codes uint8 [n] and magnitudes [blocks] -> float32 [n]."""
    decoded = values[codes.long()]
    return decoded.mul_(absmax.repeat_interleave(BLOCK)[: len(codes)])


def encode(state: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Codes uint8 [n] and magnitudes [blocks] of float32 [n]: the nearest value of the codebook."""
    count = blocks(len(state))
    padded = torch.zeros(count * BLOCK, device=state.device)
    padded[: len(state)] = state
    table = padded.view(count, BLOCK)
    absmax = table.abs().amax(dim=1)
    table.mul_((1 / absmax.clamp_min(1e-38))[:, None])
    return torch.bucketize(padded[: len(state)], (values[:-1] + values[1:]) / 2).to(torch.uint8), absmax
