"""How far a rung of ``linear`` may be from ``ref``, in one place for tests and self-checks."""

from __future__ import annotations

#: The most |error| of a result, in units of |x| |w| / sqrt(columns), the size that a random product has.
#: Activations of 8 bits with a scale for 32 err by 0.6 % of that (root mean square); the largest of a few thousand
#: results by less than five times as much.
_INT8_ACTIVATIONS = 0.04
_BY_DTYPE = {"f32": 1e-4, "f16": 4e-3, "bf16": 3e-2}


def tolerance(rung: str, format: str, dtype: str) -> float:
    """The bound for a rung on a format, computing in a dtype."""
    if rung.startswith("numba") and format not in ("f32", "f16", "bf16"):
        return _INT8_ACTIVATIONS
    return _BY_DTYPE[dtype]
