"""Embedding from the weight as it is stored, on any device; common formats are decoded there.

On NVIDIA and AMD GPUs a kernel in CUDA C decodes rows whose bytes were gathered.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rung import formats
from rung.formats import Encoded
from rung.formats.codec import Floats
from rung.kernels.gpu import cuda_products
from rung.kernels.gpu.stored import Stored, prepare


class Decode:
    """See ``rung.ops.embedding``."""

    def prepare(self, encoded: Encoded, *, dtype: str, threads: int) -> Stored:
        """Keeps the weight as it is stored."""
        return prepare(encoded, dtype, threads)

    def look_up(self, state: Stored, ids: Tensor) -> Tensor:
        """int64 [T] -> f32 [T, hidden]"""
        rows = [state.decode(row, row + 1, ids.device, torch.float32) for row in ids.tolist()]
        return torch.cat([torch.empty(0, state.shape[1], device=ids.device), *rows])

    def rows(self, state: Stored, ids: Sequence[int]) -> Floats:
        """[T, hidden]"""
        rows = [formats.decode(state.encoded, slice(token, token + 1)) for token in ids]
        return np.concatenate([np.empty((0, state.shape[1]), np.float32), *rows])

    def restore(self, state: Stored) -> Encoded:
        """The weight as it was stored."""
        return state.encoded


class Gathered(Decode):
    """The same by a kernel, of formats whose rows are bytes of their own, or have a scale."""

    def look_up(self, state: Stored, ids: Tensor) -> Tensor:
        """int64 [T] -> f32 [T, hidden]"""
        if ids.device.type == "cpu":  # a decoder's prompt: rows are decoded there, and move to the layers
            return super().look_up(state, ids)
        parts = {name: part[ids] for name, part in state.on(ids.device).items()}
        rows = Encoded(state.encoded.format, (len(ids), state.shape[1]), {})
        return cuda_products.decode(cuda_products.of_parts(rows, parts), 0, len(ids), torch.float32)


RUNG = Decode()
GATHERED = Gathered()
