"""Check a rung of attention: seeded queries over caches of two lengths."""

from __future__ import annotations

import numpy as np

from rung.core.types import Case, Rung
from rung.ops.attention import numpy_sdpa
from rung.ops.proof import SEED, as_tensor, compare


def check(rung: Rung, case: Case, location: str) -> str:
    """Compare what each query gathers, with the window and the cap of the case."""
    queries, _, heads, kv_heads, size = case.shape
    queries = min(queries, 5)
    generator = np.random.default_rng(SEED)
    for keys in (queries, 67):
        shapes = ((queries, heads, size), (keys, kv_heads, size), (keys, kv_heads, size))
        q, k, v = (generator.standard_normal(shape, dtype=np.float32) for shape in shapes)
        if case.format == "f16":
            k, v = k.astype(np.float16), v.astype(np.float16)
        options = {
            "start": keys - queries,
            "scale": size**-0.5,
            "window": case.options.get("window"),
            "softcap": case.options.get("softcap"),
        }
        if rung.without_torch:
            got = rung.load().attend(q, k, v, **options)
        else:
            got = rung.load().apply(*(as_tensor(x, location) for x in (q, k, v)), **options).cpu().numpy()
        want = numpy_sdpa.RUNG.attend(q.astype(np.float64), k, v, **options)
        reason = compare(got, want, np.abs(want).max(axis=-1, keepdims=True), 1e-3)
        if reason:
            return f"{keys} keys: {reason}"
    return ""
