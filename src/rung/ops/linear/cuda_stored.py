"""Linear on NVIDIA and AMD GPUs by kernels in CUDA C, from weights as their formats store them."""

from __future__ import annotations

import torch
from torch import Tensor

from rung.formats import Encoded
from rung.kernels.gpu import cuda_products
from rung.kernels.gpu.stored import Stored, prepare


class Rows:
    """See ``rung.ops.linear``; the state is that of ``torch.decode``."""

    def prepare(self, encoded: Encoded, *, dtype: str, threads: int) -> Stored:
        """Keeps the weight as it is stored."""
        return prepare(encoded, dtype, threads)

    def apply(self, state: Stored, x: Tensor) -> Tensor:
        """[M, in] -> [M, out]"""
        return cuda_products.linear(cuda_products.of_stored(state, x.device), x, state.dtype)

    def decode(self, state: Stored, first: int, last: int, device: torch.device, dtype: torch.dtype) -> Tensor:
        """Return the rows [first, last) in f32, f16 or bf16 on a device, for products in parts."""
        return cuda_products.decode(cuda_products.of_stored(state, device), first, last, dtype)

    def restore(self, state: Stored) -> Encoded:
        """The weight as it was stored."""
        return state.encoded


RUNG = Rows()
