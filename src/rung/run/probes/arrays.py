"""Probe a processor with NumPy, where torch is not installed: values against float64, and rates.

See ``rung.run.probes.values`` and ``rates``, which do the same with torch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

#: The dtypes in which NumPy computes at the processor's rate; it has no products in 16 and 8 bits that are fast.
DTYPES: dict[str, Any] = {"f32": np.float32, "f64": np.float64}
#: Largest relative error of any value, as a share of the largest in its row.
_TOLERANCE = {"f32": 2e-5, "f64": 1e-12, "f16": 4e-3}
#: Seconds that one figure may take, and the size of the square products.
_BUDGET, _SIZE = 0.3, 1024

Array = npt.NDArray[Any]


def matmul(dtype: str) -> str:
    """Multiply x [M, K] and w [N, K] transposed, in three shapes; return what is wrong, or an empty string."""
    for rows, inner, columns in ((1, 256, 64), (33, 95, 47), (64, 256, 128)):
        x, w = _random((rows, inner), dtype, 1), _random((columns, inner), dtype, 2)
        if problem := wrong(x @ w.T, _exact(x, w), dtype):
            return f"{rows}x{inner} times {inner}x{columns}: {problem}"
    return ""


def elementwise(dtype: str) -> str:
    """Compute sums, products, exponentials and roots of a vector."""
    x, y = _random((8, 97), dtype, 6), _random((8, 97), dtype, 7)

    def compute(x: Array, y: Array) -> Array:
        result: Array = x / (1 + np.exp(-x)) * y + np.exp(x) / np.sqrt(y * y + 1)
        return result

    return wrong(compute(x, y), compute(x.astype(np.longdouble), y.astype(np.longdouble)), dtype)


def bandwidth(size: int, threads: int) -> float:
    """Return the bytes that ``threads`` threads read in a second, of ``size`` bytes in all."""
    words = np.ones(size // 8, np.int64)
    parts = np.array_split(words, threads)
    with ThreadPoolExecutor(threads) as pool:
        return words.nbytes / _best(lambda: list(pool.map(np.bitwise_or.reduce, parts)), 3 * _BUDGET)


def rate(dtype: str) -> float:
    """Return the operations of a square product in a second (2 for a multiplication and an addition)."""
    x, w = (_random((_SIZE, _SIZE), dtype, seed) for seed in (3, 4))
    return 2.0 * _SIZE**3 / _best(lambda: x @ w, _BUDGET)


def _best(work: Callable[[], object], budget: float) -> float:
    """Return the seconds of the fastest run after a first one that warms up."""
    work()
    best, spent = float("inf"), 0.0
    while spent < budget:
        began = time.perf_counter()
        work()
        seconds = time.perf_counter() - began
        best, spent = min(best, seconds), spent + seconds
    return best


def _exact(x: Array, w: Array) -> Array:
    """Return the product by sums of its own, not by the library that is probed."""
    wide: Array = np.einsum("mk,nk->mn", x.astype(np.longdouble), w.astype(np.longdouble))
    return wide


def wrong(got: Array, expected: Array, dtype: str) -> str:
    """Return the error in the rows of a matrix: not finite, or one is off; empty for none."""
    if not np.isfinite(got).all():
        return "values that are not finite"
    errors = np.abs(got - expected).max(axis=1) / np.abs(expected).max(axis=1)
    worst = int(errors.argmax())
    if errors[worst] > _TOLERANCE[dtype]:
        return f"wrong numbers, row {worst} is off by {float(errors[worst]):.2g}"
    return ""


def _random(shape: tuple[int, ...], dtype: str, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(DTYPES[dtype])
