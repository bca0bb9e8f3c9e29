"""The kernels by the name of the operator under ``torch.ops.bitsandbytes``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rung.hub.bitsandbytes.blocks import dequantize_blockwise, quantize_blockwise
from rung.hub.bitsandbytes.four_bits import dequantize_4bit, gemm_4bit, gemv_4bit, quantize_4bit
from rung.hub.bitsandbytes.int8 import (
    int8_double_quant,
    int8_linear_matmul,
    int8_mixed_scaled_mm,
    int8_mm_dequant,
    int8_scaled_mm,
    int8_vectorwise_dequant,
    int8_vectorwise_quant,
)
from rung.hub.bitsandbytes.optimizers import optimizer_update_8bit_blockwise, optimizer_update_32bit


def _into_last(kernel: Callable[..., Any]) -> Callable[..., None]:
    """The overload that writes its result to a last argument."""

    def run(*args: Any) -> None:
        args[-1].copy_(kernel(*args[:-1]))

    return run


#: The kernels by the name of the operator.
KERNELS: dict[str, Callable[..., Any]] = {
    kernel.__name__: kernel
    for kernel in (
        quantize_4bit,
        dequantize_4bit,
        gemm_4bit,
        gemv_4bit,
        quantize_blockwise,
        dequantize_blockwise,
        int8_vectorwise_quant,
        int8_double_quant,
        int8_vectorwise_dequant,
        int8_linear_matmul,
        int8_mm_dequant,
        int8_scaled_mm,
        int8_mixed_scaled_mm,
        optimizer_update_32bit,
        optimizer_update_8bit_blockwise,
    )
}
KERNELS |= {
    f"{kernel.__name__}.out": _into_last(kernel)
    for kernel in (dequantize_4bit, gemv_4bit, dequantize_blockwise, int8_linear_matmul)
}
