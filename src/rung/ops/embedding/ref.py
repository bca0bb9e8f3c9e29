"""Embedding by decoding rows: the specification of the other rungs."""

from __future__ import annotations

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
        rows = [formats.decode(state, slice(row, row + 1)) for row in ids.tolist()]
        whole = np.concatenate([np.empty((0, state.shape[1]), np.float32), *rows])
        return torch.from_numpy(whole).to(ids.device)

    def row(self, state: Encoded, token: int) -> Floats:
        """[hidden]"""
        return formats.decode(state, slice(token, token + 1))[0]

    def restore(self, state: Encoded) -> Encoded:
        """The weight itself."""
        return state


RUNG = Reference()
