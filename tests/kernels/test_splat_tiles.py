"""Triton's kernels of splats: values by its interpreter against ``ref``, and code for every card that they are said to
run on. The interpreter must be chosen before Triton is imported, so values are computed in a process of their own."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from rung.core.types import Case
from rung.hardware import catalog
from rung.ops import LADDERS

pytest.importorskip("triton")

_VALUES = """
import json, os
os.environ["TRITON_INTERPRET"] = "1"
import torch
from rung.ops.rasterize import LADDER, Camera, Splats
from rung.ops.rasterize.self_check import gradients, splats

camera, given = Camera(18, 17, 30.0, 31.0, 8.2, 9.1, 1, True), splats(14, 1)
given.opacities[:3] = 0.9999
given.means[:, :2] *= 0.3
given.means[:3, :2] *= 0.1  # opaque and in the middle: pixels that take no more
given.scales[:3] = 0.4
given.means[5, 2] = -1.0  # behind the camera
rung, ref = (LADDER.rung(name).load() for name in ("triton.tile", "ref"))
got, slopes = gradients(rung, given, camera)
want, right = gradients(ref, Splats(*(tensor.double() for tensor in given)), camera)
found = {name: float((getattr(got, name) - getattr(want, name)).abs().max()) for name in ("color", "alpha", "depth")}
for name, here, there in zip((*Splats._fields, "pose"), slopes, right, strict=True):
    found["gradient of " + name] = float((here - there).abs().max() / there.abs().max())
told = []
for implementation, kind in ((rung, torch.float32), (ref, torch.float64)):
    screen = torch.zeros(14, 4, dtype=kind, requires_grad=True)
    taken = Splats(*(tensor.detach().to(kind) for tensor in given))
    implementation.apply(taken, torch.eye(4, dtype=kind), camera, screen).color.square().sum().backward()
    told.append(screen.grad)
found["gradient of screen"] = float((told[0] - told[1]).abs().max() / told[1].abs().max())
found["most"] = float(want.alpha.max())
print(json.dumps(found))
"""
_F32, _I64 = "*fp32", "*i64"
_TILE = {"across": "i32", "width": "i32", "height": "i32"}
_SIGNATURES = {
    "composite": {"records": _F32, "listed": _I64, "starts": _I64, "states": _F32, **_TILE},
    "blame": dict.fromkeys(("records", "states", "gradients", "parts"), _F32)
    | dict.fromkeys(("listed", "entries", "starts"), _I64)
    | {"across": "i32", "kept": "constexpr"},
    "sum_parts": {"parts": _F32, "starts": _I64, "sums": _F32, "count": "i32"}
    | {"kept": "constexpr", "block": "constexpr"},
}
CARDS = {key: row for key, row in catalog.architectures().items() if row.kind in ("cuda", "rocm")}


def test_the_interpreter_computes_what_ref_computes():
    done = subprocess.run([sys.executable, "-c", _VALUES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("most") > 0.9998
    assert {name: error for name, error in found.items() if not error < (1e-2 if "gradient" in name else 1e-5)} == {}


def said(key):
    """Return whether the ladder's rung takes the architecture, its packages aside."""
    device = catalog.device(next(p.name for p in catalog.products() if p.arch == key))
    case = Case("rasterize", "f32", "f32", (1000, 64, 64))
    return bool(LADDERS["rasterize"].rung("triton.tile").verdict(case, device))


def code(key, names=tuple(_SIGNATURES)):
    """The text of kernels for an architecture; raises what Triton raises."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from rung.kernels.gpu import splat_tiles

    row = CARDS[key]
    if row.kind == "cuda":
        major, minor = row.cc.split(".")
        target = GPUTarget("cuda", 10 * int(major) + int(minor), 32)
    else:
        target = GPUTarget("hip", key, 64 if key.startswith("gfx9") else 32)
    text = ""
    for name in names:
        signature = _SIGNATURES[name]
        constants = {key: value for key, value in {"kept": 12, "block": 32}.items() if key in signature}
        compiled = triton.compile(ASTSource(getattr(splat_tiles, name), signature, constants), target=target)
        text += compiled.asm["ptx" if row.kind == "cuda" else "amdgcn"]
    return text


def test_the_sums_of_a_splat_are_formed_together(tmp_path, monkeypatch):
    """Ten sums over pixels, each alone, would wait at 20 barriers and more."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    text = code("sm_86", ("blame",))
    assert 0 < text.count("bar.sync") <= 8


@pytest.mark.parametrize(
    "key",
    [
        key if key in ("sm_75", "gfx1100") else pytest.param(key, marks=pytest.mark.slow)
        for key in CARDS
        if any(product.arch == key for product in catalog.products())
    ],
)
def test_a_card_is_taken_exactly_where_the_kernels_compile_for_it(key, tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    if said(key):
        text = code(key)
        assert not [unit for unit in ("mma", "mfma", "atom.", "red.global", "global_atomic") if unit in text]
        return
    device = catalog.device(next(p.name for p in catalog.products() if p.arch == key))
    if "triton" in device.software:
        from triton.runtime.errors import TritonError  # what its assembler refuses

        with pytest.raises((RuntimeError, ValueError, TritonError)):
            code(key)
