"""Embedding from the weight as it is stored, on any device; common formats are decoded there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rung import formats
from rung.formats import Encoded
from rung.formats.codec import Floats
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


RUNG = Decode()
