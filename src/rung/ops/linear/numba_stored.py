"""Linear over floats as they are stored, with f32 activations and sums, for a few rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rung.formats import Encoded
from rung.formats.codec import Floats
from rung.kernels.cpu.gemm.float_rows import TILES, multiply_stored
from rung.kernels.cpu.thread_pool import run
from rung.kernels.gpu.stored import Stored, prepare

if TYPE_CHECKING:
    from torch import Tensor

_CHUNKS_A_THREAD = 6


class StoredRows:
    """See ``rung.ops.linear``; the state is that of ``torch.decode`` and ``numpy.decode``."""

    def prepare(self, encoded: Encoded, *, dtype: str, threads: int) -> Stored:
        """Keeps the weight as it is stored."""
        return prepare(encoded, dtype, threads)

    def apply(self, state: Stored, x: Tensor) -> Tensor:
        """[M, in] -> [M, out]"""
        import torch

        return torch.from_numpy(self.multiply(state, x.detach().to(torch.float32).contiguous().numpy())).to(x.dtype)

    def multiply(self, state: Stored, x: Floats) -> Floats:
        """[M, in] -> [M, out]"""
        rows, (out, columns) = len(x), state.shape
        tile = next(tile for tile in TILES if tile >= rows)
        inputs = np.zeros((tile, columns), np.float32) if rows < tile else np.ascontiguousarray(x, np.float32)
        if rows < tile:
            inputs[:rows] = x
        data = state.encoded.parts["data"]
        if out < TILES[tile]:  # too few rows for the kernel: a copy that has enough
            data = np.concatenate([data, np.zeros((TILES[tile] - out, data.shape[1]), np.uint8)])
        y = np.empty((rows, len(data)), np.float32)
        share = -(-len(data) // (state.threads * _CHUNKS_A_THREAD))
        words = [
            *(0, data.ctypes.data, data.strides[0], inputs.ctypes.data, 4 * columns, columns),
            *(y.ctypes.data, 4 * len(data), rows, len(data), -(-share // TILES[tile]) * TILES[tile]),
        ]
        kernel = multiply_stored(state.encoded.format.name, tile)
        run(kernel.address, words, state.threads)
        return y[:, :out]

    def restore(self, state: Stored) -> Encoded:
        """The weight as it was stored."""
        return state.encoded


RUNG = StoredRows()
