"""The 16 signed bytes that the codes of a format stand for, and the grids of the IQ formats as such codes."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from rung.formats.families import codebook4, iq, iq4, microscale

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]


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
    result = np.zeros(16, np.int8)
    result[: len(values)] = values
    return result, 1.0


def _symmetric(name: str) -> tuple[npt.NDArray[np.int8], float]:
    """The entries of a grid, the smallest at 8, and the same with the other sign, from 7 down."""
    values = np.unique(iq.grid(name))
    result = np.zeros(16, np.int8)
    result[8 : 8 + len(values)], result[8 - len(values) : 8] = values, -values[::-1]
    return result, 1.0


_SIGNED = ("iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s")
#: Eight times -1, 0 and 1 less or more than one eighth: the code is twice the ternary one, plus 1 for more.
_IQ1 = _values(-9, -7, -1, 1, 7, 9)

#: Signed bytes of the 16 codes and the factor that makes them the values of the codebook.
CODEBOOKS: dict[str, tuple[npt.NDArray[np.int8], float]] = {
    **{name: _rounded(values) for name, values in codebook4.CODEBOOKS.items()},
    **dict.fromkeys(("iq4_nl", "iq4_xs"), (iq4.CODEBOOK, 1.0)),
    **dict.fromkeys(("mxfp4", "nvfp4"), (microscale.E2M1_DOUBLED, 1.0)),
    **{name: _symmetric(name) for name in _SIGNED},
    "q3_k": _values(*range(-4, 4)),
    "iq1_s": _IQ1,
    "iq1_m": _IQ1,
    "tq1_0": _values(-1, 0, 1),
    "tq2_0": _values(-1, 0, 1, 2),
}


@functools.cache
def grid_codes(name: str) -> Bytes:
    """The entries of a format's grid as codes of its codebook, uint8 [entries, 4 or 8]; empty without a grid.

    Values that a sign is applied to afterwards are those above zero, ternary ones those of the smaller delta.
    """
    if name in ("iq1_s", "iq1_m"):
        return (2 * (iq.grid("iq1_s") + 1)).astype(np.uint8)
    if name in _SIGNED:
        entries = iq.grid(name)
        return (8 + np.searchsorted(np.unique(entries), entries)).astype(np.uint8)
    return np.empty((0, 8), np.uint8)
