"""Linear over packed weights with int8 activations: the Numba kernels for few and for many rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rung.formats import Encoded
from rung.formats.codec import Floats
from rung.kernels.cpu.gemm.product import MOST_ROWS, product
from rung.kernels.cpu.pack.packing import Packed, as_stored, pack, unpack

if TYPE_CHECKING:
    from torch import Tensor


class R16:
    """See ``rung.ops.linear``. Both rungs compute alike; they differ in the rows their check takes."""

    def prepare(self, encoded: Encoded, *, dtype: str, threads: int) -> Packed:
        """Packs the weight; activations are quantized whatever the dtype, sums are f32."""
        return pack(encoded, threads)

    def apply(self, state: Packed, x: Tensor) -> Tensor:
        """[M, in] -> [M, out]"""
        import torch

        from rung.kernels.gpu.dtypes import DTYPE_NAME

        rows, out = x.shape[0], state.shape[0]
        if state.gather is not None:
            x = x[:, torch.from_numpy(state.gather)]
        inputs = x if x.stride(1) == 1 else x.contiguous()
        y = torch.empty(rows, out, dtype=x.dtype)
        if rows:
            dtype, size = DTYPE_NAME[x.dtype], x.element_size()
            sums = y if dtype == "f32" else torch.empty(min(rows, MOST_ROWS), out)
            product(state, inputs.data_ptr(), size * inputs.stride(0), rows, y.data_ptr(), sums.data_ptr(), dtype)
        return y

    def multiply(self, state: Packed, x: Floats) -> Floats:
        """[M, in], whose rows may lie apart -> [M, out]"""
        y = np.empty((len(x), state.shape[0]), np.float32)
        self.multiply_into(state, x, y)
        return y

    def multiply_into(self, state: Packed, x: Floats, y: Floats) -> None:
        """Write the same to ``y``, whose rows follow each other."""
        if state.gather is not None:
            x = np.take(x, state.gather, axis=1)
        if len(x):
            product(state, x.ctypes.data, x.strides[0], len(x), y.ctypes.data, y.ctypes.data, "f32")

    def restore(self, state: Packed) -> Encoded:
        """The weight as it was stored."""
        return unpack(state)


class AsStored(R16):
    """The same for a weight that stays as it is stored: its rows are packed whenever they are multiplied."""

    def prepare(self, encoded: Encoded, *, dtype: str, threads: int) -> Packed:
        """Keeps the weight, which may be a mapped file."""
        return as_stored(encoded, threads)


ROW = TILE = R16()
MAPPED = AsStored()
