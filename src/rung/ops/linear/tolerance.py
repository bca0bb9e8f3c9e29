"""How far a rung may be from the exact product: the one place of these numbers.

An error is measured in units of |x| |w| / sqrt(in), the size of a typical product of a row x of activations with a
row w of weights, so that a bound does not depend on the shape. A single value may be off by ``tolerance``, a whole
row of weights (root mean square over many activations) by ``spread``, all values together in scale by ``SCALE``.

Activations in int8 with a scale for 32: the rounding error has a standard deviation of largest / 127 / sqrt(12),
and the largest of 32 Gaussian values is 2.1 of their deviations on average: 0.0048, measured 0.0055. Codebooks of
nf4 and fp4 in signed bytes add theirs, which grows with the block: 0.0075 to 0.0115 together.
"""

from __future__ import annotations

from rung import formats
from rung.kernels.cpu.pack.layouts import layout_of

#: Standard deviation of the error by what a rung computes in.
_SPREAD = {"int8": 0.0055, "codebook": 0.009, "f32": 2e-6, "bf16": 0.0025, "f16": 0.0004}

#: Deviations that no value of a correct product passes: one in 10^9 of Gaussian errors would.
_DEVIATIONS = 6.0

#: Half a unit in the last place of a result, as a share of it: deviations do not tell how a large one is rounded.
_ROUNDING = {"bf16": 2.0**-8, "f16": 2.0**-11}

#: Rungs that take activations in int8 where codes are integers, and in float32 where these index a table.
_CUDA = ("cuda.rows", "cuda.stored")

#: Largest relative error of the scale of all products together.
SCALE = 0.002


def _computes_in(rung: str, format: str, dtype: str) -> str:
    if rung in ("numba.row", "numba.tile", "numba.mapped"):
        return "codebook" if format.split(":")[0] in ("nf4", "fp4") else "int8"
    if rung in _CUDA and not layout_of(formats.get(format)).table:
        return "int8"
    if rung in ("torch.decode", *_CUDA) and format != "f32" and dtype in ("bf16", "f16"):
        return dtype
    return "f32"


def spread(rung: str, format: str, dtype: str) -> float:
    """The standard deviation of the error of a rung, in the unit of the module; a row may have one and a half."""
    return _SPREAD[_computes_in(rung, format, dtype)]


def rounding(rung: str, format: str, dtype: str) -> float:
    """The largest error of a result by its own rounding, as a share of it."""
    return _ROUNDING.get(_computes_in(rung, format, dtype), 0.0)


def tolerance(rung: str, format: str, dtype: str) -> float:
    """The largest error of a single value, in the unit of the module."""
    return _DEVIATIONS * spread(rung, format, dtype)
