"""Linear on NVIDIA and AMD GPUs by kernels in CUDA C, from weights in the layouts of ``kernels.webgpu``."""

from __future__ import annotations

import torch
from torch import Tensor

from rung.formats import Encoded
from rung.kernels.gpu import cuda_products
from rung.kernels.gpu.cuda_products import Packed
from rung.kernels.gpu.dtypes import TORCH_DTYPE


class Rows:
    """See ``rung.ops.linear``."""

    def prepare(self, encoded: Encoded, *, dtype: str, threads: int, device: str) -> Packed:
        """Pack the weight and bring it to a GPU."""
        return Packed(cuda_products.packed(encoded, torch.device(device)), TORCH_DTYPE[dtype], encoded)

    def apply(self, state: Packed, x: Tensor) -> Tensor:
        """[M, in] -> [M, out]"""
        return cuda_products.linear(state.weight, x, state.dtype)

    def restore(self, state: Packed) -> Encoded:
        """The weight as it was stored."""
        return state.source


RUNG = Rows()
