"""Attention of one query in compiled vectors, straight from a cache in 32 or 16 bits, which is not copied."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rung.formats.codec import Floats
from rung.kernels.cpu.decode.attention import QUAD, attend_heads, one_query, padded
from rung.kernels.cpu.parallel import process_threads, run
from rung.ops.attention.arrays import as_arrays, dtype_of

if TYPE_CHECKING:
    from torch import Tensor


class Decode:
    """See ``rung.ops.attention``; one query, heads of a multiple of 16 values."""

    def apply(self, q: Tensor, keys: Tensor, values: Tensor, **options: Any) -> Tensor:
        """[1, H, D] from q [1, H, D] and keys, values [S, KV, D]."""
        import torch

        return torch.from_numpy(self.attend(*as_arrays(q, keys, values), **options))

    def attend(
        self,
        q: Floats,
        keys: Floats,
        values: Floats,
        *,
        start: int,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Floats:
        """The same with arrays; bfloat16 are words of 16 bits."""
        if keys.strides[2] != keys.itemsize or values.strides != keys.strides:
            keys, values = np.ascontiguousarray(keys), np.ascontiguousarray(values)
        first = max(0, start + 1 - window) if window is not None else 0
        count, (_, heads, size) = keys.shape[0] - first, q.shape
        group = heads // keys.shape[1]
        q, threads, area = np.ascontiguousarray(q), process_threads(), 4 * min(QUAD, group) * padded(count)
        out, scores = np.empty_like(q), np.empty(threads * area // 4, np.float32)
        floats = np.array([0.0, scale, softcap or 0.0], dtype=np.float32)
        stride, between, _ = keys.strides
        behind = stride * first
        words = [
            *(0, keys.shape[1], keys.ctypes.data + behind, values.ctypes.data + behind, between),
            *(q.ctypes.data, stride, count, group, size, floats.ctypes.data, scores.ctypes.data, out.ctypes.data),
            *(one_query[dtype_of(keys)].address, area),
        ]
        run(attend_heads.address, words, threads)
        return out


RUNG = Decode()
