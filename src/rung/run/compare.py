"""One rung against ``ref`` on a small seeded case: every row, and the scale; runs in a child process."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from rung import formats
from rung.core.types import Case, Rung
from rung.formats import Encoded
from rung.ops import LADDERS
from rung.ops.linear.tolerance import tolerance
from rung.run import tiny

_SEED = 20_261_121
_OUT = 83  # not a multiple of any tile


def compare(got: torch.Tensor, want: torch.Tensor, scale: torch.Tensor, bound: float) -> str:
    """Where two results differ by more than ``bound * scale``, in words; empty when nowhere.

    ``scale`` broadcasts to the shape of both. A NaN or Inf differs from everything.
    """
    if got.shape != want.shape:
        return f"the shape is {tuple(got.shape)} instead of {tuple(want.shape)}"
    if not bool(torch.isfinite(got).all()):
        return f"{int((~torch.isfinite(got)).sum())} values are NaN or infinite"
    error = ((got.double() - want.double()).abs() / scale.double().clamp_min(1e-30)).reshape(-1)
    worst = int(error.argmax())
    if float(error[worst]) <= bound:
        return ""
    place = tuple(int(i) for i in np.unravel_index(worst, tuple(got.shape)))
    return f"value {place} is {float(got[place]):.6g} instead of {float(want[place]):.6g}"


def weights(format: str, rows: int, columns: int) -> Encoded:
    """A small seeded weight in that format; formats without an encoder get random blocks that are finite."""
    generator = np.random.default_rng(_SEED)
    chosen = formats.get(format)
    if chosen.encodes:
        return formats.encode(generator.standard_normal((rows, columns), dtype=np.float32), chosen, "self-check")
    row_bytes = chosen.bytes((1, columns))
    kept: list[np.ndarray] = []
    while sum(map(len, kept)) < rows:
        data = generator.integers(0, 256, (4 * rows, row_bytes), dtype=np.uint8)
        values = formats.decode(Encoded(chosen, (4 * rows, columns), {"data": data}))
        top = np.abs(values).max(axis=1)
        kept.append(data[np.isfinite(values).all(axis=1) & (top > 1e-6) & (top < 1e6)])
    return Encoded(chosen, (rows, columns), {"data": np.ascontiguousarray(np.concatenate(kept)[:rows])})


def perform(rung: dict[str, Any], case: dict[str, Any], place: str = "cpu") -> dict[str, Any]:
    """The verdict on one rung for one class of cases as JSON, ``{ok, reason}``; ``place`` is torch's device."""
    chosen, asked = Rung.from_json(rung), Case.from_json(case)
    checks = {"linear": _linear, "embedding": _embedding, "attention": _attention, "decode_step": _step}
    check = checks[asked.op]
    reason = check(chosen, asked, place)
    return {"ok": not reason, "reason": reason}


def _columns(format: str) -> int:
    block = formats.get(format).block
    return 512 if block in (0, 1) else math.lcm(block, 256)


def _linear(rung: Rung, case: Case, place: str) -> str:
    columns = _columns(case.format)
    encoded = weights(case.format, _OUT, columns)
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


def _embedding(rung: Rung, case: Case, place: str) -> str:
    encoded = weights(case.format, _OUT, _columns(case.format))
    dense = torch.from_numpy(formats.decode(encoded))
    implementation = rung.load()
    state = implementation.prepare(encoded, dtype=case.dtype, threads=2)
    ids = torch.tensor([0, 17, _OUT - 1, 17])
    got = implementation.look_up(state, ids.to(place)).cpu()
    return compare(got, dense[ids], dense[ids].abs().amax(1, keepdim=True), 1e-6)


def _attention(rung: Rung, case: Case, place: str) -> str:
    queries, _, heads, kv_heads, size = case.shape
    queries = min(queries, 5)
    generator = torch.Generator().manual_seed(_SEED)
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
        want = LADDERS["attention"].rung("ref").load().apply(q.double(), k.double(), v.double(), **options)
        reason = compare(got, want, want.abs().amax(-1, keepdim=True), 1e-3)
        if reason:
            return f"{keys} keys: {reason}"
    return ""


def _step(rung: Rung, case: Case, place: str) -> str:
    """Every token of a tiny decoder; both compute with the same int8 products, so only the order of sums differs."""
    got = tiny.steps(rung.load(), case)
    want = tiny.steps(LADDERS["decode_step"].rung("ref").load(), case)
    return compare(got, want, want.std(dim=1, keepdim=True), 0.1)
