"""Embedding on a CPU from the weight as it is stored: the rows that are asked for are decoded in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rung import formats
from rung.formats import Encoded
from rung.formats.codec import Floats

if TYPE_CHECKING:
    from torch import Tensor


class Rows:
    """See ``rung.ops.embedding``; the state is the weight itself."""

    def prepare(self, encoded: Encoded, *, dtype: str, threads: int) -> Encoded:
        """The weight itself."""
        return encoded

    def look_up(self, state: Encoded, ids: Tensor) -> Tensor:
        """int64 [T] -> f32 [T, hidden]"""
        import torch

        return torch.from_numpy(self.rows(state, ids.tolist()))

    def rows(self, state: Encoded, ids: Sequence[int]) -> Floats:
        """[T, hidden]"""
        return _decode(state, ids)

    def restore(self, state: Encoded) -> Encoded:
        """The weight itself."""
        return state


def _decode(weight: Encoded, ids: Sequence[int]) -> Floats:
    if weight.format.layout == "rows":  # the bytes of a row lie together: gathered, then decoded at once
        data = weight.parts["data"].reshape(weight.shape[0], -1)[np.array(ids, np.int64)]
        return formats.decode(Encoded(weight.format, (len(ids), weight.shape[1]), {"data": data}))
    rows = [formats.decode(weight, slice(token, token + 1)) for token in ids]
    return np.concatenate([np.empty((0, weight.shape[1]), np.float32), *rows])


RUNG = Rows()
