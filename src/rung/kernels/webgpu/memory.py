"""Keys and values in the memory of a GPU: blocks of positions, a buffer for each layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rung.kernels.webgpu.gpu import Gpu


class Blocks:
    """Memory of ``count`` blocks, each of which has ``layer_bytes`` bytes of every layer."""

    def __init__(self, gpu: Gpu, count: int, layers: int, layer_bytes: int) -> None:
        """Reserve the memory. Raises ``OutOfMemory``."""
        self._gpu, self._count, self._layer_bytes = gpu, count, layer_bytes
        self.buffers: list[Any] = [gpu.buffer(count * layer_bytes) for _ in range(layers)]

    @property
    def block_bytes(self) -> int:
        """Return the bytes of a block."""
        return len(self.buffers) * self._layer_bytes

    def read(self, block: int) -> npt.NDArray[np.uint8]:
        """Return the bytes of a block, a layer after the other."""
        at, size = block * self._layer_bytes, self._layer_bytes
        return np.concatenate([self._gpu.read(buffer, at, size) for buffer in self.buffers])

    def copy(self, source: int, target: int) -> None:
        """Let a block have the bytes of another one."""
        size, between = self._layer_bytes, self._gpu.buffer(self._layer_bytes)  # a copy has two buffers
        for buffer in self.buffers:
            self._gpu.copy([(buffer, source * size, between, 0, size), (between, 0, buffer, target * size, size)])

    def write(self, block: int, data: npt.NDArray[np.uint8]) -> None:
        """Let a block have these bytes."""
        for buffer, part in zip(self.buffers, data.reshape(len(self.buffers), -1), strict=True):
            self._gpu.write(buffer, block * self._layer_bytes, part)
