"""Check a rung of embedding: rows of a seeded weight."""

from __future__ import annotations

import numpy as np

from rung import formats
from rung.core.types import Case, Rung
from rung.ops.proof import OUT, as_tensor, columns_of, compare, on, weights


def check(rung: Rung, case: Case, location: str) -> str:
    """Compare rows, one of them twice."""
    encoded = weights(case.format, OUT, columns_of(case.format))
    dense = formats.decode(encoded)
    implementation = rung.load()
    state = implementation.prepare(encoded, dtype=case.dtype, threads=2, **on(rung, location))
    ids = [0, 17, OUT - 1, 17]
    if rung.without_torch:
        got = implementation.rows(state, ids)
    else:
        got = implementation.look_up(state, as_tensor(np.array(ids), location)).cpu().numpy()
    return compare(got, dense[ids], np.abs(dense[ids]).max(axis=1, keepdims=True), 1e-6)
