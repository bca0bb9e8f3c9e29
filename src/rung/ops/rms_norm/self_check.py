"""Check a rung of rms_norm: seeded rows of several sizes of numbers."""

from __future__ import annotations

import torch

from rung.core.types import Case, Rung
from rung.ops.proof import SEED, compare
from rung.ops.rms_norm import ref


def check(rung: Rung, case: Case, place: str) -> str:
    """Compare rows, small numbers among them, for which epsilon counts."""
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(5, 83, generator=generator) * torch.tensor([1.0, 1e-3, 1e3, 0.0, 1.0])[:, None]
    weight = torch.randn(83, generator=generator)
    got = rung.load().apply(x.to(place), weight.to(place), epsilon=1e-6).cpu()
    want = ref.RUNG.apply(x.double(), weight.double(), epsilon=1e-6)
    return compare(got, want, want.abs().amax(1, keepdim=True).clamp_min(1e-6), 1e-5)
