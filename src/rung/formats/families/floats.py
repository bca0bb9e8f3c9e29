"""The float formats f32, f16 and bf16: weights as they are, rounded to nearest even."""

from __future__ import annotations

import numpy as np

from rung.formats.codec import Array, BadBlock, BlockCodec, Floats
from rung.formats.table import get


def _unpack_float(blocks: Array, out: Floats) -> None:
    out[:, 0] = blocks


def _pack_f32(weights: Floats, blocks: Array) -> None:
    blocks[:] = weights[:, 0]


def _pack_f16(weights: Floats, blocks: Array) -> None:
    flat = weights[:, 0]
    blocks[:] = flat
    if not np.isfinite(blocks).all():
        index = int(np.argmin(np.isfinite(blocks)))
        raise BadBlock(index, f"holds {flat[index]:.4g}, above the 65504 of float16")


def _unpack_bf16(blocks: Array, out: Floats) -> None:
    np.left_shift(blocks, 16, out=out.view(np.uint32)[:, 0], dtype=np.uint32)


def _pack_bf16(weights: Floats, blocks: Array) -> None:
    bits = weights[:, 0].view(np.uint32)
    rounded = (bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16
    infinite = (rounded & 0x7FFF) == 0x7F80
    if infinite.any():
        index = int(np.argmax(infinite))
        raise BadBlock(index, f"holds {weights[index, 0]:.8g}, above the 3.3895e38 of bfloat16")
    blocks[:] = rounded


F32 = BlockCodec(get("f32"), np.dtype("<f4"), _unpack_float, _pack_f32)
F16 = BlockCodec(get("f16"), np.dtype("<f2"), _unpack_float, _pack_f16)
BF16 = BlockCodec(get("bf16"), np.dtype("<u2"), _unpack_bf16, _pack_bf16)

CODECS = (F32, F16, BF16)
