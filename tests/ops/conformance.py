"""Shared by the conformance tests of ladders: devices, formats, and errors in the unit of ``tolerance``."""

import torch

from rung import formats
from rung.core.types import Capability, Case, Device, Format, Level, Proof
from rung.core.value import FrozenDict
from rung.ops.linear.tolerance import SCALE, spread, tolerance
from tests.support.weights import weight as weight  # a name of this module too

CPU = Device(
    "cpu",
    "cpu",
    "this processor",
    "x86_64",
    2**34,
    software=FrozenDict({"numba": "0", "torch": "2"}),
    capabilities=FrozenDict(
        {name: Capability(name, Level.NATIVE, Proof.PROBE) for name in ("isa.kernels", "matmul.bf16")}
    ),
)

_MORE = ("nf4:128", "fp4:4096", "nf4:256:nested", "u4:64:ordered", "u8:32:bf16:ordered", "e4m3:16:bf16", "e4m3:512:f16")
FORMATS = [*formats.FORMATS.values(), *map(formats.get, _MORE)]


def wrong(rung: str, format: str, dtype: str, got: torch.Tensor, x: torch.Tensor, dense: torch.Tensor) -> str:
    """Say what is wrong with a product: NaN, a value, a row of weights, or the scale of all; empty when nothing is."""
    want = x.double() @ dense.double().T
    unit = x.double().norm(dim=1)[:, None] * dense.double().norm(dim=1)[None, :] / x.shape[1] ** 0.5
    if got.shape != want.shape or not bool(torch.isfinite(got).all()):
        return f"shape {tuple(got.shape)} or NaN"
    error = (got.double() - want) / unit.clamp_min(1e-30)
    if float(error.abs().max()) > tolerance(rung, format, dtype):
        return f"a value: {float(error.abs().max())}"
    rows = error.square().mean(dim=0).sqrt()
    if len(x) >= 32 and float(rows.max()) > 1.5 * spread(rung, format, dtype):
        return f"row {int(rows.argmax())}: {float(rows.max())}"
    scale = float((got.double() / unit.clamp_min(1e-30) * want / unit.clamp_min(1e-30)).sum())
    scale /= float((want / unit.clamp_min(1e-30)).square().sum())
    if want.numel() > 1000 and abs(scale - 1) > SCALE:
        return f"scale {scale}"
    return ""


def case(op: str, format: Format, shape: tuple[int, ...], dtype: str = "f32") -> Case:
    """A case of a product."""
    return Case(op, format.name, dtype, shape)
