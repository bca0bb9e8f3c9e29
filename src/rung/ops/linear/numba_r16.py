"""Linear over packed weights with int8 activations: the Numba kernels for few and for many rows."""

from __future__ import annotations

import torch
from torch import Tensor

from rung.formats import Encoded
from rung.kernels.cpu.packing import Packed, pack, unpack
from rung.kernels.cpu.product import product


class R16:
    """See ``rung.ops.linear``. Both rungs compute alike; they differ in the rows their check takes."""

    def prepare(self, encoded: Encoded, *, dtype: str, threads: int) -> Packed:
        """Packs the weight; activations are quantised whatever the dtype, sums are f32."""
        return pack(encoded, threads)

    def apply(self, state: Packed, x: Tensor) -> Tensor:
        """[M, in] -> [M, out]"""
        rows = x.shape[0]
        if state.gather is not None:
            x = x[:, torch.from_numpy(state.gather)]
        given = x if x.dtype == torch.float32 and x.stride(1) == 1 else x.to(torch.float32).contiguous()
        y = torch.empty(rows, state.shape[0], dtype=torch.float32)
        if rows:
            product(state, given.data_ptr(), 4 * given.stride(0), rows, y.data_ptr(), state.threads)
        return y.to(x.dtype)

    def restore(self, state: Packed) -> Encoded:
        """The weight as it was stored."""
        return unpack(state)


ROW = TILE = R16()
