"""Changes of low rank beside the linears of a decoder: adapters, unmerged. The weight keeps its bits, the change its
own.

Merging into a weight in 16 bits or fewer rounds the sum: of a LoRA of usual size a tenth may be lost in bfloat16,
and more in every quantized format. Beside the weight it is exact, and costs a few percent of a token.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rung import formats
from rung.formats import Encoded
from rung.formats.codec import Floats
from rung.kernels.webgpu import is_webgpu
from rung.models.adapters.adapter import LowRank, rank_of, row_lengths

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from rung.kernels.cpu.gemm.low_rank import LowRankRows
    from rung.ops.decode_step.weights import Weights

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
        self._hold(down, up, factor, str(device))

    def _hold(self, down: Floats, up: Floats, factor: Floats | None, device: str) -> None:
        """Hold them as the device adds them."""
        self.rows: LowRankRows | None = None
        self.arrays: tuple[Floats, Floats, Floats | None] | None = None
        self.tensors: tuple[Tensor, Tensor, Tensor | None] | None = None
        if device == "cpu" and down.shape[1] % _LANES == 0:
            from rung.kernels.cpu.gemm.low_rank import LowRankRows

            self.rows = LowRankRows.pack(down, up, factor)
        elif device == "cpu" or is_webgpu(device):
            self.arrays = down, up, factor
        else:
            import torch

            down_there, up_there = (torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in (down, up))
            self.tensors = down_there, up_there, None if factor is None else torch.from_numpy(factor).to(device)
        self._on_cpu = device == "cpu"
        self.nbytes = self.rows.nbytes if self.rows is not None else 4 * (down.size + up.size)

    def move(self, device: str) -> None:
        """Hold arrays as another device adds them; what a processor adds stays as it is there."""
        if self._on_cpu and device == "cpu":
            return
        assert self.arrays is not None, "they were held for a device that adds arrays"
        self._hold(*self.arrays, device)

    def added(self, y: Tensor, x: Tensor) -> Tensor:
        """Return y [T, out], which may be overwritten, with the change for x [T, in]."""
        if self._on_cpu:
            x, y = x.float().contiguous(), y.float().contiguous()
            self.add(x.numpy(), y.numpy())
            return y
        assert self.tensors is not None, "arrays are added by ``add``"
        down, up, factor = self.tensors
        y.addmm_((x @ down.T).to(y.dtype), up.T)
        return y if factor is None else y.mul_(factor)

    def add(self, x: Floats, y: Floats) -> None:
        """Add the change for x [T, in] to y [T, out] in place: float32 arrays, whose rows may lie apart."""
        if self.rows is not None:
            self.rows.add(x.ctypes.data, x.strides[0], len(x), y.ctypes.data, y.strides[0], self._threads)
            return
        assert self.arrays is not None, "tensors are added by ``added``"
        down, up, factor = self.arrays
        y += (x @ down.T) @ up.T
        if factor is not None:
            y *= factor


class BoundAdapter:
    """Hold the changes of an adapter, or of several that are added up, bound to the weights of a decoder.

    ``key`` is the same for two that change the same, ``rank`` the highest of its changes. ``number``, ``addresses`` and
    ``sums`` are those of ``rung.kernels.cpu.decode.step.Changes``.
    """

    _numbers = itertools.count(1)

    def __init__(self, weights: Weights, changes: Mapping[str, Sequence[LowRank]], threads: int) -> None:
        """Bind ``changes`` by the role of a weight; a DoRA needs the lengths of its rows."""
        self.number, self.key, self.rank = next(self._numbers), _digest(changes), rank_of(changes)
        found = {each.role: (each.linear, device) for each, device in weights.linears if each.role in changes}
        self._updates = {
            role: LowRankUpdates(changes[role], linear.encoded, device, threads)
            for role, (linear, device) in found.items()
        }
        self._bind(weights)

    def move(self, weights: Weights) -> None:
        """Bind the changes to the same weights on another device, after that of WebGPU failed."""
        devices = {each.role: device for each, device in weights.linears}
        for role, update in self._updates.items():
            update.move(devices[role])
        self._bind(weights)

    def _bind(self, weights: Weights) -> None:
        self._put_together()
        rows = [self.rows(each.role) for each, _ in weights.linears]
        self.addresses = np.array([0 if each is None else each.words.ctypes.data for each in rows], np.int64)
        self.sums = max((each.sums for each in rows if each is not None), default=0)

    def _put_together(self) -> None:
        """Have all changes that compiled functions add in one piece of memory."""
        updates = [each for each in self._updates.values() if each.rows is not None]
        if updates:
            from rung.kernels.cpu.gemm.low_rank import put_together

            moved = put_together([each.rows for each in updates if each.rows is not None])
            for each, rows in zip(updates, moved, strict=True):
                each.rows = rows

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(each.nbytes for each in self._updates.values())

    def arrays(self, role: str) -> tuple[Floats, Floats, Floats | None] | None:
        """Return down [rank, in], up [out, rank] and the factor [out] of a DoRA, or None where nothing changes."""
        return self._updates[role].arrays if role in self._updates else None

    def tensors(self, role: str) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """Return the same on a device of torch."""
        return self._updates[role].tensors if role in self._updates else None

    def rows(self, role: str) -> LowRankRows | None:
        """Return the change of a weight as compiled functions add it, or None where there is none."""
        return self._updates[role].rows if role in self._updates else None

    def added(self, role: str, y: Tensor, x: Tensor) -> Tensor:
        """Return y [T, out], which may be overwritten, with the change for x [T, in]."""
        return self._updates[role].added(y, x) if role in self._updates else y

    def add(self, role: str, x: Floats, y: Floats) -> None:
        """Add the change for x [T, in] to y [T, out] in place: float32 arrays, whose rows may lie apart."""
        if role in self._updates:
            self._updates[role].add(x, y)


def _digest(changes: Mapping[str, Sequence[LowRank]]) -> str:
    """Return a hash of the changes, empty where there are none."""
    digest = hashlib.sha256()
    for role, several in sorted(changes.items()):
        for change in several:
            digest.update(repr((role, change.scale, change.down.shape, change.up.shape)).encode())
            for part in (change.down, change.up, change.magnitude):
                digest.update(b"" if part is None else np.ascontiguousarray(part).data)
    return digest.hexdigest()[:32] if changes else ""


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
