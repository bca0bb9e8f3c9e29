"""Linear through torch: decodes a slab of rows, then torch's own product in the plan's dtype; any device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import linear

from rung.formats import Encoded
from rung.kernels.gpu.stored import Stored, prepare


class Decode:
    """See ``rung.ops.linear``; the workspace is one slab of 32 MB in float32."""

    def prepare(self, encoded: Encoded, *, dtype: str, threads: int) -> Stored:
        """Keeps the weight as it is stored."""
        return prepare(encoded, dtype, threads)

    def apply(self, state: Stored, x: Tensor) -> Tensor:
        """[M, in] -> [M, out]"""
        rows, inputs = state.shape[0], x.to(state.dtype)
        if state.shape[0] <= state.step:
            return linear(inputs, state.read(0, rows, x.device, state.dtype)).to(x.dtype)
        y = torch.empty(x.shape[0], rows, dtype=x.dtype, device=x.device)
        for first in range(0, rows, state.step):
            last = min(first + state.step, rows)
            y[:, first:last] = linear(inputs, state.read(first, last, x.device, state.dtype))
        return y

    def restore(self, state: Stored) -> Encoded:
        """The weight as it was stored."""
        return state.encoded


RUNG = Decode()
