"""Attention of many queries in compiled vectors: four queries meet four keys, nothing is converted or masked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rung.formats.codec import Floats
from rung.kernels.cpu.decode import prefill_elementwise
from rung.kernels.cpu.decode.attention import BLOCK, padded, query_block
from rung.kernels.cpu.parallel import process_threads, run
from rung.ops.attention.arrays import as_arrays, dtype_of

if TYPE_CHECKING:
    from torch import Tensor


class Prefill:
    """See ``rung.ops.attention``; heads of a multiple of 16 values. Scores take BLOCK rows for each thread."""

    def apply(self, q: Tensor, keys: Tensor, values: Tensor, **options: Any) -> Tensor:
        """[T, H, D] from q [T, H, D] and keys, values [S, KV, D]."""
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
        tokens, heads, size = q.shape
        if q.strides[2] != 4 or q.strides[1] != 4 * size:
            q = np.ascontiguousarray(q)
        out = np.empty((tokens, heads, size), np.float32)
        threads, row = process_threads(), BLOCK * padded(keys.shape[0] + BLOCK)
        scores = np.empty(threads * row, np.float32)
        floats = np.array([0.0, scale, softcap or 0.0], dtype=np.float32)
        words = [
            *(0, tokens, heads, keys.shape[1], size, q.ctypes.data, q.strides[0]),
            *(keys.ctypes.data, values.ctypes.data, keys.strides[1], keys.strides[0]),
            *(start, window or 0, floats.ctypes.data, query_block[dtype_of(keys)].address),
            *(scores.ctypes.data, 4 * row, out.ctypes.data),
        ]
        run(prefill_elementwise.attend.address, words, threads)
        return out


RUNG = Prefill()
