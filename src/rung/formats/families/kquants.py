"""The k-quants of GGUF: superblocks of 256 weights whose group scales are themselves integers times a float16.

Layouts are those of ggml (``ggml-common.h``). A weight is ``d * scale * code - dmin * minimum`` (Q2_K, Q4_K, Q5_K)
or ``d * scale * code`` (Q3_K, Q6_K), multiplied in that order. ``pack_*`` encode, ``_unpack_*`` decode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from rung.formats.codec import COARSE, Array, BlockCodec, Codes, Floats, columns, half
from rung.formats.search import affine, codes_of, even, symmetric
from rung.formats.table import get

# Found by trying on Gaussian and Student-t weights; twice as many trials add 0.05 dB.
TRIALS = tuple((stretch, offset) for stretch in (-0.8, -0.2, 0.4) for offset in (-0.3, 0.0))
SHIFTS = (-2.0, -1.0, 0.0, 1.0)
#: Where the four pairs of bits of a byte lie.
_PAIRS = np.array([0, 2, 4, 6], np.uint8)[:, None]
TRIALS_2 = tuple((stretch, offset) for stretch in (-1.2, -0.8, -0.4, 0.0, 0.4) for offset in (-0.4, -0.2, 0.0, 0.2))
SHIFTS_3 = (-0.8, -0.4, 0.0, 0.4)


def _round(values: Floats, stored: npt.NDArray[np.float16], up: npt.NDArray[np.bool_], most: int) -> Floats:
    """The integers 0 ... most with which ``stored`` [n] times them is nearest to values [8, n], or just above."""
    ratio = values / np.where(stored == 0, np.float32(1), stored.astype(np.float32))
    return np.minimum(np.where(up, np.ceil(ratio), np.rint(ratio)), np.float32(most))


def pack_affine(weights: Floats, blocks: Array, levels: int, importance: Floats | None = None) -> Codes:
    """Stores d, dmin and scales of blocks [n]; returns codes uint8 [32, 8, n] in 0 ... levels - 1."""
    codes, scales, minima = _affine_groups(weights, blocks, 32, levels, 63, TRIALS, importance)
    blocks["scales"] = _pack_scales(scales, minima).T
    return codes


def _affine_groups(
    weights: Floats,
    blocks: Array,
    group: int,
    levels: int,
    most: int,
    trials: Sequence[tuple[float, float]],
    importance: Floats | None,
) -> tuple[Codes, Codes, Codes]:
    """Stores d and dmin of blocks [n]; returns codes uint8 [group, groups, n] in 0 ... levels - 1, and whole scales and
    minima uint8 [groups, n] in 0 ... most."""
    x = columns(weights, group)
    shape = (weights.shape[1] // group, len(blocks))
    even_in_groups = None if importance is None else even(columns(importance, group))
    scale, minimum = (part.reshape(shape) for part in affine(x, levels, trials, even_in_groups))
    up = scale.max(axis=0) < COARSE
    dmin, _ = half(minimum.max(axis=0) / np.float32(most))
    minima = _round(minimum, dmin, up, most)
    base = minima * dmin.astype(np.float32)
    if up.any():
        reach = (x.max(axis=0).reshape(shape) + base) / np.float32(levels - 1)
        scale = np.where(up, np.maximum(reach, 0), scale)
    d, _ = half(scale.max(axis=0) / np.float32(most))
    scales = _round(scale, d, up, most)
    step = (scales * d.astype(np.float32)).reshape(-1)
    factor = np.where(step > 0, np.float32(1) / step, 0)
    x += base.reshape(-1)
    codes = codes_of(x, factor, 0, levels - 1, x).astype(np.uint8)
    blocks["d"], blocks["dmin"] = d, dmin
    return codes.reshape(group, *shape), scales.astype(np.uint8), minima.astype(np.uint8)


def pack_q2_k(weights: Floats, blocks: Array, importance: Floats | None = None) -> None:
    """Encodes finite weights [n, 256] into blocks [n]."""
    codes, scales, minima = _affine_groups(weights, blocks, 16, 4, 15, TRIALS_2, importance)
    blocks["scales"] = (scales | (minima << 4)).T
    put_q2_k(codes.reshape(16, -1), blocks)


def put_q2_k(codes: Codes, blocks: Array) -> None:
    """Stores codes [16, 16 n] in 0 ... 3 in blocks [n]."""
    by_half = codes.reshape(16, 2, 4, 2, -1).transpose(4, 1, 2, 3, 0).reshape(-1, 2, 4, 32)
    blocks["qs"] = np.bitwise_or.reduce(by_half << _PAIRS, axis=2).reshape(-1, 64)


def _pack_scales(scales: Codes, minima: Codes) -> Codes:
    """The 12 bytes [12, n] of 6-bit scales and minima [8, n]; ``kquants.scales_and_minima`` reads them."""
    first = scales[:4] | ((scales[4:] & 48) << 2)
    second = minima[:4] | ((minima[4:] & 48) << 2)
    return np.concatenate([first, second, (scales[4:] & 15) | ((minima[4:] & 15) << 4)])


def _pack_pairs(codes: Codes) -> Codes:
    """Bytes [n, 128] of codes [32, 8, n] below 16: group 2 j in the low nibbles, 2 j + 1 in the high ones."""
    packed = codes[:, 0::2] | (codes[:, 1::2] << 4)
    return packed.transpose(2, 1, 0).reshape(-1, 128)


def pack_q3_k(weights: Floats, blocks: Array, importance: Floats | None = None) -> None:
    """Encodes finite weights [n, 256] into blocks [n]."""
    codes, scales, d = _pack_symmetric(weights, 4, 32, SHIFTS_3, importance)
    put_q3_k(codes, blocks)
    blocks["d"] = d
    raised = (scales + 32).astype(np.uint8).T
    low, top = raised & 15, (raised >> 4).reshape(-1, 4, 4)
    blocks["scales"][:, :8] = low[:, :8] | (low[:, 8:] << 4)
    blocks["scales"][:, 8:] = np.bitwise_or.reduce(top << _PAIRS, axis=1)


def put_q3_k(codes: Codes, blocks: Array) -> None:
    """Stores codes [16, 16 n] in 0 ... 7, 4 above signed ones, in blocks [n]."""
    by_half = codes.reshape(16, 2, 4, 2, -1).transpose(4, 1, 2, 3, 0).reshape(-1, 2, 4, 32)
    blocks["qs"] = np.bitwise_or.reduce((by_half & 3) << _PAIRS, axis=2).reshape(-1, 64)
    high = (by_half >> 2).reshape(-1, 8, 32) << np.arange(8, dtype=np.uint8)[:, None]
    blocks["hmask"] = np.bitwise_or.reduce(high, axis=1)


def put_q4_k(codes: Codes, blocks: Array) -> None:
    """Stores codes [32, 8, n] in 0 ... 15 in blocks [n]."""
    blocks["qs"] = _pack_pairs(codes)


def put_q5_k(codes: Codes, blocks: Array) -> None:
    """Stores codes [32, 8, n] in 0 ... 31 in blocks [n]."""
    blocks["qs"] = _pack_pairs(codes & 15)
    blocks["qh"] = np.packbits(codes >> 4, axis=1, bitorder="little")[:, 0].T


def put_q6_k(codes: Codes, blocks: Array) -> None:
    """Stores codes [16, 16 n] in 0 ... 63, 32 above signed ones, in blocks [n]."""
    by_group = codes.reshape(16, 2, 4, 2, -1).transpose(4, 1, 2, 3, 0).reshape(-1, 2, 4, 32)
    low, high = by_group & 15, by_group >> 4
    blocks["ql"] = (low[:, :, :2] | (low[:, :, 2:] << 4)).reshape(-1, 128)
    blocks["qh"] = np.bitwise_or.reduce(high << _PAIRS, axis=2).reshape(-1, 64)


def pack_q4_k(weights: Floats, blocks: Array, importance: Floats | None = None) -> None:
    """Encodes finite weights [n, 256] into blocks [n]."""
    put_q4_k(pack_affine(weights, blocks, 16, importance), blocks)


def pack_q5_k(weights: Floats, blocks: Array, importance: Floats | None = None) -> None:
    """Encodes finite weights [n, 256] into blocks [n]."""
    put_q5_k(pack_affine(weights, blocks, 32, importance), blocks)


def pack_q6_k(weights: Floats, blocks: Array, importance: Floats | None = None) -> None:
    """Encodes finite weights [n, 256] into blocks [n]."""
    codes, scales, d = _pack_symmetric(weights, 32, 128, SHIFTS, importance)
    blocks["d"], blocks["scales"] = d, scales.T
    put_q6_k(codes, blocks)


def _pack_symmetric(
    weights: Floats, levels: int, most: int, shifts: Sequence[float], importance: Floats | None
) -> tuple[Codes, Floats, npt.NDArray[np.float16]]:
    """Codes uint8 [16, 16 n] in 0 ... 2 levels - 1 of groups of 16, whole scales [16, n] in -most ... most - 1, and d
    [n]; a weight is ``d * scale * (code - levels)``."""
    x = columns(weights, 16)
    count = len(weights)
    even_in_groups = None if importance is None else even(columns(importance, 16))
    scale, extreme = (part.reshape(16, count) for part in symmetric(x, levels, shifts, even_in_groups))
    up = np.abs(scale).max(axis=0) < COARSE
    scale = np.where(up, extreme / np.float32(-levels), scale)
    index = np.argmax(np.abs(scale), axis=0)
    d, _ = half(scale[index, np.arange(count)] / np.float32(-most))
    ratio = scale / np.where(d == 0, np.float32(1), d.astype(np.float32))
    scales = np.where(up, np.copysign(np.ceil(np.abs(ratio)), ratio), np.rint(ratio))
    scales = np.clip(scales, -most, most - 1)
    step = (scales * d.astype(np.float32)).reshape(-1)
    factor = np.where(step == 0, 0, np.float32(1) / step)
    codes = codes_of(x, factor, -levels, levels - 1, x)
    codes += np.float32(levels)
    return codes.astype(np.uint8), scales, d


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
Q3_K = BlockCodec(get("q3_k"), Q3_K_LAYOUT, _unpack_q3_k, pack_q3_k, _PIECE, weighs=True)
Q4_K = BlockCodec(get("q4_k"), Q4_K_LAYOUT, _unpack_q4_k, pack_q4_k, _PIECE, weighs=True)
Q5_K = BlockCodec(get("q5_k"), Q5_K_LAYOUT, _unpack_q5_k, pack_q5_k, _PIECE, weighs=True)
Q6_K = BlockCodec(get("q6_k"), Q6_K_LAYOUT, _unpack_q6_k, pack_q6_k, _PIECE, weighs=True)

CODECS = (Q2_K, Q3_K, Q4_K, Q5_K, Q6_K)
