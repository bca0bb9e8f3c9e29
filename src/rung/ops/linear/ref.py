"""Linear in plain torch: decode, multiply; the specification of the other rungs."""

from __future__ import annotations

import torch
from torch import Tensor

from rung import formats
from rung.formats import Encoded
from rung.kernels.gpu.stored import Stored, prepare

#: Weights that are decoded at once, so that a vocabulary's head does not take its whole size in float32.
_SLAB = 1 << 23


class Reference:
    """See ``rung.ops.linear``; computes in f32, or in f64 for activations in f64."""

    def prepare(self, encoded: Encoded, *, dtype: str, threads: int) -> Stored:
        """Keeps the weight as it is stored."""
        return prepare(encoded, dtype, threads)

    def apply(self, state: Stored, x: Tensor) -> Tensor:
        """[M, in] -> [M, out]"""
        rows, columns = state.shape
        dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
        y = torch.empty(x.shape[0], rows, dtype=dtype, device=x.device)
        step = max(1, _SLAB // max(columns, 1))
        for first in range(0, rows, step):
            weight = torch.from_numpy(formats.decode(state.encoded, slice(first, first + step)))
            y[:, first : first + step] = x.to(dtype) @ weight.to(x.device, dtype).T
        return y.to(x.dtype)

    def restore(self, state: Stored) -> Encoded:
        """The weight as it was stored."""
        return state.encoded


RUNG = Reference()
