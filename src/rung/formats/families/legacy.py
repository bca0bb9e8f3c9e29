"""The first GGUF formats: blocks of 32 weights with one float16 scale, and a float16 minimum in those that end in 1.

Layouts are those of ggml (https://github.com/ggml-org/ggml, ``ggml-common.h``). Weights i and i + 16 of a block
share a byte, the first in the low nibble; the fifth bits of a block are one little-endian uint32.
"""

from __future__ import annotations

import numpy as np

from rung.formats.codec import Array, BadBlock, BlockCodec, Codes, Floats, columns, half, peaks
from rung.formats.table import get

BLOCK = 32
Q4_0_LAYOUT = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
Q4_1_LAYOUT = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])
Q5_0_LAYOUT = np.dtype([("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])
Q5_1_LAYOUT = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])
Q8_0_LAYOUT = np.dtype([("d", "<f2"), ("qs", "i1", 32)])


def nibbles(packed: Codes) -> Codes:
    """[n, b] bytes to [n, 2 b] codes: all low nibbles, then all high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def pack_nibbles(codes: Codes) -> Codes:
    """The reverse of ``nibbles`` for codes in columns [2 b, n], 0 ... 15: bytes [n, b]."""
    middle = len(codes) // 2
    return (codes[:middle] | (codes[middle:] << 4)).T


def _fifths(blocks: Array) -> Codes:
    """Codes [n, 32] in 0 ... 31 of a layout with ``qh`` and ``qs``."""
    high = np.unpackbits(blocks["qh"], axis=1, bitorder="little")
    high <<= 4
    high |= nibbles(blocks["qs"])
    return high


def pack_fifths(codes: Codes, blocks: Array) -> None:
    """Stores codes [32, n] in 0 ... 31 in a layout with ``qh`` and ``qs``."""
    blocks["qs"] = pack_nibbles(codes & 15)
    blocks["qh"] = np.packbits(codes >> 4, axis=0, bitorder="little").T


def _column(values: Array) -> Floats:
    return values.astype(np.float32)[:, None]


def _unpack_q4_0(blocks: Array, out: Floats) -> None:
    np.subtract(nibbles(blocks["qs"]), np.float32(8), out=out)
    out *= _column(blocks["d"])


def _unpack_q4_1(blocks: Array, out: Floats) -> None:
    np.multiply(nibbles(blocks["qs"]), _column(blocks["d"]), out=out)
    out += _column(blocks["m"])


def _unpack_q5_0(blocks: Array, out: Floats) -> None:
    np.subtract(_fifths(blocks), np.float32(16), out=out)
    out *= _column(blocks["d"])


def _unpack_q5_1(blocks: Array, out: Floats) -> None:
    np.multiply(_fifths(blocks), _column(blocks["d"]), out=out)
    out += _column(blocks["m"])


def _unpack_q8_0(blocks: Array, out: Floats) -> None:
    np.multiply(blocks["qs"], _column(blocks["d"]), out=out)


def _symmetric(weights: Floats, blocks: Array, levels: int) -> Codes:
    """Stores the scales and returns codes [32, n] in 0 ... levels - 1; a block's largest magnitude becomes code 0.

    That end of the codes has one step more than the other, so the weight that needs it gets it.
    """
    x = columns(weights, BLOCK)
    low, high = x.min(axis=0), x.max(axis=0)
    extreme = np.where(high > -low, high, low)
    tied = np.flatnonzero(high == -low)
    # The first of two opposite extremes counts, so that the bytes are llama.cpp's; of zeros too, whose sign is stored.
    extreme[tied] = x[np.argmax(np.abs(x[:, tied]), axis=0), tied]
    blocks["d"], inverse = half(extreme / np.float32(-(levels // 2)))
    x *= inverse
    return _codes(x, np.float32(levels // 2 + 0.5), levels)


def _codes(scaled: Floats, offset: np.float32, levels: int) -> Codes:
    """floor(scaled + offset) in 0 ... levels - 1; overwrites ``scaled``."""
    scaled += offset
    return np.clip(scaled, np.float32(0), np.float32(levels - 1), out=scaled).astype(np.uint8)


def _asymmetric(weights: Floats, blocks: Array, levels: int) -> Codes:
    """Stores scales and minima and returns codes [32, n] in 0 ... levels - 1."""
    x = columns(weights, BLOCK)
    low, high = x.min(axis=0), x.max(axis=0)
    zero = np.flatnonzero(low == 0)
    low[zero] = x[np.argmin(x[:, zero], axis=0), zero]  # the first one counts, as in llama.cpp: its sign is stored
    too_low = ~(np.abs(low) < 65520.0)
    if too_low.any():
        index = int(np.argmax(too_low))
        raise BadBlock(index, f"needs a minimum of {low[index]:.4g}, beyond the 65504 of float16")
    scale = (high - low) / np.float32(levels - 1) + np.float32(0)  # no negative zero
    minimum = low.astype(np.float16)
    # A scale that float16 holds badly: the minimum is rounded down and the scale spans what is left.
    small = np.flatnonzero((scale < 2.0**-14) & (scale > 0))
    if len(small):
        above = small[minimum[small] > low[small]]
        minimum[above] = np.nextafter(minimum[above], np.float16(-np.inf))
        low[small] = minimum[small]
        scale[small] = (high[small] - low[small]) / np.float32(levels - 1)
    blocks["m"] = minimum
    blocks["d"], inverse = half(scale)
    x -= low
    x *= inverse
    return _codes(x, np.float32(0.5), levels)


def _pack_q4_0(weights: Floats, blocks: Array) -> None:
    blocks["qs"] = pack_nibbles(_symmetric(weights, blocks, 16))


def _pack_q4_1(weights: Floats, blocks: Array) -> None:
    blocks["qs"] = pack_nibbles(_asymmetric(weights, blocks, 16))


def _pack_q5_0(weights: Floats, blocks: Array) -> None:
    pack_fifths(_symmetric(weights, blocks, 32), blocks)


def _pack_q5_1(weights: Floats, blocks: Array) -> None:
    pack_fifths(_asymmetric(weights, blocks, 32), blocks)


def _pack_q8_0(weights: Floats, blocks: Array) -> None:
    x = columns(weights, BLOCK)
    blocks["d"], inverse = half(peaks(x.min(axis=0), x.max(axis=0)) / np.float32(127))
    x *= inverse
    # Halves away from zero, as llama.cpp rounds: 0.5 with the sign of the weight, then the fraction is cut off.
    x += ((x.view(np.uint32) & np.uint32(0x80000000)) | np.uint32(0x3F000000)).view(np.float32)
    blocks["qs"] = np.clip(x, np.float32(-127), np.float32(127), out=x).astype(np.int8).T


Q4_0 = BlockCodec(get("q4_0"), Q4_0_LAYOUT, _unpack_q4_0, _pack_q4_0)
Q4_1 = BlockCodec(get("q4_1"), Q4_1_LAYOUT, _unpack_q4_1, _pack_q4_1)
Q5_0 = BlockCodec(get("q5_0"), Q5_0_LAYOUT, _unpack_q5_0, _pack_q5_0)
Q5_1 = BlockCodec(get("q5_1"), Q5_1_LAYOUT, _unpack_q5_1, _pack_q5_1)
Q8_0 = BlockCodec(get("q8_0"), Q8_0_LAYOUT, _unpack_q8_0, _pack_q8_0)

CODECS = (Q4_0, Q4_1, Q5_0, Q5_1, Q8_0)
