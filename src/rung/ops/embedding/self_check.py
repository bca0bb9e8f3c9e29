"""Check a rung of embedding: rows of a seeded weight."""

from __future__ import annotations

import torch

from rung import formats
from rung.core.types import Case, Rung
from rung.ops.proof import OUT, columns_of, compare, weights


def check(rung: Rung, case: Case, place: str) -> str:
    """Compare rows, one of them twice."""
    encoded = weights(case.format, OUT, columns_of(case.format))
    dense = torch.from_numpy(formats.decode(encoded))
    implementation = rung.load()
    state = implementation.prepare(encoded, dtype=case.dtype, threads=2)
    ids = torch.tensor([0, 17, OUT - 1, 17])
    got = implementation.look_up(state, ids.to(place)).cpu()
    return compare(got, dense[ids], dense[ids].abs().amax(1, keepdim=True), 1e-6)
