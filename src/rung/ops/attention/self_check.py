"""Check a rung of attention: seeded queries over caches of two lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

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
        (k, exact_k), (v, exact_v) = (_stored(x, case.format) for x in (k, v))
        options = {
            "start": keys - queries,
            "scale": size**-0.5,
            "window": case.options.get("window"),
            "softcap": case.options.get("softcap"),
        }
        if rung.without_torch:
            got = rung.load().attend(q, k, v, **options)
        else:
            cache = (as_tensor(x, location) for x in (exact_k, exact_v))
            if case.format == "bf16":
                cache = (x.bfloat16() for x in cache)
            got = rung.load().apply(as_tensor(q, location), *cache, **options).cpu().numpy()
        want = numpy_sdpa.RUNG.attend(q.astype(np.float64), exact_k, exact_v, **options)
        reason = compare(got, want, np.abs(want).max(axis=-1, keepdims=True), 1e-3)
        if reason:
            return f"{keys} keys: {reason}"
    return ""


def _stored(values: npt.NDArray[np.float32], format: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return values as a cache holds them, of bfloat16 the words, and what these say."""
    if format == "bf16":
        words = (values.view(np.uint32) >> 16).astype(np.uint16)
        return words, (words.astype(np.uint32) << 16).view(np.float32)
    stored: npt.NDArray[Any] = values.astype({"f32": np.float32, "f16": np.float16}[format])
    return stored, stored
