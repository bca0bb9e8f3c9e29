"""Linears with changes of low rank beside them: adapters, unmerged."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from rung import formats
from rung.formats import Encoded
from rung.models.adapter import LowRank, row_lengths
from rung.run.bind import Linear

#: Rows of a weight that are decoded at once, in f32 bytes.
_SLAB = 32 << 20


class Beside:
    """What changes of low rank add to y = W x, in f32: up (down x); with a DoRA the rows of the sum are scaled to its
    magnitudes.

    ``encoded`` gives W, ``device`` is torch's name of where it computes. Several changes are one: their ranks stand
    side by side.
    """

    def __init__(
        self, changes: Sequence[LowRank], encoded: Callable[[], Encoded], device: str | torch.device, threads: int
    ) -> None:
        down = np.concatenate([np.float32(change.scale) * change.down for change in changes])
        up = np.concatenate([change.up for change in changes], axis=1)
        self._down, self._up = (torch.from_numpy(part).to(device) for part in (down, up))
        self._factor = None
        magnitude = changes[0].magnitude
        if magnitude is not None:
            lengths = _lengths(encoded(), changes[0], threads)
            self._factor = torch.from_numpy(magnitude / lengths).to(device)

    def added(self, y: Tensor, x: Tensor) -> Tensor:
        """x [T, in] and its y [T, out], which is changed -> [T, out]."""
        y.addmm_((x @ self._down.T).to(y.dtype), self._up.T)
        return y if self._factor is None else y.mul_(self._factor)


class Adapted:
    """A bound linear with what stands beside it."""

    def __init__(self, linear: Linear, changes: Sequence[LowRank], device: str, threads: int) -> None:
        self._linear, self._beside = linear, Beside(changes, linear.encoded, device, threads)

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in] -> [T, out]."""
        return self._beside.added(self._linear(x), x)


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
