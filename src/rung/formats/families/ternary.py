"""TQ1_0 and TQ2_0: weights -1, 0 or 1 times a float16, 256 at a time, for models trained that way (BitNet).

TQ1_0 packs five ternary digits into a byte, as the fraction whose digits in base 3 they are; TQ2_0 takes two bits each.
"""

from __future__ import annotations

import numpy as np

from rung.formats.codec import Array, BlockCodec, Codes, Floats
from rung.formats.table import get

BLOCK = 256
TQ1_0_LAYOUT = np.dtype([("qs", "u1", 48), ("qh", "u1", 4), ("d", "<f2")])
TQ2_0_LAYOUT = np.dtype([("qs", "u1", 64), ("d", "<f2")])
_POWERS = np.array([[1], [3], [9], [27], [81]], np.uint8)


def _digits(packed: Codes, count: int) -> Codes:
    """The first ``count`` ternary digits uint8 0 ... 2 of bytes [n, b], digit after digit: [n, count * b]."""
    fraction = packed[:, None, :] * _POWERS[:count]
    return ((fraction.astype(np.uint16) * 3) >> 8).astype(np.uint8).reshape(len(packed), -1)


def _unpack_tq1_0(blocks: Array, out: Floats) -> None:
    parts = (blocks["qs"][:, :32], 5, 0), (blocks["qs"][:, 32:], 5, 160), (blocks["qh"], 4, 240)
    for packed, count, first in parts:
        _spread(_digits(packed, count), blocks, out[:, first : first + count * packed.shape[1]])


def _unpack_tq2_0(blocks: Array, out: Floats) -> None:
    codes = (blocks["qs"].reshape(-1, 2, 1, 32) >> np.array([[0], [2], [4], [6]], np.uint8)) & 3
    _spread(codes.reshape(-1, BLOCK), blocks, out)


def _spread(codes: Codes, blocks: Array, out: Floats) -> None:
    np.subtract(codes, np.float32(1), out=out)
    out *= blocks["d"].astype(np.float32)[:, None]


TQ1_0 = BlockCodec(get("tq1_0"), TQ1_0_LAYOUT, _unpack_tq1_0)
TQ2_0 = BlockCodec(get("tq2_0"), TQ2_0_LAYOUT, _unpack_tq2_0)

CODECS = (TQ1_0, TQ2_0)
