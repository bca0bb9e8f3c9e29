"""Optimiser state in 8 bits: blocks of 256 values share a float32 magnitude; codes index a dynamic codebook.

The codebooks are those of "8-bit Optimizers via Block-wise Quantization" (arXiv:2110.02861), as bitsandbytes stores
them beside the codes; codes are rounded as it does on each device.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from rung.formats.codebook4 import DYNAMIC

BLOCK = 256
#: bitsandbytes looks codes up on a CPU in a table of that many steps between -1 and 1.
_STEPS = 65536


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
    """Codes uint8 [n] and magnitudes [blocks] of float32 [n]: the nearest value of the codebook, near zero on a CPU
    what bitsandbytes has there."""
    if state.device.type == "cpu":
        return looked_up(state, BLOCK, values)
    table, absmax = in_blocks(state, BLOCK)
    table.mul_((1 / absmax.clamp_min(1e-38))[:, None])
    return torch.bucketize(table.view(-1)[: len(state)], (values[:-1] + values[1:]) / 2).to(torch.uint8), absmax


def in_blocks(flat: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Values f32 [blocks, size], zeros at the end, and the largest magnitude of each block."""
    count = -(-len(flat) // size)
    padded = torch.zeros(count * size, device=flat.device)
    padded[: len(flat)] = flat
    table = padded.view(count, size)
    return table, table.abs().amax(dim=1) if count else table.new_empty(0)


def looked_up(flat: Tensor, size: int, code: Tensor) -> tuple[Tensor, Tensor]:
    """Codes uint8 [n] and magnitudes of blocks, by bitsandbytes' table: what is smaller than 1.5e-5 of the largest has
    a code that is not the nearest."""
    table, absmax = in_blocks(flat, min(size, len(flat)))
    scaled = table.mul_((1 / absmax)[:, None]).clamp_(-1, 1)
    steps = scaled.add_(1).mul_(0.5 * (_STEPS - 1)).add_(0.5).to(torch.int32).clamp_(0, _STEPS - 1)
    codes = _table(code.detach().numpy().tobytes()).index_select(0, steps.view(-1)).view(table.shape)
    codes[absmax == 0] = 0
    return codes.view(-1)[: len(flat)], absmax


@functools.lru_cache(16)
def _table(code: bytes) -> Tensor:
    """The code uint8 of each step between -1 and 1, by the values of a codebook."""
    values = torch.frombuffer(bytearray(code), dtype=torch.float32)
    steps = -1 + 2 * torch.arange(_STEPS, dtype=torch.float32) / (_STEPS - 1)
    return torch.bucketize(steps, (values[:-1] + values[1:]) / 2).to(torch.uint8)
