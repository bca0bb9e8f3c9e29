"""Computes small cases on a device and compares every value with float64: "it ran" is no proof.

Each function returns an empty string, or a sentence that says what is wrong with the numbers. What torch does not do at
all it raises, and the parent takes its message as the reason.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from rung.kernels.gpu.dtypes import TORCH_DTYPE
from rung.run.probes.start import device
from rung.run.torch_private import int_mm, scaled_mm

DTYPES = {**TORCH_DTYPE, "f64": torch.float64, "int8": torch.int8, "fp8": torch.float8_e4m3fn}
#: Largest relative error (L2) of a whole result against float64 on the same rounded inputs. Between one and a few
#: units in the last place of the dtype, plus what an f16 accumulator loses over the 256 products summed here.
TOLERANCE = {"f32": 2e-5, "f16": 4e-3, "bf16": 1.2e-2, "f64": 1e-12, "int8": 0.0, "fp8": 1.2e-2}
#: (rows, inner, columns): one row, odd sizes, and sizes that matrix units take.
_SHAPES = ((1, 256, 64), (33, 95, 47), (64, 256, 128))
#: int8 and fp8 products take multiples of 16 and more than 16 rows.
_ALIGNED = ((32, 64, 48), (64, 256, 128))


def matmul(dtype: str) -> str:
    """x [M, K] times w [N, K] transposed, as a linear layer does, in three shapes."""
    for rows, inner, columns in _ALIGNED if dtype in ("int8", "fp8") else _SHAPES:
        x, w = _random((rows, inner), dtype, 1), _random((columns, inner), dtype, 2)
        got = product(x.to(device()), w.to(device()))
        expected = x.double() @ w.double().T
        if problem := wrong(got, expected, TOLERANCE[dtype]):
            return f"{rows}x{inner} times {inner}x{columns}: {problem}"
    return ""


def attention(dtype: str) -> str:
    """Causal attention of 2 heads, 40 positions, 64 wide; and one query over 37 keys."""
    for queries, keys in ((40, 40), (1, 37)):
        q, k, v = (_random((1, 2, n, 64), dtype, s) for s, n in ((3, queries), (4, keys), (5, keys)))
        causal = queries == keys
        at = device()
        got = functional.scaled_dot_product_attention(q.to(at), k.to(at), v.to(at), is_causal=causal)
        scores = q.double() @ k.double().transpose(-1, -2) / 8.0
        if causal:
            scores = scores.masked_fill(torch.ones(queries, keys, dtype=torch.bool).triu(1), float("-inf"))
        # Implementations may round the probabilities to the dtype: twice the tolerance.
        expected = scores.softmax(-1) @ v.double()
        if problem := wrong(got.reshape(-1, 64), expected.reshape(-1, 64), 2 * TOLERANCE[dtype]):
            return f"{queries} queries over {keys} keys: {problem}"
    return ""


def elementwise(dtype: str) -> str:
    """Sums, products, exponentials and roots of a vector; for fp8 the conversion, for int8 exact arithmetic."""
    x, y = _random((8, 97), dtype, 6), _random((8, 97), dtype, 7)
    there, other = x.to(device()), y.to(device())
    if dtype == "fp8":
        source = _random((8, 97), "f32", 8)
        return wrong(source.to(device()).to(DTYPES["fp8"]).float(), source.to(DTYPES["fp8"]).double(), 0.0)
    if dtype == "int8":
        small = torch.tensor(4, dtype=torch.int8)
        got = there // small.to(device()) + other // small.to(device())
        return wrong(got, torch.floor(x.double() / 4) + torch.floor(y.double() / 4), 0.0)
    got = functional.silu(there) * other + torch.exp(there) * torch.rsqrt(other * other + 1.0)
    a, b = x.double(), y.double()
    expected = a / (1.0 + torch.exp(-a)) * b + torch.exp(a) / torch.sqrt(b * b + 1.0)
    return wrong(got, expected, TOLERANCE[dtype])


def product(x: Tensor, w: Tensor) -> Tensor:
    """x [M, K] times w [N, K] transposed, on torch's own road for the dtype: int8 to int32, fp8 to bf16."""
    if x.dtype == torch.int8:
        return cast(Tensor, int_mm(x, w.T))
    if x.dtype == DTYPES["fp8"]:
        one = torch.ones((), device=x.device)
        return cast(Tensor, scaled_mm(x, w.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16))
    return x @ w.T


def wrong(got: Tensor, expected: Tensor, tolerance: float) -> str:
    """Return the error in a matrix: not finite, off as a whole, off in scale, or off in a single row; empty for none.

    ``tolerance`` is a relative error in L2. A row may have twice as much; the scale a quarter, for rounding averages
    out. Zero asks for equality.
    """
    got = got.detach().cpu().double()
    if got.shape != expected.shape:
        return f"the shape is {tuple(got.shape)}, not {tuple(expected.shape)}"
    if not bool(torch.isfinite(got).all()):
        return "values that are not finite"
    if tolerance == 0.0:
        rows = (got != expected).any(dim=-1)
        return f"wrong numbers, first in row {int(rows.nonzero()[0])}" if bool(rows.any()) else ""
    size = float(expected.norm())
    whole = float((got - expected).norm()) / size
    if whole > tolerance:
        return f"wrong numbers, off by {whole:.2g} as a whole"
    errors = (got - expected).norm(dim=-1) / expected.norm(dim=-1).clamp_min(1e-30)
    worst = int(errors.argmax())
    if float(errors[worst]) > 2 * tolerance:
        return f"wrong numbers, row {worst} is off by {float(errors[worst]):.2g}"
    scale = float((got * expected).sum()) / size**2
    if abs(scale - 1.0) > tolerance / 4:
        return f"wrong numbers, the scale is {scale:.4g}"
    return ""


def _random(shape: tuple[int, ...], dtype: str, seed: int) -> Tensor:
    """Seeded Gaussian values on the CPU, rounded to the dtype; integers over the whole range for int8."""
    source = torch.Generator().manual_seed(seed)
    if dtype == "int8":
        return torch.randint(-128, 128, shape, generator=source, dtype=torch.int8)
    return torch.randn(shape, generator=source, dtype=torch.float32).to(DTYPES[dtype])
