"""Take blocks apart into scales and codes: a weight is ``scale * levels[code] - minimum``, so that others choose codes.

Scales are chosen by least squares, weighed by the importance of each column, and are what the format stores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from rung.core.types import Format
from rung.formats.codec import Array, BlockCodec, Codes, Encoded, Floats, Source, columns, half
from rung.formats.families import codebook4, iq4, kquants, legacy, microscale
from rung.formats.search import affine, even, symmetric

_SHIFTS = (-1.2, -0.8, -0.4, 0.0, 0.4, 0.8)
#: Scales that are tried of codebooks and rows, as parts of the largest magnitude, and what is too small to divide by.
_PARTS = (1.0, 0.96, 0.92, 0.88, 0.84, 0.8, 0.75, 0.7)
_LEAST = np.float32(1e-30)
#: Weights that are tried at once.
_PIECE = 1 << 20
_TRIALS = tuple((stretch, offset) for stretch in (-1.4, -0.8, -0.3, 0.2, 0.6) for offset in (-0.4, 0.0, 0.4))


@dataclass(frozen=True)
class Grid:
    """The values that weights [rows, columns] may take: ``levels`` [count], sorted, and for each ``group`` of columns
    ``scales`` and ``minima`` [rows, groups] f32.

    ``free``: scales, and minima where ``affine``, may become any float16 (``wide``: any float32); others are bound to
    those around them.
    """

    format: Format
    blocks: Array
    levels: Floats
    group: int
    scales: Floats
    minima: Floats
    free: bool
    affine: bool
    wide: bool = False

    def join(self, codes: Codes) -> Encoded:
        """Return the weight with these codes uint8 [rows, columns], and the scales as they are now."""
        if self.format.family in _APART:
            return Encoded(self.format, (codes.shape[0], codes.shape[1]), _APART[self.format.family](self, codes))
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


def has_grid(fmt: Format, columns: int) -> bool:
    """Return whether ``grid`` knows a format, for rows of so many columns: blocks of nf4 and fp4 must divide them, and
    16 those of int8."""
    if fmt.family in _APART:
        return columns % (fmt.block if fmt.family == "codebook4" else 16) == 0
    return fmt.name in _PUT


def grid(fmt: Format, weights: Floats, importance: Floats, name: str = "weight") -> Grid:
    """Return the grid of finite weights f32 [rows, columns], of which columns count as ``importance`` [columns] says.

    Raises ``CannotEncode`` for scales that the format cannot hold.
    """
    if fmt.name == "mxfp4":
        return _of_powers(fmt, weights, importance)
    if fmt.family == "codebook4":
        return _of_codebook(fmt, weights, importance)
    if fmt.family == "rowwise":
        return _of_rows(fmt, weights, importance)
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
        levels, scale = iq4.CODEBOOK.astype(np.float32), iq4.fit(x, weighed)
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


def _of_superblocks(fmt: Format, weights: Floats, importance: Floats, name: str) -> Grid:
    """Return the grid that the encoder of a format with superblocks finds."""
    flat, codec = weights.reshape(-1), _SUPER[fmt.name]
    source = Source(name, (weights.shape[0], weights.shape[1]), lambda a, b: flat[a:b], 1, importance)
    blocks = codec.encode(source)["data"].reshape(-1).view(codec.layout)
    d = blocks["d"].astype(np.float32)[:, None]
    levels, middle = _SUPER_LEVELS[fmt.name]
    affine = "dmin" in (codec.layout.names or ())
    if affine:
        whole, lows = _whole(fmt.name, blocks)
        scales, minima = d * whole, blocks["dmin"].astype(np.float32)[:, None] * lows
    else:
        scales = d * _whole(fmt.name, blocks)[0]
        minima = np.zeros_like(scales)
    shape = (len(weights), -1)
    group = weights.size // scales.size
    scales, minima = (np.ascontiguousarray(each.reshape(shape), np.float32) for each in (scales, minima))
    return Grid(fmt, blocks, levels - middle, group, scales, minima, False, affine)


def _whole(name: str, blocks: Array) -> tuple[Array, ...]:
    """Return whole scales [n, groups], and whole minima where blocks have them."""
    if name == "iq4_xs":
        return (iq4.iq4_xs_scales(blocks),)
    packed: Array = blocks["scales"]
    if name == "q2_k":
        scales: Array = packed & 15
        minima: Array = packed >> 4
        return scales, minima
    if name in ("q4_k", "q5_k"):
        return kquants.scales_and_minima(packed)
    return (kquants.q3_k_scales(blocks) if name == "q3_k" else packed,)


def _of_powers(fmt: Format, weights: Floats, importance: Floats) -> Grid:
    """Return the grid of mxfp4: the power of two, of the two nearest to the largest weight, that errs least."""
    rows, count = weights.shape
    x = columns(weights.reshape(-1, 32), 32)
    weighed = even(columns(np.broadcast_to(importance, weights.shape).reshape(-1, 32), 32))
    levels = np.unique(microscale.E2M1_DOUBLED).astype(np.float32)
    first, errors = microscale.exponents(np.abs(x).max(axis=0)), []
    second = np.minimum(first + 1, microscale.LAST)
    for byte in (first, second):
        scale = microscale.HALF_POWERS[byte]
        y = x / np.where(scale > 0, scale, np.float32(1))
        near = levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, y)]
        errors.append((np.square((near * scale) - x) * weighed).sum(axis=0))
    byte = np.where(errors[1] < errors[0], second, first)
    blocks = np.zeros(rows * count // 32, microscale.MXFP4_LAYOUT)
    blocks["e"] = byte
    scales = microscale.HALF_POWERS[byte].reshape(rows, -1)
    return Grid(fmt, blocks, levels, 32, scales, np.zeros_like(scales), False, False)


def _of_codebook(fmt: Format, weights: Floats, importance: Floats) -> Grid:
    """Return the grid of nf4 or fp4, whose blocks divide the rows; nested scales stay as 8 bits hold them."""
    levels = np.unique(codebook4.CODEBOOKS[fmt.name.split(":")[0]])
    rows, count = weights.shape
    x = columns(weights.reshape(-1, fmt.block), fmt.block)
    weighed = columns(np.broadcast_to(importance, weights.shape).reshape(-1, fmt.block), fmt.block)
    # columns() lists the blocks of one row after the other here: each is a whole block of the format
    scale, parts = _shrunk(x, weighed, levels, np.abs(x).max(axis=0)), np.zeros(0)
    if fmt.nested:
        nested = Encoded(fmt, (rows, count), codebook4.nest(scale))
        scale = codebook4.scales(nested).astype(np.float32)
        parts = np.array([nested.parts], object)
    scales = np.ascontiguousarray(scale.reshape(rows, -1), np.float32)
    return Grid(fmt, parts, levels, fmt.block, scales, np.zeros_like(scales), not fmt.nested, False, True)


def _of_rows(fmt: Format, weights: Floats, importance: Floats) -> Grid:
    """Return the grid of int8 with a scale for each row."""
    rows, count = weights.shape
    levels = np.arange(-127, 128, dtype=np.float32)
    peak = np.abs(weights).max(axis=1)
    unit = np.arange(-127, 128, dtype=np.float32) / np.float32(127)
    step = max(1, _PIECE // max(count, 1))
    pieces = (slice(first, first + step) for first in range(0, rows, step))
    scale = np.concatenate([_shrunk(weights[at].T, importance[:, None], unit, peak[at]) for at in pieces])
    scales = np.ascontiguousarray(scale[:, None] / np.float32(127), np.float32)
    return Grid(fmt, np.zeros(0), levels, count, scales, np.zeros_like(scales), True, False, True)


def _shrunk(x: Floats, weighed: Floats, levels: Floats, peak: Floats) -> Floats:
    """Return the scales [n] at which columns [length, n] are nearest to ``levels`` in -1 ... 1, of some below the peak.

    Ties are for the larger scale; a peak too small to divide by is the scale.
    """
    best, least, between = peak.copy(), np.full(peak.shape, np.inf, np.float32), (levels[1:] + levels[:-1]) / 2
    usable = np.where(peak > _LEAST, peak, np.float32(1))
    for part in _PARTS:
        scale = np.float32(part) * usable
        near = levels[np.searchsorted(between, x / scale)] * scale
        errors = (np.square(near - x) * weighed).sum(axis=0)
        better = (errors < least) & (peak > _LEAST)
        best[better], least[better] = scale[better], errors[better]
    return best


def _codebook_parts(grid: Grid, codes: Codes) -> dict[str, Array]:
    """Return the parts of nf4 and fp4: of equal values the first index."""
    codebook = codebook4.CODEBOOKS[grid.format.name.split(":")[0]]
    indices = np.array([int(np.flatnonzero(codebook == level)[0]) for level in grid.levels], np.uint8)[codes]
    data = ((indices[:, ::2] << 4) | indices[:, 1::2]).reshape(-1)
    scales: dict[str, Array] = grid.blocks[0] if grid.format.nested else {"absmax": grid.scales.reshape(-1)}
    return {"data": data, **scales}


def _row_parts(grid: Grid, codes: Codes) -> dict[str, Array]:
    """Return the parts of int8; ``llm_int8`` stores what the largest code stands for."""
    scale = grid.scales[:, 0] * np.float32(127 if grid.format.name == "llm_int8" else 1)
    return {"data": (codes.astype(np.int16) - 127).astype(np.int8), "scale": scale}


def _nibbles(codes: Codes, blocks: Array) -> None:
    blocks["qs"] = legacy.pack_nibbles(codes.T)


def _halves(codes: Codes, blocks: Array) -> None:
    blocks["qs"] = legacy.pack_nibbles(_MXFP4_CODES[codes.T])


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


def _writing(codec: BlockCodec, pack: Callable[..., None]) -> BlockCodec:
    """Return the codec of a format that is only written where a text is looked at."""
    return replace(codec, format=replace(codec.format, encodes=True), pack=pack, piece=1 << 15, weighs=True)


_SUPER = {
    codec.format.name: codec
    for codec in (
        _writing(kquants.Q2_K, kquants.pack_q2_k),
        *(kquants.Q3_K, kquants.Q4_K, kquants.Q5_K, kquants.Q6_K),
        _writing(iq4.IQ4_XS, iq4.pack_iq4_xs),
    )
}
#: How families whose parts are no blocks are stored.
_APART: dict[str, Callable[[Grid, Codes], dict[str, Array]]] = {"codebook4": _codebook_parts, "rowwise": _row_parts}
#: The levels of formats with superblocks before the middle one is taken off, and the middle.
_SUPER_LEVELS: dict[str, tuple[Floats, int]] = {
    "q2_k": (np.arange(4, dtype=np.float32), 0),
    "q3_k": (np.arange(8, dtype=np.float32), 4),
    "q4_k": (np.arange(16, dtype=np.float32), 0),
    "q5_k": (np.arange(32, dtype=np.float32), 0),
    "q6_k": (np.arange(64, dtype=np.float32), 32),
    "iq4_xs": (iq4.CODEBOOK.astype(np.float32), 0),
}
#: The code of each level of mxfp4: of the two zeros the positive one.
_MXFP4_CODES = np.array(
    [int(np.flatnonzero(level == microscale.E2M1_DOUBLED)[0]) for level in np.unique(microscale.E2M1_DOUBLED)], np.uint8
)
#: How codes [blocks, weights of a block] are stored.
_PUT: dict[str, Callable[[Codes, Array], None]] = {
    **dict.fromkeys(("q4_0", "q4_1", "iq4_nl"), _nibbles),
    **dict.fromkeys(("q5_0", "q5_1"), _fifths),
    "q8_0": _bytes,
    "mxfp4": _halves,
    "q2_k": _groups_of_16(kquants.put_q2_k),
    "q3_k": _groups_of_16(kquants.put_q3_k),
    "q4_k": _groups_of_32(kquants.put_q4_k),
    "q5_k": _groups_of_32(kquants.put_q5_k),
    "q6_k": _groups_of_16(kquants.put_q6_k),
    "iq4_xs": _groups_of_32(iq4.put_iq4_xs),
}
