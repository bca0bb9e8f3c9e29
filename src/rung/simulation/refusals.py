"""Say what the real software says when a card cannot: the words of torch, by vendor and by the build that is assumed.

Each text is that of the build's source; ``rung.diagnosis`` recognizes them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from rung.core.types import Device, Level
from rung.kernels.gpu.dtypes import DTYPE_NAME
from rung.simulation.allocator import Allocator

DTYPE_NAMES = {
    **DTYPE_NAME,
    torch.float64: "f64",
    torch.int8: "int8",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
}
_CUDA_TYPES = {"f32": "CUDA_R_32F", "f16": "CUDA_R_16F", "bf16": "CUDA_R_16BF", "f64": "CUDA_R_64F"}
_BATCHED = ("bmm", "baddbmm", "addbmm")
_ASYNCHRONOUS = (
    "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1.\n"
)


class Card(Protocol):
    """List the attributes of ``simulation.Card`` that the texts depend on; sizes in bytes."""

    device: Device
    index: int
    type: str
    torch_device: torch.device
    total: int
    runtime: int
    allocator: Allocator

    @property
    def torch_version(self) -> tuple[int, int]: ...

    @property
    def cuda_version(self) -> tuple[int, int] | None: ...

    @property
    def lacks_code(self) -> str: ...


def refusal(card: Card, op: str, kind: str, dtype: str) -> Callable[[], Exception] | None:
    """Return a function that makes the error for an operation of that name, kind and dtype on this card; None where it
    runs."""
    if card.lacks_code:
        return lambda: _no_code(card)
    if card.device.capability(f"{'matmul' if kind == 'convolution' else kind}.{dtype}").level is not Level.ABSENT:
        return None
    if card.type == "xpu" and dtype == "f64":
        return lambda: RuntimeError("Required aspect fp64 is not supported on the device")
    if kind in ("matmul", "attention"):
        return lambda: _no_product(card, op, kind, dtype)
    if kind == "convolution":
        return lambda: _no_convolution(card)
    return None


def _no_product(card: Card, op: str, kind: str, dtype: str) -> Exception:
    if card.type == "mps":
        if dtype == "bf16":
            return TypeError("BFloat16 is not supported on MPS")
        return NotImplementedError(
            f"The operator 'aten::{op}' is not currently implemented for the MPS device. If you want this op to be "
            "considered for addition please comment on https://github.com/pytorch/pytorch/issues/141287. As a "
            "temporary fix, you can set the environment variable `PYTORCH_ENABLE_MPS_FALLBACK=1` to use the CPU as "
            "a fallback."
        )
    if card.type == "xpu":
        return RuntimeError("could not create a primitive descriptor for a matmul primitive")
    if dtype == "int8":
        return _no_int8(card)
    if dtype == "fp8":
        return RuntimeError(
            "torch._scaled_mm is only supported on CUDA devices with compute capability >= 9.0 or 8.9, or ROCm MI300+"
        )
    batched = kind == "attention" or op in _BATCHED
    if dtype == "bf16" and card.device.kind == "cuda" and card.cuda_version is not None and card.cuda_version < (11, 0):
        # ATen/cuda/CUDABlas.cpp before CUDA 11; a compiler of Microsoft writes "struct", others mangle the name
        return RuntimeError(
            f"at::cuda::blas::{'bgemm' if batched else 'gemm'}: not implemented for struct c10::BFloat16"
        )
    kinds = _CUDA_TYPES[dtype]
    library, status = ("hipblas", "HIPBLAS") if card.device.kind == "rocm" else ("cublas", "CUBLAS")
    call = (
        f"{library}GemmStridedBatchedEx(handle, opa, opb, (int)m, (int)n, (int)k, (void*)&falpha, a, {kinds}, "
        f"(int)lda, stridea, b, {kinds}, (int)ldb, strideb, (void*)&fbeta, c, {kinds}, (int)ldc, stridec, "
        "(int)num_batches, compute_type, CUBLAS_GEMM_DEFAULT_TENSOR_OP)"
        if batched
        else f"{library}GemmEx( handle, opa, opb, m, n, k, &falpha, a, {kinds}, lda, b, {kinds}, ldb, &fbeta, c, "
        f"{kinds}, ldc, compute_type, CUBLAS_GEMM_DEFAULT_TENSOR_OP)"
    )
    return RuntimeError(f"CUDA error: {status}_STATUS_NOT_SUPPORTED when calling `{call}`")


def _no_int8(card: Card) -> Exception:
    status = "HIPBLAS" if card.device.kind == "rocm" else "CUBLAS"
    return RuntimeError(
        f"CUDA error: {status}_STATUS_NOT_SUPPORTED when calling `cublasLtMatmulAlgoGetHeuristic( ltHandle, "
        "computeDesc.descriptor(), Adesc.descriptor(), Bdesc.descriptor(), Cdesc.descriptor(), Cdesc.descriptor(), "
        "preference.descriptor(), 1, &heuristicResult, &returnedResult)`"
    )


def _no_convolution(card: Card) -> Exception:
    if card.torch_version < (2, 0):
        return RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED")
    return RuntimeError("GET was unable to find an engine to execute this computation")


def _no_code(card: Card) -> Exception:
    if card.device.kind == "rocm":
        return RuntimeError(f"HIP error: invalid device function\n{_ASYNCHRONOUS}".replace("CUDA_", "AMD_SERIALIZE_"))
    return _error(card, f"CUDA error: no kernel image is available for execution on the device\n{_ASYNCHRONOUS}")


def _error(card: Card, text: str) -> Exception:
    """Return an error of the class that the assumed torch has for what CUDA reports."""
    known: Callable[[str], Exception] = getattr(torch, "AcceleratorError", RuntimeError)
    return known(text) if card.torch_version >= (2, 8) else RuntimeError(text)


def not_while_capturing(card: Card) -> Exception:
    """For what waits for the card while a graph is captured."""
    text = f"CUDA error: operation not permitted when stream is capturing\n{_ASYNCHRONOUS}"
    return _error(card, text)


def no_such_device(kind: str, count: int, index: int) -> Exception:
    """Make torch's error for ``cuda:1`` where there is one card; ``kind`` is torch's, ``count`` that of the cards."""
    if kind == "cuda":
        return RuntimeError(f"CUDA error: invalid device ordinal\n{_ASYNCHRONOUS}")
    return RuntimeError(f"The device index is out of range. It must be in [0, {count}), but got {index} for {kind}.")


def mixed_devices(card: Card, op: str, argument: str, device: str) -> Exception:
    """For tensors on two devices; ``argument`` is empty where torch's iterators do not name it."""
    other = str(card.torch_device)
    if not argument:
        return RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {other} and {device}!"
        )
    method = f"wrapper_{card.type.upper()}_{op}"
    if card.torch_version >= (2, 8):
        return RuntimeError(
            f"Expected all tensors to be on the same device, but got {argument} is on {device}, different from other "
            f"tensors on {other} (when checking argument in method {method})"
        )
    return RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, {device} and {other}! "
        f"(when checking argument for argument {argument} in method {method})"
    )


def misplaced_index(device: torch.device) -> Exception:
    """Make the error for an index that lies neither on the host nor where the tensor does, which is ``place``."""
    return RuntimeError(f"indices should be either on cpu or on the same device as the indexed tensor ({device})")


def check_dtype(dtype: torch.dtype) -> None:
    """Raises what torch raises for a dtype that an Apple GPU does not hold at all."""
    if dtype in (torch.float64, torch.complex128):
        raise TypeError(
            "Cannot convert a MPS Tensor to float64 dtype as the MPS framework doesn't support float64. "
            "Please use float32 instead."
        )


def check_attention(card: Card, dtype: torch.dtype) -> None:
    """Raises what torch raises when the one attention kernel that is allowed does not run on the card."""
    allowed = torch.backends.cuda
    if card.device.kind != "cuda" or allowed.math_sdp_enabled() or allowed.mem_efficient_sdp_enabled():
        return
    flash = card.device.capability("attention.flash").level is not Level.ABSENT
    if not flash or dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("No available kernel. Aborting execution.")


def out_of_memory(card: Card, size: int) -> Exception:
    """torch's error for a request of ``size`` bytes, worded as the assumed version words it."""
    stats = card.allocator.stats()
    live, reserved = stats["allocated"], stats["reserved"]
    free = max(card.allocator.capacity - reserved, 0)
    words = {"cuda": "HIP" if card.device.kind == "rocm" else "CUDA", "xpu": "XPU"}.get(card.type, "MPS")
    if card.type == "mps":
        return RuntimeError(
            f"MPS backend out of memory (MPS allocated: {_size(live)}, other allocations: {_size(card.runtime)}, max "
            f"allowed: {_size(card.total)}). Tried to allocate {_size(size)} on private pool. Use "
            "PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0 to disable upper limit for memory allocations (may cause system "
            "failure)."
        )
    if card.torch_version < (2, 1):
        text = (
            f"{words} out of memory. Tried to allocate {_size(size)} (GPU {card.index}; {_size(card.total)} total "
            f"capacity; {_size(live)} already allocated; {_size(free)} free; {_size(reserved)} reserved in total by "
            "PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb to avoid fragmentation.  "
            f"See documentation for Memory Management and PYTORCH_{words}_ALLOC_CONF"
        )
    else:
        text = (
            f"{words} out of memory. Tried to allocate {_size(size)}. GPU {card.index} has a total capacity of "
            f"{_size(card.total)} of which {_size(free)} is free. Including non-PyTorch memory, this process has "
            f"{_size(reserved + card.runtime)} memory in use. Of the allocated memory {_size(live)} is allocated by "
            f"PyTorch, and {_size(reserved - live)} is reserved by PyTorch but unallocated. If reserved but "
            f"unallocated memory is large try setting PYTORCH_{words}_ALLOC_CONF=expandable_segments:True to avoid "
            "fragmentation.  See documentation for Memory Management  "
            "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
        )
    return torch.OutOfMemoryError(text)


def _size(count: int) -> str:
    """As torch writes sizes: ``512 bytes``, ``20.00 MiB``, ``4.94 GiB``."""
    if count <= 1024:
        return f"{count} bytes"
    for unit, power in (("GiB", 30), ("MiB", 20)):
        if count >= 1 << power:
            return f"{count / (1 << power):.2f} {unit}"
    return f"{count / 1024:.2f} KiB"
