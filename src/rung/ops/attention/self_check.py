"""Check a rung of attention: seeded queries over caches of two lengths."""

from __future__ import annotations

import torch

from rung.core.types import Case, Rung
from rung.ops.attention import ref
from rung.ops.proof import SEED, compare


def check(rung: Rung, case: Case, place: str) -> str:
    """Compare what each query gathers, with the window and the cap of the case."""
    queries, _, heads, kv_heads, size = case.shape
    queries = min(queries, 5)
    generator = torch.Generator().manual_seed(SEED)
    for keys in (queries, 67):
        q = torch.randn(queries, heads, size, generator=generator)
        k = torch.randn(keys, kv_heads, size, generator=generator)
        v = torch.randn(keys, kv_heads, size, generator=generator)
        if case.format == "f16":
            k, v = k.half(), v.half()
        options = {
            "start": keys - queries,
            "scale": size**-0.5,
            "window": case.options.get("window"),
            "softcap": case.options.get("softcap"),
        }
        got = rung.load().apply(q.to(place), k.to(place), v.to(place), **options).cpu()
        want = ref.RUNG.apply(q.double(), k.double(), v.double(), **options)
        reason = compare(got, want, want.abs().amax(-1, keepdim=True), 1e-3)
        if reason:
            return f"{keys} keys: {reason}"
    return ""
