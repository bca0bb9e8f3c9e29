"""Linear on NVIDIA and AMD GPUs by kernels in CUDA C, from weights as their formats store them."""

from __future__ import annotations

import weakref

import torch
from torch import Tensor

from rung.formats import Encoded
from rung.kernels.gpu import cuda_products
from rung.kernels.gpu.cuda_products import Weight
from rung.kernels.gpu.stored import Stored, prepare


class Rows:
    """See ``rung.ops.linear``; the state is that of ``torch.decode``."""

    def __init__(self) -> None:
        self._weights: weakref.WeakKeyDictionary[Stored, dict[torch.device, Weight]] = weakref.WeakKeyDictionary()

    def prepare(self, encoded: Encoded, *, dtype: str, threads: int) -> Stored:
        """Keeps the weight as it is stored."""
        return prepare(encoded, dtype, threads)

    def apply(self, state: Stored, x: Tensor) -> Tensor:
        """[M, in] -> [M, out]"""
        return cuda_products.linear(self._on(state, x.device), x, state.dtype)

    def decode(self, state: Stored, first: int, last: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return the rows [first, last) in f32, f16 or bf16 on a device, for products in parts."""
        return cuda_products.decode(self._on(state, device), first, last, dtype)

    def restore(self, state: Stored) -> Encoded:
        """The weight as it was stored."""
        return state.encoded

    def _on(self, state: Stored, device: torch.device) -> Weight:
        known = self._weights.setdefault(state, {})
        if device not in known:
            known[device] = cuda_products.of_parts(state.encoded, state.on(device))
        return known[device]


RUNG = Rows()
