"""The first GGUF formats: blocks of 32 weights with one float16 scale, and a float16 minimum in those that end in 1.

Layouts are those of ggml (https://github.com/ggml-org/ggml, ``ggml-common.h``). Weights i and i + 16 of a block
share a byte, the first in the low nibble; the fifth bits of a block are one little-endian uint32.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rung.core.types import Format
from rung.formats.codec import Array, BadBlock, BlockCodec, Floats, half

BLOCK = 32
Q4_0_LAYOUT = np.dtype([("d", "<f2"), ("qs", "u1", 16)])
Q4_1_LAYOUT = np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)])
Q5_0_LAYOUT = np.dtype([("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])
Q5_1_LAYOUT = np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)])
Q8_0_LAYOUT = np.dtype([("d", "<f2"), ("qs", "i1", 32)])

Codes = npt.NDArray[np.uint8]


def nibbles(packed: Codes) -> Codes:
    """[n, b] bytes to [n, 2 b] codes: all low nibbles, then all high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def pack_nibbles(codes: Codes) -> Codes:
    """The reverse of ``nibbles`` for codes [n, 2 b] in 0 ... 15."""
    middle = codes.shape[1] // 2
    return codes[:, :middle] | (codes[:, middle:] << 4)


def _fifths(blocks: Array) -> Codes:
    """Codes [n, 32] in 0 ... 31 of a layout with ``qh`` and ``qs``."""
    high = np.unpackbits(blocks["qh"], axis=1, bitorder="little")
    high <<= 4
    high |= nibbles(blocks["qs"])
    return high


def _pack_fifths(codes: Codes, blocks: Array) -> None:
    blocks["qs"] = pack_nibbles(codes & 15)
    blocks["qh"] = np.packbits(codes >> 4, axis=1, bitorder="little")


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
    """Stores the scales and returns codes in 0 ... levels - 1; the largest magnitude of a block becomes code 0.

    That end of the codes has one step more than the other, so the weight that needs it gets it.
    """
    low, high = weights.min(axis=1), weights.max(axis=1)
    extreme = _first_extreme(weights, low, high)
    blocks["d"], inverse = half(extreme / np.float32(-(levels // 2)))
    return _codes(weights * inverse[:, None], np.float32(levels // 2 + 0.5), levels)


def _first_extreme(weights: Floats, low: Floats, high: Floats) -> Floats:
    """The weight of largest magnitude in each block, the first of equal ones (so the bytes are llama.cpp's)."""
    extreme = np.where(high > -low, high, low)
    equal = np.flatnonzero((high == -low) & (high > 0))
    if len(equal):
        tied = weights[equal]
        extreme[equal] = tied[np.arange(len(equal)), np.argmax(np.abs(tied), axis=1)]
    return extreme


def _codes(scaled: Floats, offset: np.float32, levels: int) -> Codes:
    """floor(scaled + offset) in 0 ... levels - 1; overwrites ``scaled``."""
    scaled += offset
    return np.clip(scaled, 0, levels - 1, out=scaled).astype(np.uint8)


def _asymmetric(weights: Floats, blocks: Array, levels: int) -> Codes:
    """Stores scales and minima and returns codes in 0 ... levels - 1."""
    low, high = weights.min(axis=1), weights.max(axis=1)
    too_low = ~(np.abs(low) < 65520.0)
    if too_low.any():
        index = int(np.argmax(too_low))
        raise BadBlock(index, f"needs a minimum of {low[index]:.4g}, beyond the 65504 of float16")
    scale = (high - low) / np.float32(levels - 1)
    minimum = low.astype(np.float16)
    # A scale that float16 holds badly: the minimum is rounded down and the scale spans what is left.
    small = np.flatnonzero((scale < 2.0**-14) & (scale > 0))
    if len(small):
        above = minimum[small] > low[small]
        minimum[small[above]] = np.nextafter(minimum[small[above]], np.float16(-np.inf))
        low[small] = minimum[small]
        scale[small] = (high[small] - low[small]) / np.float32(levels - 1)
    blocks["m"] = minimum
    blocks["d"], inverse = half(scale)
    return _codes((weights - low[:, None]) * inverse[:, None], np.float32(0.5), levels)


def _pack_q4_0(weights: Floats, blocks: Array) -> None:
    blocks["qs"] = pack_nibbles(_symmetric(weights, blocks, 16))


def _pack_q4_1(weights: Floats, blocks: Array) -> None:
    blocks["qs"] = pack_nibbles(_asymmetric(weights, blocks, 16))


def _pack_q5_0(weights: Floats, blocks: Array) -> None:
    _pack_fifths(_symmetric(weights, blocks, 32), blocks)


def _pack_q5_1(weights: Floats, blocks: Array) -> None:
    _pack_fifths(_asymmetric(weights, blocks, 32), blocks)


def _pack_q8_0(weights: Floats, blocks: Array) -> None:
    peak = np.maximum(weights.max(axis=1), -weights.min(axis=1))
    blocks["d"], inverse = half(peak / np.float32(127))
    scaled = weights * inverse[:, None]
    # Halves away from zero, as llama.cpp rounds.
    scaled += np.copysign(np.float32(0.5), scaled)
    blocks["qs"] = np.clip(scaled, -127, 127, out=scaled)


def _format(name: str, layout: np.dtype[np.void], floor_db: float, title: str) -> Format:
    bits = 8 * layout.itemsize / BLOCK
    return Format(name, "legacy", bits, BLOCK, layout.itemsize, "rows", floor_db, encodes=True, title=title)


Q4_0 = BlockCodec(_format("q4_0", Q4_0_LAYOUT, 18.0, "4-bit, scale"), Q4_0_LAYOUT, _unpack_q4_0, _pack_q4_0)
Q4_1 = BlockCodec(_format("q4_1", Q4_1_LAYOUT, 19.0, "4-bit, scale and minimum"), Q4_1_LAYOUT, _unpack_q4_1, _pack_q4_1)
Q5_0 = BlockCodec(_format("q5_0", Q5_0_LAYOUT, 24.0, "5-bit, scale"), Q5_0_LAYOUT, _unpack_q5_0, _pack_q5_0)
Q5_1 = BlockCodec(_format("q5_1", Q5_1_LAYOUT, 25.0, "5-bit, scale and minimum"), Q5_1_LAYOUT, _unpack_q5_1, _pack_q5_1)
Q8_0 = BlockCodec(_format("q8_0", Q8_0_LAYOUT, 40.0, "8-bit, scale"), Q8_0_LAYOUT, _unpack_q8_0, _pack_q8_0)

CODECS = {2: Q4_0, 3: Q4_1, 6: Q5_0, 7: Q5_1, 8: Q8_0}
