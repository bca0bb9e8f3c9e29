"""A linear in plain torch: decode the whole weight, multiply; the specification of the other rungs."""

from __future__ import annotations

import torch
from torch import Tensor

from rung import formats
from rung.formats import Encoded


class Reference:
    """See ``rung.ops.linear``; computes in the dtype of ``x``."""

    def prepare(self, encoded: Encoded, *, dtype: str, threads: int) -> Encoded:
        """The state is the stored weight itself."""
        return encoded

    def apply(self, state: Encoded, x: Tensor) -> Tensor:
        """[T, in] -> [T, out]."""
        return x @ torch.from_numpy(formats.decode(state)).to(x.device, x.dtype).T

    def restore(self, state: Encoded) -> Encoded:
        """The stored weight."""
        return state


RUNG = Reference()
