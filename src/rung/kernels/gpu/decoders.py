"""Decoders of common formats in torch, for any device: parts of a weight to float32 rows.

Each is ``f(parts, encoded, first, last) -> f32 [last - first, columns]`` and equals ``rung.formats.decode`` bit for
bit. Layouts are those of ``rung.formats``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from rung.core.types import Format
from rung.formats import Encoded
from rung.formats.families import codebook4, grouped
from rung.formats.table import GROUPED
from rung.kernels.gpu.dtypes import TORCH_DTYPE

Decoder = Callable[[dict[str, Tensor], Encoded, int, int], Tensor]


def _half(blocks: Tensor, at: int) -> Tensor:
    """The float16 at a byte of each block [..., bytes], as float32 [..., 1]."""
    return blocks[..., at : at + 2].contiguous().view(torch.float16).to(torch.float32)


def _q4_0(blocks: Tensor) -> Tensor:
    codes = torch.cat([blocks[..., 2:] & 15, blocks[..., 2:] >> 4], dim=-1)
    return (codes.to(torch.float32) - 8) * _half(blocks, 0)


def _q8_0(blocks: Tensor) -> Tensor:
    return blocks[..., 2:].contiguous().view(torch.int8).to(torch.float32) * _half(blocks, 0)


def _q4_k(blocks: Tensor) -> Tensor:
    low, middle, high = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = torch.cat([low & 63, (high & 15) | ((low >> 2) & 48)], dim=-1)
    minima = torch.cat([middle & 63, (high >> 4) | ((middle >> 2) & 48)], dim=-1)
    pairs = blocks[..., 16:].unflatten(-1, (4, 32))
    codes = torch.stack([pairs & 15, pairs >> 4], dim=-2).flatten(-3, -2)
    scale = (_half(blocks, 0) * scales.to(torch.float32))[..., None]
    minimum = (_half(blocks, 2) * minima.to(torch.float32))[..., None]
    return (codes.to(torch.float32) * scale - minimum).flatten(-2)


def _q6_k(blocks: Tensor) -> Tensor:
    low = blocks[..., :128].unflatten(-1, (2, 1, 64))
    nibbles = torch.cat([low & 15, low >> 4], dim=-2).flatten(-2).unflatten(-1, (4, 32))
    bits = blocks[..., 128:192].unflatten(-1, (2, 1, 32))
    shifts = torch.tensor([0, 2, 4, 6], dtype=torch.uint8, device=blocks.device)[:, None]
    codes = (nibbles | (((bits >> shifts) & 3) << 4)).to(torch.float32) - 32
    scales = blocks[..., 192:208].contiguous().view(torch.int8).to(torch.float32) * _half(blocks, 208)
    return (codes.flatten(-3).unflatten(-1, (16, 16)) * scales[..., None]).flatten(-2)


def _rows(unpack: Callable[[Tensor], Tensor]) -> Decoder:
    """A decoder of formats in rows from one of blocks [..., bytes]."""

    def decode(parts: dict[str, Tensor], encoded: Encoded, first: int, last: int) -> Tensor:
        blocks = parts["data"][first:last].unflatten(-1, (-1, encoded.format.block_bytes))
        return unpack(blocks).flatten(-2)

    return decode


def _floats(dtype: torch.dtype) -> Decoder:
    def decode(parts: dict[str, Tensor], encoded: Encoded, first: int, last: int) -> Tensor:
        return parts["data"][first:last].view(dtype).to(torch.float32)

    return decode


def _int8(parts: dict[str, Tensor], encoded: Encoded, first: int, last: int) -> Tensor:
    return parts["data"][first:last].to(torch.float32) * parts["scale"][first:last, None]


def _codebook(parts: dict[str, Tensor], encoded: Encoded, first: int, last: int) -> Tensor:
    """nf4 and fp4, which flatten the tensor: rows need not start at a block, nor at a byte."""
    columns, block = encoded.shape[1], encoded.format.block
    start, end = first * columns, last * columns
    packed = parts["data"][start // 2 : -(-end // 2)]
    codes = torch.stack([packed >> 4, packed & 15], dim=-1).flatten()[start % 2 :][: end - start]
    table = torch.from_numpy(codebook4.CODEBOOKS[encoded.format.name.split(":")[0]]).to(packed.device)
    blocks = torch.arange(start, end, device=packed.device) // block
    scales = torch.from_numpy(codebook4.scales(encoded, start // block, -(-end // block))).to(packed.device)
    return (table[codes.to(torch.int32)] * scales[blocks - start // block]).unflatten(0, (last - first, columns))


def _llm_int8(parts: dict[str, Tensor], encoded: Encoded, first: int, last: int) -> Tensor:
    return _int8(parts, encoded, first, last) * 7.874015718698502e-3


def _grouped(parts: dict[str, Tensor], encoded: Encoded, first: int, last: int) -> Tensor:
    """u2, u4, u8 and e4m3, see ``rung.formats.families.grouped``."""
    codec, format = grouped.GroupCodec(encoded.format), encoded.format
    dtype, width = TORCH_DTYPE[codec.dtype], codec.layout["scale"].itemsize
    blocks = parts["data"][first:last].unflatten(-1, (-1, format.block_bytes))
    head, codes = blocks[..., : -format.block * codec.bits // 8], blocks[..., -format.block * codec.bits // 8 :]
    fields = head.contiguous().view(dtype)
    if head.shape[-1] == width:
        values = torch.from_numpy(grouped.E4M3).to(codes.device)[codes.to(torch.int32)]
    else:
        shifts = torch.arange(0, 8, codec.bits, dtype=torch.uint8, device=codes.device)
        apart = ((codes[..., None] >> shifts) & (2**codec.bits - 1)).flatten(-2)
        values = (apart.to(torch.float32) - fields[..., 1:].to(torch.float32)).to(dtype).to(torch.float32)
    rows = (values * fields[..., :1].to(torch.float32)).flatten(-2)
    return rows[:, parts["order"]] if "order" in parts else rows


_BY_NAME: dict[str, Decoder] = {
    "f32": _floats(torch.float32),
    "f16": _floats(torch.float16),
    "bf16": _floats(torch.bfloat16),
    "q4_0": _rows(_q4_0),
    "q8_0": _rows(_q8_0),
    "q4_k": _rows(_q4_k),
    "q6_k": _rows(_q6_k),
    "int8": _int8,
    "llm_int8": _llm_int8,
    **dict.fromkeys(GROUPED, _grouped),
    "nf4": _codebook,
    "fp4": _codebook,
}


def find(format: Format) -> Decoder | None:
    """The decoder of a format, or None for one that is decoded on the CPU."""
    return _BY_NAME.get(format.name.split(":")[0])


def quantized_parts(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return floats [..., multiples of 32] as a cache in q8_0 has them: int8 of the same shape, and a bfloat16 for each
    32 (``rung.kernels.webgpu.attention``)."""
    units = values.to(torch.float32).unflatten(-1, (-1, 32))
    sizes = units.abs().amax(dim=-1, keepdim=True) / 127
    bits = (sizes.view(torch.int32) + 0xFFFF) >> 16
    scales = (bits << 16).view(torch.float32)
    y = torch.where(sizes > 1e-30, units / scales, 0.0)
    codes = (y + torch.where(y < 0, -0.5, 0.5)).trunc().clamp(-127, 127).to(torch.int8)
    return codes.flatten(-2), scales.squeeze(-1).to(torch.bfloat16)


def dequantized(codes: Tensor, scales: Tensor) -> Tensor:
    """Return the float32 that such int8 and scales stand for."""
    units = codes.to(torch.float32).unflatten(-1, (-1, 32))
    return (units * scales.to(torch.float32).unsqueeze(-1)).flatten(-2)


def cache_parts(memory: Tensor, block: int, size: int) -> tuple[Tensor, Tensor]:
    """Return int8 [..., block, size] and bfloat16 [..., block, size / 32], without a copy, of bytes [..., all] of heads
    of a cache in q8_0."""
    codes, scales = memory[..., : block * size], memory[..., block * size :]
    return (
        codes.view(torch.int8).unflatten(-1, (block, size)),
        scales.view(torch.bfloat16).unflatten(-1, (block, size // 32)),
    )
