"""The IQ formats of GGUF below 4 bits: indices into grids of vectors of 4 or 8 small integers, with separate signs.

The grids are facts of ggml's layout (``ggml-common.h``) and stand in ``iq_grids.npz``: int8 [entries, 4 or 8] by
format. Only decoders: choosing entries well takes calibration data and minutes a tensor.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from rung.formats.codec import Array, BlockCodec, Codes, Floats
from rung.formats.table import get

IQ1_S_LAYOUT = np.dtype([("d", "<f2"), ("qs", "u1", 32), ("qh", "<u2", 8)])
IQ1_M_LAYOUT = np.dtype([("qs", "u1", 32), ("qh", "u1", 16), ("scales", "<u2", 4)])
IQ2_XXS_LAYOUT = np.dtype([("d", "<f2"), ("qs", [("index", "u1", 4), ("signs", "<u4")], 8)])
IQ2_XS_LAYOUT = np.dtype([("d", "<f2"), ("qs", "<u2", 32), ("scales", "u1", 8)])
IQ2_S_LAYOUT = np.dtype([("d", "<f2"), ("qs", "u1", 32), ("signs", "u1", 32), ("qh", "u1", 8), ("scales", "u1", 8)])
IQ3_XXS_LAYOUT = np.dtype([("d", "<f2"), ("qs", "u1", 64), ("signs", "<u4", 8)])
IQ3_S_LAYOUT = np.dtype([("d", "<f2"), ("qs", "u1", 64), ("qh", "u1", 8), ("signs", "u1", 32), ("scales", "u1", 4)])

#: What the IQ1 formats add to, or take from, the entries of their grid.
IQ1_DELTA = np.float32(0.125)


@cache
def grid(name: str) -> Floats:
    """The entries float32 [entries, 4 or 8] of iq1_s (also for iq1_m), iq2_xxs, iq2_xs, iq2_s, iq3_xxs or iq3_s."""
    with np.load(Path(__file__).with_name("iq_grids.npz"), allow_pickle=False) as grids:
        return np.asarray(grids[name], np.float32)


@cache
def signs() -> Floats:
    """1 or -1, float32 [256, 8]: bit i of a byte is set where weight i is negative."""
    bits = np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little")
    return np.float32(1) - 2 * bits.astype(np.float32)


@cache
def even_signs() -> Codes:
    """The byte of signs, uint8 [128], of each 7-bit index: the eighth sign makes the number of set bits even."""
    index = np.arange(128, dtype=np.uint8)
    parity = np.unpackbits(index[:, None], axis=1).sum(axis=1, dtype=np.uint8) & 1
    signs: Codes = index | (parity << 7)
    return signs


def _look_up(name: str, index: Array, out: Floats) -> Floats:
    """Writes the entries of indices [n, k] to ``out`` [n, 256] and returns it as [n * k, 4 or 8]."""
    entries = grid(name)
    rows = out.reshape(-1, entries.shape[1])
    # clip: all indices are in range, and the default mode would buffer the output.
    np.take(entries, index.reshape(-1), axis=0, out=rows, mode="clip")
    return rows


def _finish(out: Floats, scale: Floats, sign_bytes: Codes) -> None:
    """Multiplies entries in ``out`` [n, 256] with scales [n, groups], then with signs of bytes [n, 32]."""
    groups = out.reshape(*scale.shape, -1)
    groups *= scale[:, :, None]
    eights = out.reshape(-1, 8)
    eights *= np.take(signs(), sign_bytes.reshape(-1), axis=0, mode="clip")


def half_scale(d: Array, fours: Codes, factor: float) -> Floats:
    """d * (0.5 + scale) * factor for scales [n, groups]."""
    scale: Floats = d.astype(np.float32)[:, None] * (np.float32(0.5) + fours.astype(np.float32))
    scale *= np.float32(factor)
    return scale


def nibbles(packed: Codes) -> Codes:
    """[n, b] bytes to [n, 2 b]: low nibble, high nibble of each byte in turn."""
    return np.stack([packed & 15, packed >> 4], axis=2).reshape(len(packed), -1)


def _sevens(words: Array) -> Codes:
    """The bytes of signs [n, 32] of words uint32 [n, 8], which hold four 7-bit indices each."""
    index = (words[:, :, None] >> np.array([0, 7, 14, 21], np.uint32)) & 127
    return np.take(even_signs(), index.reshape(len(words), -1))


def _bits(packed: Codes, width: int) -> Array:
    """[n, b] bytes to uint16 [n, b * 8 / width]: each group of ``width`` bits, lowest first, times 256."""
    shifts = np.arange(0, 8, width, dtype=np.uint8)
    high = (packed[:, :, None] >> shifts) & ((1 << width) - 1)
    return high.astype(np.uint16).reshape(len(packed), -1) << 8


def _unpack_iq2_xxs(blocks: Array, out: Floats) -> None:
    words = blocks["qs"]["signs"]
    _look_up("iq2_xxs", blocks["qs"]["index"], out)
    _finish(out, half_scale(blocks["d"], words >> 28, 0.25), _sevens(words))


def _unpack_iq2_xs(blocks: Array, out: Floats) -> None:
    _look_up("iq2_xs", blocks["qs"] & 511, out)
    scale = half_scale(blocks["d"], nibbles(blocks["scales"]), 0.25)
    _finish(out, scale, np.take(even_signs(), blocks["qs"] >> 9))


def _unpack_iq2_s(blocks: Array, out: Floats) -> None:
    _look_up("iq2_s", blocks["qs"] | _bits(blocks["qh"], 2), out)
    _finish(out, half_scale(blocks["d"], nibbles(blocks["scales"]), 0.25), blocks["signs"])


def _unpack_iq3_xxs(blocks: Array, out: Floats) -> None:
    words = blocks["signs"]
    _look_up("iq3_xxs", blocks["qs"], out)
    _finish(out, half_scale(blocks["d"], words >> 28, 0.5), _sevens(words))


def _unpack_iq3_s(blocks: Array, out: Floats) -> None:
    _look_up("iq3_s", blocks["qs"] | _bits(blocks["qh"], 1), out)
    odd = 1 + 2 * nibbles(blocks["scales"])
    _finish(out, blocks["d"].astype(np.float32)[:, None] * odd.astype(np.float32), blocks["signs"])


def _unpack_iq1_s(blocks: Array, out: Floats) -> None:
    words = blocks["qh"]
    high = (words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16)) & 7
    _look_up("iq1_s", blocks["qs"] | (high.reshape(-1, 32) << 8), out)
    groups = out.reshape(-1, 8, 32)
    groups += np.where(words & 0x8000, -IQ1_DELTA, IQ1_DELTA)[:, :, None]
    odd = 2 * ((words >> 12) & 7) + 1
    groups *= (blocks["d"].astype(np.float32)[:, None] * odd.astype(np.float32))[:, :, None]


def iq1_m_scales(blocks: Array) -> Floats:
    """The scales float32 [n, 16]; the float16 of a block lies in the top four bits of its four words of scales."""
    words = blocks["scales"]
    parts = (words >> 12) << np.array([0, 4, 8, 12], np.uint16)
    d = np.bitwise_or.reduce(parts, axis=1).astype(np.uint16).view(np.float16).astype(np.float32)
    odd = 2 * ((words[:, :, None] >> np.array([0, 3, 6, 9], np.uint16)) & 7) + 1
    scales: Floats = d[:, None] * odd.reshape(-1, 16).astype(np.float32)
    return scales


def _unpack_iq1_m(blocks: Array, out: Floats) -> None:
    high = np.stack([blocks["qh"] & 15, blocks["qh"] >> 4], axis=2).reshape(-1, 32)
    _look_up("iq1_s", blocks["qs"] | ((high & 7).astype(np.uint16) << 8), out)
    eights = out.reshape(-1, 32, 8)
    eights += np.where(high & 8, -IQ1_DELTA, IQ1_DELTA)[:, :, None]
    groups = out.reshape(-1, 16, 16)
    groups *= iq1_m_scales(blocks)[:, :, None]


IQ1_S = BlockCodec(get("iq1_s"), IQ1_S_LAYOUT, _unpack_iq1_s)
IQ1_M = BlockCodec(get("iq1_m"), IQ1_M_LAYOUT, _unpack_iq1_m)
IQ2_XXS = BlockCodec(get("iq2_xxs"), IQ2_XXS_LAYOUT, _unpack_iq2_xxs)
IQ2_XS = BlockCodec(get("iq2_xs"), IQ2_XS_LAYOUT, _unpack_iq2_xs)
IQ2_S = BlockCodec(get("iq2_s"), IQ2_S_LAYOUT, _unpack_iq2_s)
IQ3_XXS = BlockCodec(get("iq3_xxs"), IQ3_XXS_LAYOUT, _unpack_iq3_xxs)
IQ3_S = BlockCodec(get("iq3_s"), IQ3_S_LAYOUT, _unpack_iq3_s)

CODECS = (IQ2_XXS, IQ2_XS, IQ3_XXS, IQ1_S, IQ3_S, IQ2_S, IQ1_M)
