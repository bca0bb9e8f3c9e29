"""Linears with changes of low rank beside them: adapters, unmerged. The weight keeps its bits, the change its own.

Merging into a weight in 16 bits or fewer rounds the sum: of a LoRA of usual size a tenth may be lost in bfloat16,
and more in every quantized format. Beside the weight it is exact, and costs a few percent of a token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rung import formats
from rung.formats import Encoded
from rung.formats.codec import Floats
from rung.models.adapters.adapter import LowRank, row_lengths

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rung.kernels.cpu.gemm.low_rank import LowRankRows

#: Rows of a weight that are decoded at once, in f32 bytes.
_SLAB = 32 << 20
_LANES = 16


class LowRankUpdates:
    """Hold what changes of low rank add to y = W x, in f32: up (down x); with a DoRA the rows of the sum are scaled to
    its magnitudes.

    ``encoded`` gives W, ``device`` is torch's name of where it computes. Several changes are one: their ranks stand
    side by side. On a CPU compiled functions add it, without torch.
    """

    def __init__(
        self, changes: Sequence[LowRank], encoded: Callable[[], Encoded], device: str | torch.device, threads: int
    ) -> None:
        down = np.concatenate([np.float32(change.scale) * change.down for change in changes])
        up = np.concatenate([change.up for change in changes], axis=1)
        factor: Floats | None = None
        magnitude = changes[0].magnitude
        if magnitude is not None:
            factor = magnitude / _lengths(encoded(), changes[0], threads)
        self._threads = threads
        self.rows: LowRankRows | None = None
        if str(device) == "cpu" and down.shape[1] % _LANES == 0:
            from rung.kernels.cpu.gemm.low_rank import LowRankRows

            self.rows = LowRankRows.pack(down, up, factor)
        elif str(device) == "cpu":
            self._arrays = down, up, factor
        else:
            import torch

            self._down, self._up = (torch.from_numpy(part).to(device) for part in (down, up))
            self._factor = None if factor is None else torch.from_numpy(factor).to(device)
        self._on_cpu = str(device) == "cpu"

    def added(self, y: Tensor, x: Tensor) -> Tensor:
        """Return y [T, out], which may be overwritten, with the change for x [T, in]."""
        if self._on_cpu:
            x, y = x.float().contiguous(), y.float().contiguous()
            self.add(x.numpy(), y.numpy())
            return y
        y.addmm_((x @ self._down.T).to(y.dtype), self._up.T)
        return y if self._factor is None else y.mul_(self._factor)

    def add(self, x: Floats, y: Floats) -> None:
        """Add the change for x [T, in] to y [T, out] in place: float32 arrays, whose rows may lie apart."""
        if self.rows is not None:
            self.rows.add(x.ctypes.data, x.strides[0], len(x), y.ctypes.data, y.strides[0], self._threads)
            return
        down, up, factor = self._arrays
        y += (x @ down.T) @ up.T
        if factor is not None:
            y *= factor


class Adapted:
    """A bound linear with what stands beside it."""

    def __init__(self, linear: Any, changes: Sequence[LowRank], device: str, threads: int) -> None:
        self.linear, self.beside = linear, LowRankUpdates(changes, linear.encoded, device, threads)

    @property
    def state(self) -> Any:
        """Return what the linear is bound to."""
        return self.linear.state

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in] -> [T, out]."""
        return self.beside.added(self.linear(x), x)

    @property
    def without_torch(self) -> bool:
        """Return whether the linear's rungs multiply arrays."""
        return bool(self.linear.without_torch)

    def multiply(self, x: Floats) -> Floats:
        """Return x [T, in] times the changed weight, without torch."""
        y: Floats = self.linear.multiply(x)
        self.beside.add(x, y)
        return y


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
