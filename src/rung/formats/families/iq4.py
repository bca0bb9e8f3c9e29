"""IQ4_NL and IQ4_XS: 4-bit indices into a codebook of 16 unevenly spaced values, with integer arithmetic in mind.

IQ4_NL has a float16 scale for 32 weights; IQ4_XS 6-bit scales of groups of 32 and one float16 for 256 weights.
"""

from __future__ import annotations

import numpy as np

from rung.formats.codec import COARSE, Array, BlockCodec, Codes, Floats, column_sums, columns, half
from rung.formats.families.legacy import pack_nibbles
from rung.formats.search import even, inverse
from rung.formats.table import get

IQ4_NL_LAYOUT = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
IQ4_XS_LAYOUT = np.dtype([("d", "<f2"), ("scales_h", "<u2"), ("scales_l", "u1", 4), ("qs", "u1", 128)])

CODEBOOK = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)

#: The index of the value nearest to each integer -128 ... 127, and that value.
_INDEX = np.abs(np.arange(-128, 128)[:, None] - CODEBOOK.astype(np.int64)).argmin(axis=1).astype(np.uint8)
_VALUE: Floats = CODEBOOK[_INDEX].astype(np.float32)
#: Whole scales of IQ4_XS are -_MOST ... _MOST - 1.
_MOST = 32
_NEGLIGIBLE = np.float32(5.5 * 2.0**-24)
#: Scales, and largest weights, below which a block is encoded otherwise than by what errs least.
BOUNDS = (float(COARSE), float(_NEGLIGIBLE))
# The extreme weight of a block is tried at these values of the codebook's scale, beside the ends themselves.
EXTREMES = (-139.0, -131.0, -123.0, -116.0, -109.0, -101.0, 107.0, 115.0, 123.0)


def edges() -> Floats:
    """The integers 1 ... 255 at which the value nearest to what is 128 below them changes, float32 [15]."""
    return np.flatnonzero(np.diff(_INDEX)).astype(np.float32) + np.float32(1)


def _unpack_iq4_nl(blocks: Array, out: Floats) -> None:
    scale = blocks["d"].astype(np.float32)[:, None]
    np.multiply(CODEBOOK[blocks["qs"] & 15], scale, out=out[:, :16])
    np.multiply(CODEBOOK[blocks["qs"] >> 4], scale, out=out[:, 16:])


def iq4_xs_scales(blocks: Array) -> Array:
    """The 6-bit scales int8 [n, 8] of the groups of 32."""
    low = np.stack([blocks["scales_l"] & 15, blocks["scales_l"] >> 4], axis=2).reshape(-1, 8)
    high = (blocks["scales_h"][:, None] >> np.arange(0, 16, 2, dtype=np.uint16)).astype(np.uint8) & 3
    scales: Array = (low | (high << 4)).view(np.int8) - np.int8(32)
    return scales


def _unpack_iq4_xs(blocks: Array, out: Floats) -> None:
    scales = iq4_xs_scales(blocks)
    scale = (blocks["d"].astype(np.float32)[:, None] * scales.astype(np.float32))[:, :, None]
    packed, groups = blocks["qs"].reshape(-1, 8, 16), out.reshape(-1, 8, 32)
    np.multiply(CODEBOOK[packed & 15], scale, out=groups[:, :, :16])
    np.multiply(CODEBOOK[packed >> 4], scale, out=groups[:, :, 16:])


def _rounded(x: Floats, factor: Floats) -> Array:
    """128 + x * factor as integers 0 ... 255, the indices of ``_INDEX`` and ``_VALUE``."""
    scaled = x * factor
    scaled += np.float32(128.5)
    return np.clip(scaled, np.float32(0), np.float32(255), out=scaled).astype(np.uint8)


def _pack_iq4_nl(weights: Floats, blocks: Array) -> None:
    """Tries several scales, fits each to its own codes by least squares and keeps the one that errs least."""
    x = columns(weights, 32)
    low, high = x.min(axis=0), x.max(axis=0)
    extreme = np.where(high > -low, high, low)
    y = x * inverse(extreme)
    scale, most = np.full_like(extreme, 1 / CODEBOOK[0]), np.zeros_like(extreme)
    for end in EXTREMES:
        value = np.take(_VALUE, _rounded(y, np.full_like(extreme, end)), mode="clip")
        cross = column_sums(value * y)
        fit = cross / column_sums(value * value)
        better = fit * cross > most
        np.copyto(most, fit * cross, where=better)
        np.copyto(scale, fit, where=better)
    scale *= extreme
    scale = np.where(np.abs(scale) < COARSE, extreme / np.float32(CODEBOOK[0]), scale)
    # The codebook has no zero: weights below half the distance of its middle values are nearest to a scale of zero.
    scale[np.abs(extreme) < _NEGLIGIBLE] = 0
    d, factor = half(scale)
    blocks["d"] = d
    blocks["qs"] = pack_nibbles(np.take(_INDEX, _rounded(x, factor), mode="clip"))


def fit(x: Floats, importance: Floats) -> Floats:
    """Return the scale [groups] with which the codebook is nearest to x [32, groups], weighed."""
    low, high = x.min(axis=0), x.max(axis=0)
    extreme = np.where(high > -low, high, low)
    y = x * inverse(extreme)
    best, most = np.full_like(extreme, 1 / CODEBOOK[0]), np.zeros_like(extreme)
    for end in EXTREMES:
        value = np.take(_VALUE, _rounded(y, np.full_like(extreme, end)), mode="clip")
        cross, second = column_sums(value * y * importance), column_sums(value * value * importance)
        found = cross / second
        better = found * cross > most
        np.copyto(most, found * cross, where=better)
        np.copyto(best, found, where=better)
    scale: Floats = best * extreme
    return scale


def pack_iq4_xs(weights: Floats, blocks: Array, importance: Floats | None = None) -> None:
    """Encodes finite weights [n, 256] into blocks [n]."""
    x, count = columns(weights, 32), len(blocks)
    weighed = np.ones_like(x) if importance is None else even(columns(importance, 32))
    scale = fit(x, weighed).reshape(8, count)
    index = np.argmax(np.abs(scale), axis=0)
    d, _ = half(scale[index, np.arange(count)] / np.float32(-_MOST))
    ratio = scale / np.where(d == 0, np.float32(1), d.astype(np.float32))
    scales = np.clip(np.rint(ratio), -_MOST, _MOST - 1)
    codes = np.take(_INDEX, _rounded(x, inverse((scales * d.astype(np.float32)).reshape(-1))), mode="clip")
    raised = (scales + _MOST).astype(np.uint8).T
    blocks["d"] = d
    blocks["scales_l"] = (raised[:, 0::2] & 15) | ((raised[:, 1::2] & 15) << 4)
    tops = (raised >> 4).astype(np.uint16) << np.arange(0, 16, 2, dtype=np.uint16)
    blocks["scales_h"] = np.bitwise_or.reduce(tops, axis=1)
    put_iq4_xs(codes.reshape(32, 8, count), blocks)


def put_iq4_xs(codes: Codes, blocks: Array) -> None:
    """Stores codes [32, 8, n] in 0 ... 15 in blocks [n]."""
    blocks["qs"] = (codes[:16] | (codes[16:] << 4)).transpose(2, 1, 0).reshape(-1, 128)


IQ4_NL = BlockCodec(get("iq4_nl"), IQ4_NL_LAYOUT, _unpack_iq4_nl, _pack_iq4_nl)
IQ4_XS = BlockCodec(get("iq4_xs"), IQ4_XS_LAYOUT, _unpack_iq4_xs)

CODECS = (IQ4_NL, IQ4_XS)
