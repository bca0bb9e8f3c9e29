"""A weight as codes of one byte with float32 scales, for the layouts that hold them so."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rung.formats import Encoded, codebook4

Codes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

#: Signed bytes of the 16 codes and the factor that makes them the values of the codebook.
CODEBOOKS: dict[str, tuple[npt.NDArray[np.int8], float]] = {}


def _rounded(codebook: Floats) -> tuple[npt.NDArray[np.int8], float]:
    """The bytes whose multiples come nearest to a codebook of values in -1 ... 1, with their factor.

    Of the possible largest bytes, 64 to 127, the one with the smallest squared error: 127 is not the best.
    """

    def error(top: int) -> float:
        return float(np.square(np.rint(codebook * top) / top - codebook).sum())

    best = min(range(64, 128), key=error)
    return np.rint(codebook * best).astype(np.int8), 1.0 / best


for _name, _values in codebook4.CODEBOOKS.items():
    CODEBOOKS[_name] = _rounded(_values)


def codes_of(encoded: Encoded, first: int, last: int) -> tuple[Codes, Floats, Floats | None]:
    """The rows [first, last): codes uint8 [rows, columns], scales and minima float32 [rows, groups].

    Codes of int8 are 128 above the weights; those of nf4 and fp4 are indices.
    """
    family = encoded.format.name.split(":")[0]
    columns = encoded.shape[1]
    if family == "int8":
        codes = encoded.parts["data"][first:last].view(np.uint8) ^ np.uint8(0x80)
        return codes, np.ascontiguousarray(encoded.parts["scale"][first:last, None], np.float32), None
    packed = encoded.parts["data"][first * columns // 2 : last * columns // 2]
    codes = np.stack([packed >> 4, packed & 15], axis=1).reshape(last - first, columns)
    block = encoded.format.block
    scales = codebook4.scales(encoded, first * columns // block, last * columns // block)
    return codes, np.ascontiguousarray(scales.reshape(last - first, -1)), None
