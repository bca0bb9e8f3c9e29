"""A bound linear with changes of low rank beside it: adapters, unmerged."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rung import formats
from rung.formats import Encoded
from rung.models.adapter import LowRank, row_lengths
from rung.run.bind import Linear

#: Rows of a weight that are decoded at once, in f32 bytes.
_SLAB = 32 << 20


class Adapted:
    """y = W x + up (down x) in f32; with a DoRA the rows of that are scaled to its magnitudes.

    ``device`` is torch's name of where the linear computes. Several changes are one: their ranks stand side by side.
    """

    def __init__(self, linear: Linear, changes: Sequence[LowRank], device: str, threads: int) -> None:
        self._linear = linear
        down = np.concatenate([np.float32(change.scale) * change.down for change in changes])
        up = np.concatenate([change.up for change in changes], axis=1)
        self._down, self._up = (torch.from_numpy(part).to(device) for part in (down, up))
        self._factor = None
        magnitude = changes[0].magnitude
        if magnitude is not None:
            lengths = _lengths(linear.encoded(), changes[0], threads)
            self._factor = torch.from_numpy(magnitude / lengths).to(device)

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in] -> [T, out]."""
        y = self._linear(x)
        y.addmm_((x @ self._down.T).to(y.dtype), self._up.T)
        return y if self._factor is None else y.mul_(self._factor)


def _lengths(encoded: Encoded, change: LowRank, threads: int) -> np.ndarray:
    """The lengths [out] f32 of the rows of the changed weight."""
    rows, columns = encoded.shape
    step = max(1, _SLAB // (4 * columns))
    plain = LowRank(change.down, change.up, change.scale)
    parts = []
    for first in range(0, rows, step):
        slab = formats.decode(encoded, slice(first, first + step), threads)
        parts.append(row_lengths(plain.added_to(slab, first)))
    return np.concatenate(parts)
