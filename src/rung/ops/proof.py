"""Check one rung on a small seeded case of its op against NumPy in float64: every value, and the scale; in a child.

The case is that of ``ops/<op>/self_check.py``: ``check(rung, case, place)`` returns how the rung differs, or nothing.
Rungs that need no torch compute with arrays there, and nothing imports it for them.
"""

from __future__ import annotations

import importlib
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from rung import formats
from rung.core.types import Case, Rung
from rung.formats import Encoded
from rung.formats.families import grouped
from rung.ops.linear import ON_DEVICE

SEED = 20_261_121
#: Rows of a weight, not a multiple of any tile.
OUT = 83


def compare(got: npt.ArrayLike, want: npt.ArrayLike, scale: npt.ArrayLike, bound: float) -> str:
    """Where two results differ by more than ``bound * scale``, in words; empty when nowhere.

    ``scale`` broadcasts to the shape of both. A NaN or Inf differs from everything.
    """
    found, right = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if found.shape != right.shape:
        return f"the shape is {found.shape} instead of {right.shape}"
    if not np.isfinite(found).all():
        return f"{np.count_nonzero(~np.isfinite(found))} values are NaN or infinite"
    error = np.abs(found - right) / np.maximum(np.asarray(scale, np.float64), 1e-30)
    worst = np.unravel_index(int(error.argmax()), error.shape)
    if error[worst] <= bound:
        return ""
    position = tuple(map(int, worst))
    return f"value {position} is {found[position]:.6g} instead of {right[position]:.6g}"


def compare_scale(got: npt.ArrayLike, want: npt.ArrayLike, bound: float) -> str:
    """Return in words that all of a result is too large or too small by more than ``bound``; empty when it is not.

    The scale is that of the least squares, on which the rounding of single values hardly tells.
    """
    found, right = np.asarray(got, np.float64), np.asarray(want, np.float64)
    scale = float((found * right).sum() / (right * right).sum())
    return "" if abs(scale - 1) <= bound else f"all values are {scale:.4f} times what they should be"


def weights(format: str, rows: int, columns: int) -> Encoded:
    """A small seeded weight in that format; formats without an encoder get random blocks that are finite."""
    generator = np.random.default_rng(SEED)
    chosen = formats.get(format)
    if chosen.encodes:
        return formats.encode(generator.standard_normal((rows, columns), dtype=np.float32), chosen, "self-check")
    if chosen.family == "grouped":
        return grouped.sample(chosen, (rows, columns), generator)
    row_bytes = chosen.bytes((1, columns))
    kept: list[np.ndarray] = []
    while sum(map(len, kept)) < rows:
        data = generator.integers(0, 256, (4 * rows, row_bytes), dtype=np.uint8)
        values = formats.decode(Encoded(chosen, (4 * rows, columns), {"data": data}))
        top = np.abs(values).max(axis=1)
        kept.append(data[np.isfinite(values).all(axis=1) & (top > 1e-2) & (top < 1e2)])  # products in f16 are finite
    return Encoded(chosen, (rows, columns), {"data": np.ascontiguousarray(np.concatenate(kept)[:rows])})


def as_tensor(values: npt.NDArray[Any], location: str) -> Any:
    """Return the values as a tensor on torch's device."""
    import torch

    return torch.from_numpy(values).to(location)


def on(rung: Rung, location: str) -> dict[str, str]:
    """Return the keywords that tell ``prepare`` of a rung where it computes."""
    return {"device": location} if rung.packing in ON_DEVICE else {}


def columns_of(format: str) -> int:
    """Return how many columns a weight of a check has: whole blocks."""
    block = formats.get(format).block
    return 512 if block in (0, 1) else math.lcm(block, 256)


def perform(rung: dict[str, Any], case: dict[str, Any], location: str = "cpu") -> dict[str, Any]:
    """The verdict on one rung for one class of cases as JSON, ``{ok, reason}``; ``location`` is torch's device."""
    chosen, typed_case = Rung.from_json(rung), Case.from_json(case)
    reason = importlib.import_module(f"rung.ops.{typed_case.op}.self_check").check(chosen, typed_case, location)
    return {"ok": not reason, "reason": reason}


def compile_ahead(rung: dict[str, Any], case: dict[str, Any]) -> None:
    """Compile what the check of a rung comes to last, for another process that checks it meanwhile."""
    find = getattr(Rung.from_json(rung).load(), "last_kernels", None)
    for kernel in find(Case.from_json(case)) if find else ():
        kernel.compile()
