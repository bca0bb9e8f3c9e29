"""Check a rung of linear: products of seeded weights and activations."""

from __future__ import annotations

import math

import numpy as np

from rung import formats
from rung.core.types import Case, Rung
from rung.ops.linear import FEW
from rung.ops.linear.tolerance import rounding, tolerance
from rung.ops.proof import OUT, as_tensor, columns_of, compare, on, weights

#: Rows of activations. 1, 2, up to 4 and up to 8 are computed by code of their own, compiled here before it is used.
_FEW, _MANY = (1, 2, 3, 5), (9, 37)


def check(rung: Rung, case: Case, device: str) -> str:
    """Compare products of a few rows, or of many."""
    columns = columns_of(case.format)
    encoded = weights(case.format, OUT, columns)
    dense = formats.decode(encoded).astype(np.float64)
    implementation = rung.load()
    state = implementation.prepare(encoded, dtype=case.dtype, threads=2, **on(rung, device))
    for rows in _FEW if case.shape[0] <= FEW else _MANY:
        x = np.random.default_rng(rows).standard_normal((rows, columns), dtype=np.float32)
        want = x.astype(np.float64) @ dense.T
        sizes = np.linalg.norm(x.astype(np.float64), axis=1)[:, None] * np.linalg.norm(dense, axis=1)[None, :]
        if rung.without_torch:
            got = implementation.multiply(state, x)
        else:
            got = implementation.apply(state, as_tensor(x, device)).cpu().numpy()
        kind = rung.name, case.format, case.dtype
        allowed = tolerance(*kind) * sizes / math.sqrt(columns) + rounding(*kind) * np.abs(want)
        reason = compare(got, want, allowed, 1.0)
        if reason:
            return f"{rows} rows: {reason}"
    return ""
