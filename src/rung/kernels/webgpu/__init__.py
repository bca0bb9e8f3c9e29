"""Kernels in WGSL for GPUs that Vulkan, Metal or DirectX 12 reach, through ``wgpu`` (``pip install 'rung[lean]'``).

``layouts`` says how a weight lies in a buffer, ``packing`` and ``matrix`` bring it there, ``gpu`` has the device,
``recording`` its command buffers; ``linear``, ``attention`` and ``glue`` are the shaders.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rung.kernels.webgpu.matrix import Blocks

#: The kind of these devices.
KIND = "webgpu"


def is_webgpu(device: str) -> bool:
    """Return whether the id is that of a GPU which WebGPU reaches, and torch does not."""
    return device.partition(":")[0] == KIND


def tensor_device(device: str) -> str:
    """Return where torch has the tensors for what computes at a ``location``: it drives no device of WebGPU."""
    return "cpu" if is_webgpu(device) else device


def device_blocks(device: str, count: int, layers: int, layer_bytes: int) -> Blocks:
    """Return memory for keys and values on a GPU. Raises ``OutOfMemory``."""
    from rung.kernels.webgpu.gpu import gpu
    from rung.kernels.webgpu.matrix import Blocks

    return Blocks(gpu(device), count, layers, layer_bytes)
