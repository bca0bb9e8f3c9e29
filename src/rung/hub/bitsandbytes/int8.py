"""LLM.int8() (arXiv:2208.07339) for ``torch.ops.bitsandbytes``: codes and sums to the bit.

On NVIDIA and AMD GPUs kernels in CUDA C quantize rows, and multiply up to 16 of them, with the same bits.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor
from torch.nn.functional import linear

from rung.core.errors import SoftwareMissing
from rung.core.types import Case, Device, StepClass, StepDown
from rung.diagnosis import classify
from rung.exec.fallbacks import int_mm
from rung.kernels.cuda.source import MOST_ROWS
from rung.kernels.gpu import cuda_products
from rung.kernels.gpu.dtypes import DTYPE_NAME
from rung.nn.quantized import binding
from rung.ops.linear import check_cuda
from rung.run import torch_private


def int8_vectorwise_quant(a: Tensor, threshold: float = 0.0) -> tuple[Tensor, Tensor, Tensor | None]:
    """[rows, columns] -> codes int8, the largest magnitude of each row, and the columns with outliers.

    With a threshold, magnitudes from it on are no part of their row, and of several rows their columns become 0.
    """
    columns, values = None, a
    if a.numel() and a.dtype in DTYPE_NAME and _has_kernels(a.device):
        rounded = float(torch.tensor(threshold, dtype=a.dtype, device="cpu"))  # torch compares in the dtype of a
        codes, peaks, apart = cuda_products.quantized_rows(a.reshape(-1, a.shape[-1]), rounded)
        columns = apart.nonzero()[:, 0] if threshold > 0 else None
        if columns is not None and len(codes) > 1:
            codes[:, columns] = 0
        return codes.view(a.shape), peaks, columns
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
    if _few(flat, b):
        return cuda_products.multiply_bytes(flat, b).view(*a.shape[:-1], b.shape[0])
    if flat.shape[1:] != b.shape[1:]:
        raise ValueError(f"A {tuple(flat.shape)} and B {tuple(b.shape)} do not have the same number of columns")
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
    flat, chosen = a.reshape(-1, a.shape[-1]), dtype or torch.float16
    if chosen in DTYPE_NAME and _few(flat, b) and _scale(flat, b, row_stats, col_stats, bias):
        y = cuda_products.multiply_bytes(flat, b, (row_stats.reshape(-1), col_stats.reshape(-1)), bias, chosen)
        return y.view(*a.shape[:-1], b.shape[0])
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


def _few(flat: Tensor, b: Tensor) -> bool:
    """Return whether a kernel multiplies these codes [M, K] and [N, K]; torch refuses what is none."""
    fits = b.ndim == 2 and len(b) > 0 and flat.shape[1:] == b.shape[1:] and flat.shape[1] % 16 == 0
    codes = flat.dtype == b.dtype == torch.int8 and flat.device == b.device
    return fits and codes and 0 < len(flat) <= MOST_ROWS and _has_kernels(flat.device)


def _scale(flat: Tensor, b: Tensor, row_stats: Tensor, col_stats: Tensor, bias: Tensor | None) -> bool:
    """Return whether these are scales and a bias that a kernel reads: f32 [M] and [N], and any floats [N]."""
    scales = [(row_stats, len(flat)), (col_stats, len(b)), *([] if bias is None else [(bias, len(b))])]
    floats = row_stats.dtype == col_stats.dtype == torch.float32
    return floats and all(each.numel() == count and each.device == flat.device for each, count in scales)


def _has_kernels(location: torch.device) -> bool:
    """Return whether kernels in CUDA C give what torch gives there; found out once."""
    return location.type == "cuda" and _proved(binding.device_of(location), location)


@functools.cache
def _proved(device: Device, location: torch.device) -> bool:
    """Compare the kernels with torch on a seeded case with outliers, bit for bit; say why they are not used."""
    verdict = check_cuda(Case("linear", "int8", "f32", (1, 64, 64)), device)
    reason, step = verdict.reason, verdict.step
    if verdict:
        try:
            reason, step = _difference(location), StepClass.BROKEN
        except Exception as error:
            found = classify(error)
            if found is None and not isinstance(error, SoftwareMissing):
                raise
            reason, step = found.reason if found else str(error), StepClass.UNAVAILABLE
    if reason:
        binding.journal.step(StepDown("int8_scaled_mm", "cuda.bytes", device.id, step, reason, "torch"))
    return not reason


def _difference(location: torch.device) -> str:
    """Return in words what the kernels compute otherwise than torch."""
    random = torch.Generator().manual_seed(20_261_121)
    x, b = torch.randn(5, 272, generator=random) * 2.5, torch.randint(-127, 128, (19, 272), generator=random)
    stats, x, b = torch.rand(19, generator=random), x.half(), b.to(torch.int8)
    right, peaks, columns = int8_vectorwise_quant(x, 6.0)
    codes, found, apart = cuda_products.quantized_rows(x.to(location), 6.0)
    codes[:, apart] = 0
    if not (torch.equal(codes.cpu(), right) and torch.equal(found.cpu(), peaks)):
        return "rows of int8 differ from torch's"
    if columns is None or not torch.equal(apart.cpu().nonzero()[:, 0], columns):
        return "columns of outliers differ from torch's"
    y = cuda_products.multiply_bytes(codes, b.to(location), (found, stats.to(location)), None, torch.float16)
    return (
        "" if torch.equal(y.cpu(), int8_scaled_mm(right, b, peaks, stats)) else "products of int8 differ from torch's"
    )
