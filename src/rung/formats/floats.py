"""The float formats f32, f16 and bf16: weights as they are, rounded to nearest even."""

from __future__ import annotations

from typing import Any

import numpy as np

from rung.core.types import Format
from rung.formats.codec import Array, BadBlock, BlockCodec, Floats

_WORD: dict[str, np.dtype[Any]] = {"f32": np.dtype("<f4"), "f16": np.dtype("<f2"), "bf16": np.dtype("<u2")}


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


def _float(name: str, floor_db: float, title: str) -> Format:
    width = _WORD[name].itemsize
    return Format(name, "floats", 8.0 * width, 1, width, "rows", floor_db, encodes=True, title=title)


# Floors: SQNR measured on Gaussian weights (73.6 dB for f16, 55.6 dB for bf16) less 0.4 dB. That of f16 holds for
# weights around 0.001 and above; smaller ones fall between its steps of 2^-24.
F32 = BlockCodec(_float("f32", float("inf"), "32-bit float"), _WORD["f32"], _unpack_float, _pack_f32)
F16 = BlockCodec(_float("f16", 73.2, "16-bit float"), _WORD["f16"], _unpack_float, _pack_f16)
BF16 = BlockCodec(_float("bf16", 55.2, "16-bit brain float"), _WORD["bf16"], _unpack_bf16, _pack_bf16)

CODECS = {0: F32, 1: F16, 30: BF16}
