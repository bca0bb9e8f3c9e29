"""The k-quants of GGUF: superblocks of 256 weights whose group scales are themselves integers times a float16.

Layouts are those of ggml (``ggml-common.h``). A weight is ``d * scale * code - dmin * minimum`` (Q2_K, Q4_K, Q5_K)
or ``d * scale * code`` (Q3_K, Q6_K), multiplied in that order. Encoders are in ``kquants_encode``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rung.formats import kquants_encode
from rung.formats.codec import Array, BlockCodec, Codes, Floats
from rung.formats.table import get

#: Weights that encoders take at once.
_PIECE = 1 << 15
Q2_K_LAYOUT = np.dtype([("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")])
Q3_K_LAYOUT = np.dtype([("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")])
Q4_K_LAYOUT = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)])
Q5_K_LAYOUT = np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)])
Q6_K_LAYOUT = np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")])

_PAIRS_OF_BITS = np.array([0, 2, 4, 6], np.uint8)


def _scaled(factor: Array, integers: Array) -> Floats:
    """``factor`` float16 [n] times integers [n, groups], as float32 [n, groups, 1]."""
    product: Floats = factor.astype(np.float32)[:, None] * integers.astype(np.float32)
    return product[:, :, None]


def scales_and_minima(packed: Codes) -> tuple[Codes, Codes]:
    """The 6-bit scales and minima uint8 [n, 8] of Q4_K and Q5_K, from their 12 bytes [n, 12].

    Bytes 0-3 and 4-7 hold the first four scales and minima in their low 6 bits and the top 2 bits of the last four
    in their high ones; bytes 8-11 hold the low nibbles of the last four, scales low, minima high.
    """
    first, second, last = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([first & 63, (last & 15) | ((first >> 2) & 48)], axis=1)
    minima = np.concatenate([second & 63, (last >> 4) | ((second >> 2) & 48)], axis=1)
    return scales, minima


def _unpack_q2_k(blocks: Array, out: Floats) -> None:
    scale = _scaled(blocks["d"], blocks["scales"] & 15)
    minimum = _scaled(blocks["dmin"], blocks["scales"] >> 4)
    codes = (blocks["qs"].reshape(-1, 2, 1, 32) >> _PAIRS_OF_BITS[:, None]) & 3
    groups = out.reshape(-1, 16, 16)
    np.multiply(codes.reshape(-1, 16, 16), scale, out=groups)
    groups -= minimum


def q3_k_scales(blocks: Array) -> Array:
    """The 6-bit scales int8 [n, 16] of the groups of 16."""
    low = (blocks["scales"][:, None, :8] >> np.array([[0], [4]], np.uint8)) & 15
    high = (blocks["scales"][:, None, 8:] >> _PAIRS_OF_BITS[:, None]) & 3
    scales: Array = (low.reshape(-1, 16) | (high.reshape(-1, 16) << 4)).view(np.int8) - np.int8(32)
    return scales


def _unpack_q3_k(blocks: Array, out: Floats) -> None:
    scales = q3_k_scales(blocks)
    codes = (blocks["qs"].reshape(-1, 2, 1, 32) >> _PAIRS_OF_BITS[:, None]) & 3
    # A set bit of the mask means that nothing is taken off; a clear one takes off 4.
    bits = (blocks["hmask"][:, None, :] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    signed = (codes.reshape(-1, 16, 16) | (bits.reshape(-1, 16, 16) << 2)).view(np.int8) - np.int8(4)
    np.multiply(signed, _scaled(blocks["d"], scales), out=out.reshape(-1, 16, 16))


def _unpack_q4_k(blocks: Array, out: Floats) -> None:
    _affine(blocks, lambda nibbles, pair: nibbles, out)


def _unpack_q5_k(blocks: Array, out: Floats) -> None:
    high = blocks["qh"][:, None, :] >> np.arange(8, dtype=np.uint8)[:, None]
    high &= 1
    high <<= 4
    _affine(blocks, lambda nibbles, half: nibbles | high[:, half::2], out)


def _affine(blocks: Array, add: Callable[[Codes, int], Codes], out: Floats) -> None:
    """Q4_K and Q5_K: of each 32 bytes the low nibbles are one group and the high ones the next."""
    scales, minima = scales_and_minima(blocks["scales"])
    scale, minimum = _scaled(blocks["d"], scales), _scaled(blocks["dmin"], minima)
    packed = blocks["qs"].reshape(-1, 4, 32)
    groups = out.reshape(-1, 8, 32)
    np.multiply(add(packed & 15, 0), scale[:, 0::2], out=groups[:, 0::2])
    np.multiply(add(packed >> 4, 1), scale[:, 1::2], out=groups[:, 1::2])
    groups -= minimum


def _unpack_q6_k(blocks: Array, out: Floats) -> None:
    low = blocks["ql"].reshape(-1, 2, 64)
    codes = np.concatenate([low & 15, low >> 4], axis=2).reshape(-1, 2, 4, 32)
    codes |= ((blocks["qh"].reshape(-1, 2, 1, 32) >> _PAIRS_OF_BITS[:, None]) & 3) << 4
    signed = codes.view(np.int8)
    signed -= np.int8(32)
    np.multiply(signed.reshape(-1, 16, 16), _scaled(blocks["d"], blocks["scales"]), out=out.reshape(-1, 16, 16))


Q2_K = BlockCodec(get("q2_k"), Q2_K_LAYOUT, _unpack_q2_k)
Q3_K = BlockCodec(get("q3_k"), Q3_K_LAYOUT, _unpack_q3_k, kquants_encode.pack_q3_k, _PIECE, weighs=True)
Q4_K = BlockCodec(get("q4_k"), Q4_K_LAYOUT, _unpack_q4_k, kquants_encode.pack_q4_k, _PIECE, weighs=True)
Q5_K = BlockCodec(get("q5_k"), Q5_K_LAYOUT, _unpack_q5_k, kquants_encode.pack_q5_k, _PIECE, weighs=True)
Q6_K = BlockCodec(get("q6_k"), Q6_K_LAYOUT, _unpack_q6_k, kquants_encode.pack_q6_k, _PIECE, weighs=True)

CODECS = (Q2_K, Q3_K, Q4_K, Q5_K, Q6_K)
