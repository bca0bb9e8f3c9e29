"""MXFP4 and NVFP4: 4-bit floats (1 sign, 2 exponent, 1 mantissa bit) with a small float as the scale of a block.

MXFP4 (Open Compute Project, Microscaling Formats 1.0): 32 weights share a power of two. NVFP4: 16 weights share an
unsigned e4m3, 64 weights are stored together. ggml's layouts; codes are looked up doubled, scales therefore halved.
"""

from __future__ import annotations

import numpy as np

from rung.formats.codec import Array, BlockCodec, Codes, Floats, column_sums, columns, peaks
from rung.formats.families.legacy import pack_nibbles
from rung.formats.table import get

MXFP4_LAYOUT = np.dtype([("e", "u1"), ("qs", "u1", 16)])
NVFP4_LAYOUT = np.dtype([("d", "u1", 4), ("qs", "u1", 32)])

#: Twice the value of each code, so that all are integers.
E2M1_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)
_MAGNITUDES = E2M1_DOUBLED[:8].astype(np.float32)
#: The last exponent byte with which every code is finite in float32.
LAST = 252
_MIDDLES = (_MAGNITUDES[:-1] + _MAGNITUDES[1:]) / np.float32(2)


def _half_powers() -> Floats:
    """Half the scale of each exponent byte: 2^(e - 128), float32."""
    return np.ldexp(np.float32(1), np.arange(256) - 128).astype(np.float32)


def _half_e4m3() -> Floats:
    """Half the scale of each byte of an unsigned e4m3, its top bit ignored; 0x7f stands for zero (ggml)."""
    byte = np.arange(256)
    exponent, mantissa = (byte >> 3) & 15, byte & 7
    value = np.where(exponent == 0, np.ldexp(mantissa, -9), np.ldexp(1 + mantissa / 8, exponent - 7))
    value[0x7F] = 0
    return np.asarray(value / 2, np.float32)


HALF_POWERS: Floats = _half_powers()
HALF_E4M3: Floats = _half_e4m3()


def _unpack_mxfp4(blocks: Array, out: Floats) -> None:
    low, high = blocks["qs"] & 15, blocks["qs"] >> 4
    scale = HALF_POWERS[blocks["e"]][:, None]
    np.multiply(E2M1_DOUBLED[low], scale, out=out[:, :16])
    np.multiply(E2M1_DOUBLED[high], scale, out=out[:, 16:])


def _unpack_nvfp4(blocks: Array, out: Floats) -> None:
    packed = blocks["qs"].reshape(-1, 4, 8)
    scale = HALF_E4M3[blocks["d"]][:, :, None]
    groups = out.reshape(-1, 4, 16)
    np.multiply(E2M1_DOUBLED[packed & 15], scale, out=groups[:, :, :8])
    np.multiply(E2M1_DOUBLED[packed >> 4], scale, out=groups[:, :, 8:])


def _pack_mxfp4(weights: Floats, blocks: Array) -> None:
    """The largest weight gets the largest exponent of a code, or one less where that makes the error smaller."""
    x = columns(weights, 32)
    peak = peaks(x.min(axis=0), x.max(axis=0))
    byte = exponents(peak)
    magnitude = np.abs(x)
    codes, first = _nearest(magnitude, byte)
    # Errors come in units of the scale, which the next exponent doubles: 4 times as much when squared.
    wider, second = _nearest(magnitude, byte + 1)
    better = (4 * second < first) & (byte < LAST)
    np.copyto(codes, wider, where=better)
    codes += ((x < 0) & (codes > 0)).view(np.uint8) << 3
    blocks["e"] = byte + better
    blocks["qs"] = pack_nibbles(codes)


def exponents(peak: Floats) -> Codes:
    """Return the exponent bytes with which the largest code is just above, or next below, largest magnitudes [n]."""
    _, exponent = np.frexp(peak)
    # frexp: peak = f 2^exponent with f in 0.5 ... 1; a code holds at most 1.5 * 2^2.
    byte: Codes = np.where(peak > 0, np.maximum(exponent - 3 + 127, 1), 0)
    return byte


def _nearest(magnitude: Floats, byte: Codes) -> tuple[Array, Floats]:
    """Codes uint8 0 ... 7 [32, n] of magnitudes stored with these exponents, and their squared error [n] / scale^2."""
    scaled = magnitude * np.ldexp(np.float32(1), np.minimum(128 - byte, 127))
    codes = np.zeros(scaled.shape, np.uint8)
    for middle in _MIDDLES:
        codes += (scaled > middle).view(np.uint8)
    scaled -= np.take(_MAGNITUDES, codes, mode="clip")
    return codes, column_sums(np.square(scaled, out=scaled))


MXFP4 = BlockCodec(get("mxfp4"), MXFP4_LAYOUT, _unpack_mxfp4, _pack_mxfp4)
NVFP4 = BlockCodec(get("nvfp4"), NVFP4_LAYOUT, _unpack_nvfp4)

CODECS = (MXFP4, NVFP4)
