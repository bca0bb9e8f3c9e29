"""Embedding from packed weights: rows are brought back to their stored bytes, then decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rung import formats
from rung.formats import Encoded
from rung.formats.codec import Floats
from rung.kernels.cpu.pack.packing import Packed, pack, read_rows, unpack

if TYPE_CHECKING:
    from torch import Tensor


class Rows:
    """See ``rung.ops.embedding``; the state is that of ``numba.row`` and ``numba.tile`` of linear."""

    def prepare(self, encoded: Encoded, *, dtype: str, threads: int) -> Packed:
        """Packs the weight."""
        return pack(encoded, threads)

    def look_up(self, state: Packed, ids: Tensor) -> Tensor:
        """int64 [T] -> f32 [T, hidden]"""
        import torch

        return torch.from_numpy(self.rows(state, ids.tolist()))

    def rows(self, state: Packed, ids: Sequence[int]) -> Floats:
        """[T, hidden]"""
        return formats.decode(read_rows(state, ids))

    def restore(self, state: Packed) -> Encoded:
        """The weight as it was stored."""
        return unpack(state)


RUNG = Rows()
