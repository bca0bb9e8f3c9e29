"""LLM.int8() (arXiv:2208.07339) for ``torch.ops.bitsandbytes``: codes and sums to the bit."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from rung.exec.fallbacks import int_mm
from rung.run import torch_private


def int8_vectorwise_quant(a: Tensor, threshold: float = 0.0) -> tuple[Tensor, Tensor, Tensor | None]:
    """[rows, columns] -> codes int8, the largest magnitude of each row, and the columns with outliers.

    With a threshold, magnitudes from it on are no part of their row, and of several rows their columns become 0.
    """
    columns, values = None, a
    if threshold > 0:
        outliers = a.abs() >= threshold
        columns = outliers.reshape(-1, a.shape[-1]).any(dim=0).nonzero()[:, 0]
        values = a.masked_fill(outliers, 0)
    peaks = values.abs().amax(dim=-1).float()
    codes = (values * (127 / peaks)[..., None]).round().nan_to_num(0).to(torch.int8)
    if columns is not None and a.numel() > a.shape[-1]:
        codes[..., columns] = 0
    return codes, peaks.reshape(-1), columns


def int8_double_quant(a: Tensor, threshold: float = 0.0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """The same, and codes and magnitudes of the columns as well."""
    codes, peaks, columns = int8_vectorwise_quant(a, threshold)
    inliers = a.masked_fill(a.abs() >= threshold, 0) if threshold > 0 else a
    tall = inliers.abs().reshape(-1, a.shape[-1]).amax(dim=0).float()
    other = (inliers * 127.0 / tall).round().nan_to_num(0).to(torch.int8)
    return codes, other, peaks, tall, columns


def int8_vectorwise_dequant(a: Tensor, stats: Tensor) -> Tensor:
    """Codes int8 [rows, columns] and magnitudes -> f32."""
    return a * stats.view(-1, 1) * 7.874015718698502e-3  # 1 / 127 in float32


def int8_linear_matmul(a: Tensor, b: Tensor) -> Tensor:
    """int8 [..., K] times int8 [N, K]: int32 [..., N], exact for any K."""
    flat = a.reshape(-1, a.shape[-1])
    native = a.device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX512"
    return (torch_private.int_mm if native else int_mm)(flat, b.t()).view(*a.shape[:-1], b.shape[0])


def int8_mm_dequant(
    a: Tensor, row_stats: Tensor, col_stats: Tensor, dtype: torch.dtype | None = None, bias: Tensor | None = None
) -> Tensor:
    """Sums int32 [..., N] -> floats, by default f16, with a bias."""
    for name, tensor, expected in (("A", a, torch.int32), ("row_stats", row_stats, torch.float32)):
        if tensor.dtype != expected:
            raise ValueError(f"{name} must be {expected}, got {tensor.dtype}")
    scale = row_stats.reshape(-1, 1) * col_stats.reshape(1, -1)
    out = a.view(-1, a.shape[-1]) * scale * 6.200124e-05  # 1 / 127^2, in bitsandbytes' digits
    if bias is not None:
        out = out + bias
    return out.to(dtype or torch.float16).view(a.shape)


def int8_scaled_mm(
    a: Tensor,
    b: Tensor,
    row_stats: Tensor,
    col_stats: Tensor,
    bias: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Both of these."""
    return int8_mm_dequant(int8_linear_matmul(a, b), row_stats, col_stats, dtype, bias)


def int8_mixed_scaled_mm(
    a: Tensor,
    codes: Tensor,
    weight: Tensor,
    row_stats: Tensor,
    col_stats: Tensor,
    outlier_cols: Tensor | None = None,
    bias: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The same with the columns of outliers in the dtype of a, which are returned too."""
    out = int8_scaled_mm(codes, weight, row_stats, col_stats, bias, a.dtype)
    if outlier_cols is None or not outlier_cols.numel():
        return out, a.new_empty(0)
    apart = a[..., outlier_cols].contiguous()
    return out + linear(apart, int8_vectorwise_dequant(weight[:, outlier_cols], col_stats).to(a.dtype)), apart
