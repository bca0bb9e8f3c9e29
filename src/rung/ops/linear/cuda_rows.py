"""Linear on NVIDIA and AMD GPUs by kernels in CUDA C: a few rows from the weight as it is stored, many from slabs."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor
from torch.nn.functional import linear

from rung.formats import Encoded
from rung.kernels.cuda.source import MOST_ROWS
from rung.kernels.gpu import cuda_products
from rung.kernels.gpu.cuda_products import Weight
from rung.kernels.gpu.dtypes import DTYPE_NAME
from rung.kernels.gpu.stored import Stored, prepare


class Rows:
    """See ``rung.ops.linear``; the state is that of ``torch.decode``. More than 16 rows are torch's own product in the
    plan's dtype, with slabs of the weight that one kernel decodes."""

    def __init__(self) -> None:
        self._weights: weakref.WeakKeyDictionary[Stored, dict[torch.device, Weight]] = weakref.WeakKeyDictionary()

    def prepare(self, encoded: Encoded, *, dtype: str, threads: int) -> Stored:
        """Keeps the weight as it is stored."""
        return prepare(encoded, dtype, threads)

    def apply(self, state: Stored, x: Tensor) -> Tensor:
        """[M, in] -> [M, out]"""
        weight = self._on(state, x.device)
        if x.shape[0] <= MOST_ROWS:
            given = x if x.dtype in DTYPE_NAME else x.to(torch.float32)
            return cuda_products.multiply(weight, given).to(x.dtype)
        rows, given = state.shape[0], x.to(state.dtype)
        y = torch.empty(x.shape[0], rows, dtype=x.dtype, device=x.device)
        for first in range(0, rows, state.step):
            last = min(first + state.step, rows)
            y[:, first:last] = linear(given, cuda_products.decode(weight, first, last, state.dtype))
        return y

    def restore(self, state: Stored) -> Encoded:
        """The weight as it was stored."""
        return state.encoded

    def _on(self, state: Stored, place: torch.device) -> Weight:
        known = self._weights.setdefault(state, {})
        if place not in known:
            known[place] = cuda_products.of_parts(state.encoded, state.on(place))
        return known[place]


RUNG = Rows()
