"""Take blocks apart into scales and codes: a weight is ``scale * levels[code] - minimum``, so that others choose codes.

Scales are chosen by least squares, weighed by the importance of each column, and are what the format stores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from rung.core.types import Format
from rung.formats.codec import Array, Codes, Encoded, Floats, Source, columns, half
from rung.formats.families import iq4, kquants, legacy
from rung.formats.search import affine, even, inverse, symmetric

_SHIFTS = (-1.2, -0.8, -0.4, 0.0, 0.4, 0.8)
_TRIALS = tuple((stretch, offset) for stretch in (-1.4, -0.8, -0.3, 0.2, 0.6) for offset in (-0.4, 0.0, 0.4))


@dataclass(frozen=True)
class Grid:
    """The values that weights [rows, columns] may take: ``levels`` [count], sorted, and for each ``group`` of columns
    ``scales`` and ``minima`` [rows, groups] f32.

    ``free``: scales, and minima where ``affine``, may become any float16; others are bound to those around them.
    """

    format: Format
    blocks: Array
    levels: Floats
    group: int
    scales: Floats
    minima: Floats
    free: bool
    affine: bool

    def join(self, codes: Codes) -> Encoded:
        """Return the weight with these codes uint8 [rows, columns], and the scales as they are now."""
        blocks = self.blocks.copy()
        rows, count = codes.shape
        if self.free:
            blocks["d"] = self.scales.reshape(-1).astype(np.float16)
        if self.free and self.affine:
            blocks["m"] = (-self.minima.reshape(-1)).astype(np.float16)
        _PUT[self.format.name](codes.reshape(len(blocks), -1), blocks)
        return Encoded(self.format, (rows, count), {"data": blocks.view(np.uint8).reshape(rows, -1)})

    def values(self, codes: Codes) -> Floats:
        """Return the weights [rows, columns] with these codes."""
        scales, minima = (np.repeat(each, self.group, axis=1) for each in (self.scales, self.minima))
        found: Floats = scales * self.levels[codes] - minima
        return found


def has_grid(fmt: Format) -> bool:
    """Return whether ``grid`` knows a format."""
    return fmt.name in _PUT


def grid(fmt: Format, weights: Floats, importance: Floats, name: str = "weight") -> Grid:
    """Return the grid of finite weights f32 [rows, columns], of which columns count as ``importance`` [columns] says.

    Raises ``CannotEncode`` for scales that the format cannot hold.
    """
    if fmt.name in _SUPER:
        return _of_superblocks(fmt, weights, importance, name)
    rows, count = weights.shape
    layout = {"iq4_nl": iq4.IQ4_NL_LAYOUT}.get(fmt.name) or getattr(legacy, f"{fmt.name.upper()}_LAYOUT")
    x = columns(weights.reshape(-1, 32), 32)
    weighed = even(columns(np.broadcast_to(importance, weights.shape).reshape(-1, 32), 32))
    minimum = np.zeros(x.shape[1], np.float32)
    if fmt.name in ("q4_1", "q5_1"):
        levels = np.arange(16 if fmt.name == "q4_1" else 32, dtype=np.float32)
        scale, minimum = affine(x, len(levels), _TRIALS, weighed)
    elif fmt.name == "iq4_nl":
        levels, scale = iq4.CODEBOOK.astype(np.float32), _fit(x, iq4.CODEBOOK.astype(np.float32), weighed)
    elif fmt.name == "q8_0":
        levels, scale = np.arange(-127, 128, dtype=np.float32), np.abs(x).max(axis=0) / np.float32(127)
    else:
        middle = 8 if fmt.name == "q4_0" else 16
        levels, scale = np.arange(-middle, middle, dtype=np.float32), symmetric(x, middle, _SHIFTS, weighed)[0]
    shape = (rows, count // 32)
    scale, minimum = (_as_half(each).reshape(shape) for each in (scale, minimum))
    return Grid(
        fmt, np.zeros(rows * count // 32, layout), levels, 32, scale, minimum, True, "m" in (layout.names or ())
    )


def _as_half(values: Floats) -> Floats:
    """Return values as float16 stores them. Raises ``BadBlock`` for those it does not hold."""
    return half(values)[0].astype(np.float32)


def _fit(x: Floats, levels: Floats, importance: Floats) -> Floats:
    """Return the scale [groups] with which levels are nearest to x [weights, groups]."""
    low, high = x.min(axis=0), x.max(axis=0)
    extreme = np.where(high > -low, high, low)
    y = x * inverse(extreme)
    middles = (levels[1:] + levels[:-1]) / 2
    best, most = np.full_like(extreme, 1 / levels[0]), np.zeros_like(extreme)
    for end in iq4.EXTREMES:
        value = levels[np.searchsorted(middles, y * np.float32(end))]
        cross, second = (value * y * importance).sum(axis=0), (value * value * importance).sum(axis=0)
        fit = cross / second
        better = fit * cross > most
        np.copyto(most, fit * cross, where=better)
        np.copyto(best, fit, where=better)
    found: Floats = best * extreme
    return found


def _of_superblocks(fmt: Format, weights: Floats, importance: Floats, name: str) -> Grid:
    """Return the grid that the encoder of a k-quant finds."""
    flat, codec = weights.reshape(-1), _SUPER[fmt.name]
    source = Source(name, (weights.shape[0], weights.shape[1]), lambda a, b: flat[a:b], 1, importance)
    blocks = codec.encode(source)["data"].reshape(-1).view(codec.layout)
    d = blocks["d"].astype(np.float32)[:, None]
    minima = np.zeros(0, np.float32)
    if fmt.name in ("q4_k", "q5_k"):
        whole, lows = kquants.scales_and_minima(blocks["scales"])
        scales, minima = d * whole, blocks["dmin"].astype(np.float32)[:, None] * lows
        levels = np.arange(16 if fmt.name == "q4_k" else 32, dtype=np.float32)
    else:
        scales = d * (blocks["scales"] if fmt.name == "q6_k" else kquants.q3_k_scales(blocks))
        middle = 32 if fmt.name == "q6_k" else 4
        levels, minima = np.arange(-middle, middle, dtype=np.float32), np.zeros_like(scales)
    shape = (len(weights), -1)
    group = weights.size // scales.size
    scales, minima = (np.ascontiguousarray(each.reshape(shape), np.float32) for each in (scales, minima))
    return Grid(fmt, blocks, levels, group, scales, minima, False, fmt.name in ("q4_k", "q5_k"))


def _nibbles(codes: Codes, blocks: Array) -> None:
    blocks["qs"] = legacy.pack_nibbles(codes.T)


def _fifths(codes: Codes, blocks: Array) -> None:
    legacy.pack_fifths(np.ascontiguousarray(codes.T), blocks)


def _bytes(codes: Codes, blocks: Array) -> None:
    blocks["qs"] = (codes.astype(np.int16) - 127).astype(np.int8)


def _groups_of_32(put: Callable[[Codes, Array], None]) -> Callable[[Codes, Array], None]:
    return lambda codes, blocks: put(np.ascontiguousarray(codes.reshape(-1, 8, 32).transpose(2, 1, 0)), blocks)


def _groups_of_16(put: Callable[[Codes, Array], None]) -> Callable[[Codes, Array], None]:
    return lambda codes, blocks: put(
        np.ascontiguousarray(codes.reshape(-1, 16, 16).transpose(2, 1, 0)).reshape(16, -1), blocks
    )


_SUPER = {codec.format.name: codec for codec in (kquants.Q3_K, kquants.Q4_K, kquants.Q5_K, kquants.Q6_K)}
#: How codes [blocks, weights of a block] are stored.
_PUT: dict[str, Callable[[Codes, Array], None]] = {
    **dict.fromkeys(("q4_0", "q4_1", "iq4_nl"), _nibbles),
    **dict.fromkeys(("q5_0", "q5_1"), _fifths),
    "q8_0": _bytes,
    "q3_k": _groups_of_16(kquants.put_q3_k),
    "q4_k": _groups_of_32(kquants.put_q4_k),
    "q5_k": _groups_of_32(kquants.put_q5_k),
    "q6_k": _groups_of_16(kquants.put_q6_k),
}
