"""Embedding by decoding rows: the specification of the other rungs."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rung import formats
from rung.formats import Encoded
from rung.formats.codec import Floats


class Reference:
    """See ``rung.ops.embedding``."""

    def prepare(self, encoded: Encoded, *, dtype: str, threads: int) -> Encoded:
        """The weight itself."""
        return encoded

    def look_up(self, state: Encoded, ids: Tensor) -> Tensor:
        """int64 [T] -> f32 [T, hidden]"""
        return torch.from_numpy(self.rows(state, ids.tolist())).to(ids.device)

    def rows(self, state: Encoded, ids: Sequence[int]) -> Floats:
        """[T, hidden]"""
        rows = [formats.decode(state, slice(token, token + 1)) for token in ids]
        return np.concatenate([np.empty((0, state.shape[1]), np.float32), *rows])

    def restore(self, state: Encoded) -> Encoded:
        """The weight itself."""
        return state


RUNG = Reference()
