"""One rung against ``ref`` on a small seeded case: every row, and the scale; runs in a child process."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from rung import formats
from rung.core.types import Case, Rung
from rung.formats import Encoded
from rung.formats.families import grouped
from rung.ops import LADDERS
from rung.ops.linear.tolerance import tolerance
from rung.ops.rasterize import Camera, Splats
from rung.run.self_check import model

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
    if chosen.family == "grouped":
        return grouped.sample(chosen, (rows, columns), generator)
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
    checks = {"linear": _linear, "embedding": _embedding, "attention": _attention}
    checks |= {"decode_step": _step, "rasterize": _rasterize}
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
    got = model.steps(rung.load(), case)
    want = model.steps(LADDERS["decode_step"].rung("ref").load(), case)
    return compare(got, want, want.std(dim=1, keepdim=True), 0.1)


def splats(count: int, degree: int | None, seed: int = _SEED) -> Splats:
    """Seeded splats before a camera at the origin, thin enough that each is seen."""
    generator = torch.Generator().manual_seed(seed)
    spread = torch.tensor([1.2, 1.2, 0.6])
    means = (torch.rand(count, 3, generator=generator) - 0.5) * 2 * spread + torch.tensor([0.0, 0.0, 3.5])
    return Splats(
        means,
        torch.randn(count, 4, generator=generator),
        torch.rand(count, 3, generator=generator) * 0.03 + 0.01,
        torch.rand(count, generator=generator) * 0.3 + 0.1,
        torch.randn(count, 16 if degree is not None else 1, 3, generator=generator) * 0.3 + 0.2,
    )


def gradients(implementation: Any, given: Splats, camera: Camera, place: str = "cpu") -> tuple[Any, list[torch.Tensor]]:
    """The picture, and the gradients of a seeded sum of it by every tensor of the splats and by the pose."""
    taken = [tensor.detach().to(place).requires_grad_() for tensor in given]
    pose = torch.eye(4, dtype=given.means.dtype, device=place).requires_grad_()
    made = implementation.apply(Splats(*taken), pose, camera)
    generator = torch.Generator().manual_seed(_SEED)
    loss = sum(
        (picture * torch.randn(picture.shape, generator=generator).to(picture)).sum()
        for picture in (made.color, made.alpha, made.depth)
    )
    loss.backward()
    return made, [slope.cpu() for slope in (tensor.grad for tensor in (*taken, pose)) if slope is not None]


def _rasterize(rung: Rung, case: Case, place: str) -> str:
    """Thousands of splats and every one's gradients: one in a thousand that vanishes is seen.

    A pixel may decide another way where it lies on a threshold, which changes it by 1/255 and its splats a little.
    """
    degree = case.options.get("degree")
    camera = Camera(112, 96, 100.0, 101.0, 55.5, 48.5, degree, bool(case.options.get("antialiased")))
    given = splats(4096, degree)
    if degree is None:
        given = given._replace(colors=given.colors[:, 0])
    got, slopes = gradients(rung.load(), given, camera, place)
    want, right = gradients(LADDERS["rasterize"].rung("ref").load(), Splats(*(x.double() for x in given)), camera)
    for name, scale in (("color", 1.0), ("alpha", 1.0), ("depth", 5.0)):
        here, there = getattr(got, name).detach().cpu(), getattr(want, name).detach()
        reason = compare(here, there, torch.tensor(scale), 1 / 128)
        if reason or float((here - there).abs().mean()) > 1e-4 * scale:
            return f"{name}: {reason or 'differs all over'}"
    for name, here, there in zip((*Splats._fields, "pose"), slopes, right, strict=True):
        rows, right_rows = (slope.double().reshape(len(slope), -1) for slope in (here, there))
        size = right_rows.norm(dim=1, keepdim=True) + 1e-3 * right_rows.norm() / len(right_rows) ** 0.5
        reason = compare(rows, right_rows, size, 0.05)
        if reason or float((rows - right_rows).norm() / right_rows.norm()) > 2e-3:
            return f"gradient of {name}: {reason or 'differs all over'}"
    return ""
