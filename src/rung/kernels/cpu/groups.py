"""A weight as codes of one byte with float32 scales, for the layouts that hold them so.

A GGUF weight is ``scale * value + minimum`` with a small integer value and one scale for 16 or 32 columns. The scales
are computed from the block's fields here; the values then are what ``rung.formats`` decodes, without the minimum,
divided by the scale: exact, because a product of a float32 and a small integer is rounded once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from rung import formats
from rung.formats import Encoded, codebook4, iq, iq4, kquants, legacy, microscale, ternary
from rung.formats.codec import BlockCodec
from rung.kernels.cpu.layouts import layout_of

Codes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Blocks = npt.NDArray[Any]


def _rounded(codebook: Floats) -> tuple[npt.NDArray[np.int8], float]:
    """The bytes whose multiples come nearest to a codebook of values in -1 ... 1, with their factor.

    Of the possible largest bytes, 64 to 127, the one with the smallest squared error: 127 is not the best.
    """

    def error(top: int) -> float:
        return float(np.square(np.rint(codebook * top) / top - codebook).sum())

    best = min(range(64, 128), key=error)
    return np.rint(codebook * best).astype(np.int8), 1.0 / best


def _values(*values: float) -> tuple[npt.NDArray[np.int8], float]:
    """A codebook of at most 16 integers, filled up with zeros."""
    made = np.zeros(16, np.int8)
    made[: len(values)] = values
    return made, 1.0


def _signed(name: str) -> tuple[npt.NDArray[np.int8], float]:
    """The entries of a grid with both signs."""
    return _values(*np.unique([iq.grid(name), -iq.grid(name)]))


_IQ1 = _values(-9, -7, -1, 1, 7, 9)
_TERNARY = _values(-1, 0, 1)

#: Signed bytes of the 16 codes and the factor that makes them the values of the codebook.
CODEBOOKS: dict[str, tuple[npt.NDArray[np.int8], float]] = {
    **{name: _rounded(values) for name, values in codebook4.CODEBOOKS.items()},
    **dict.fromkeys(("iq4_nl", "iq4_xs"), (iq4.CODEBOOK, 1.0)),
    **dict.fromkeys(("mxfp4", "nvfp4"), (microscale.E2M1_DOUBLED, 1.0)),
    **{name: _signed(name) for name in ("iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")},
    "q3_k": _values(*range(-4, 4)),
    "iq1_s": _IQ1,
    "iq1_m": _IQ1,
    "tq1_0": _TERNARY,
    "tq2_0": _values(-1, 0, 1, 2),
}


def _d(blocks: Blocks) -> Floats:
    """The float16 scale of each block, [n, 1]."""
    scale: Floats = blocks["d"].astype(np.float32)[:, None]
    return scale


def _affine_k(blocks: Blocks) -> Floats:
    return _d(blocks) * kquants.scales_and_minima(blocks["scales"])[0].astype(np.float32)


def _iq1_m(blocks: Blocks) -> Floats:
    scale: Floats = iq.iq1_m_scales(blocks) / np.float32(8)
    return scale


#: The scales float32 [n, groups] of n blocks.
_SCALES: dict[str, Callable[[Blocks], Floats]] = {
    **dict.fromkeys(("q4_1", "q5_0", "q5_1", "iq4_nl", "tq1_0", "tq2_0"), _d),
    "q2_k": lambda b: _d(b) * (b["scales"] & 15).astype(np.float32),
    "q3_k": lambda b: _d(b) * kquants.q3_k_scales(b).astype(np.float32),
    "q5_k": _affine_k,
    "iq4_xs": lambda b: _d(b) * iq4.iq4_xs_scales(b).astype(np.float32),
    "mxfp4": lambda b: microscale.HALF_POWERS[b["e"]][:, None],
    "nvfp4": lambda b: microscale.HALF_E4M3[b["d"]],
    "iq2_xxs": lambda b: iq.half_scale(b["d"], b["qs"]["signs"] >> 28, 0.25),
    "iq2_xs": lambda b: iq.half_scale(b["d"], iq.nibbles(b["scales"]), 0.25),
    "iq2_s": lambda b: iq.half_scale(b["d"], iq.nibbles(b["scales"]), 0.25),
    "iq3_xxs": lambda b: iq.half_scale(b["d"], b["signs"] >> 28, 0.5),
    "iq3_s": lambda b: _d(b) * (1 + 2 * iq.nibbles(b["scales"])).astype(np.float32),
    "iq1_s": lambda b: _d(b) * (2 * ((b["qh"] >> 12) & 7) + 1).astype(np.float32) / np.float32(8),
    "iq1_m": _iq1_m,
}

#: The minima float32 [n, groups] of n blocks, to be added, and the field that makes them zero.
_MINIMA: dict[str, tuple[Callable[[Blocks], Floats], str]] = {
    "q4_1": (lambda b: b["m"].astype(np.float32)[:, None], "m"),
    "q5_1": (lambda b: b["m"].astype(np.float32)[:, None], "m"),
    "q2_k": (lambda b: -b["dmin"].astype(np.float32)[:, None] * (b["scales"] >> 4).astype(np.float32), "dmin"),
    "q5_k": (
        lambda b: -b["dmin"].astype(np.float32)[:, None] * kquants.scales_and_minima(b["scales"])[1].astype(np.float32),
        "dmin",
    ),
}

_CODECS: dict[str, BlockCodec] = {
    codec.format.name: codec
    for family in (legacy, kquants, iq4, iq, microscale, ternary)
    for codec in family.CODECS.values()
}


def codes_of(encoded: Encoded, first: int, last: int) -> tuple[Codes, Floats, Floats | None]:
    """The rows [first, last): codes uint8 [rows, columns], scales and minima float32 [rows, groups].

    Codes are indices into the codebook of the format, else ``layout_of(format).offset`` above the values.
    """
    family = encoded.format.name.split(":")[0]
    if family == "int8":
        codes = encoded.parts["data"][first:last].view(np.uint8) ^ np.uint8(0x80)
        return codes, np.ascontiguousarray(encoded.parts["scale"][first:last, None], np.float32), None
    if family in codebook4.CODEBOOKS:
        return _codebook(encoded, first, last)
    return _generic(encoded, first, last)


def _codebook(encoded: Encoded, first: int, last: int) -> tuple[Codes, Floats, None]:
    columns, block = encoded.shape[1], encoded.format.block
    packed = encoded.parts["data"][first * columns // 2 : last * columns // 2]
    codes = np.stack([packed >> 4, packed & 15], axis=1).reshape(last - first, columns)
    scales = codebook4.scales(encoded, first * columns // block, last * columns // block)
    return codes, np.ascontiguousarray(scales.reshape(last - first, -1)), None


def _generic(encoded: Encoded, first: int, last: int) -> tuple[Codes, Floats, Floats | None]:
    name, columns = encoded.format.name, encoded.shape[1]
    codec, layout = _CODECS[name], layout_of(encoded.format)
    count, groups = last - first, columns // layout.group
    data = np.array(encoded.parts["data"][first:last])
    blocks = data.reshape(-1).view(codec.layout)
    with np.errstate(all="ignore"):
        scales = _spread(_SCALES[name](blocks), count, groups)
        minima = None
        if name in _MINIMA:
            minima = _spread(_MINIMA[name][0](blocks), count, groups)
            blocks[_MINIMA[name][1]] = 0
        values = formats.decode(Encoded(encoded.format, (count, columns), {"data": data}))
        values = values.reshape(count, groups, -1)
        values /= scales[:, :, None]
        values[~np.isfinite(values)] = 0  # a scale of 0, NaN or Inf: any code gives the same product
    codes = np.rint(values, out=values).astype(np.int8).reshape(count, columns)
    if layout.table:
        return _indices(name)[codes.view(np.uint8)], scales, minima
    return codes.view(np.uint8) + np.uint8(layout.offset), scales, minima


def _spread(values: Floats, rows: int, groups: int) -> Floats:
    """Values of blocks [n, k] as float32 [rows, groups]: each for as many groups as it covers."""
    per_row = values.reshape(rows, -1)
    return np.ascontiguousarray(np.repeat(per_row, groups // per_row.shape[1], axis=1), np.float32)


def _indices(name: str) -> Codes:
    """The index into the codebook of each signed byte (as unsigned)."""
    found = np.zeros(256, np.uint8)
    values = CODEBOOKS[name][0]
    found[values[::-1].view(np.uint8)] = np.arange(15, -1, -1)  # of equal values the first
    return found
