"""Check a rung of linear: products of seeded weights and activations."""

from __future__ import annotations

import math

import numpy as np
import torch

from rung import formats
from rung.core.types import Case, Rung
from rung.ops.linear.tolerance import tolerance
from rung.ops.proof import OUT, columns_of, compare, weights


def check(rung: Rung, case: Case, place: str) -> str:
    """Compare products of a few rows, or of many."""
    columns = columns_of(case.format)
    encoded = weights(case.format, OUT, columns)
    dense = torch.from_numpy(formats.decode(encoded)).double()
    implementation = rung.load()
    state = implementation.prepare(encoded, dtype=case.dtype, threads=2)
    for rows in (1, 3) if case.shape[0] <= 8 else (9, 37):
        x = torch.from_numpy(np.random.default_rng(rows).standard_normal((rows, columns), dtype=np.float32))
        want = x.double() @ dense.T
        scale = x.double().norm(dim=1)[:, None] * dense.norm(dim=1)[None, :] / math.sqrt(columns)
        got = implementation.apply(state, x.to(place)).cpu()
        reason = compare(got, want, scale, tolerance(rung.name, case.format, case.dtype))
        if reason:
            return f"{rows} rows: {reason}"
    return ""
