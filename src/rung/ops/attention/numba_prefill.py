"""Attention of many queries in compiled vectors: four queries meet four keys, nothing is converted or masked."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rung.kernels.cpu.decode import prefill_elementwise
from rung.kernels.cpu.decode.attention import BLOCK, padded, query_block
from rung.kernels.cpu.parallel import run
from rung.kernels.gpu.dtypes import DTYPE_NAME


class Prefill:
    """See ``rung.ops.attention``; heads of a multiple of 16 values. Scores take BLOCK rows for each thread."""

    def apply(
        self,
        q: Tensor,
        keys: Tensor,
        values: Tensor,
        *,
        start: int,
        scale: float,
        window: int | None,
        softcap: float | None,
    ) -> Tensor:
        """[T, H, D] from q [T, H, D] and keys, values [S, KV, D]."""
        if keys.stride(2) != 1 or values.stride() != keys.stride():
            keys, values = keys.contiguous(), values.contiguous()
        tokens, heads, size = q.shape
        if q.stride(2) != 1 or q.stride(1) != size:
            q = q.contiguous()
        out = torch.empty(tokens, heads, size)
        threads, width = torch.get_num_threads(), keys.element_size()
        row = BLOCK * padded(keys.shape[0] + BLOCK)
        scores = torch.empty(threads * row)
        floats = np.array([0.0, scale, softcap or 0.0], dtype=np.float32)
        words = [
            *(0, tokens, heads, keys.shape[1], size, q.data_ptr(), 4 * q.stride(0)),
            *(keys.data_ptr(), values.data_ptr(), width * keys.stride(1), width * keys.stride(0)),
            *(start, window or 0, floats.ctypes.data, query_block[DTYPE_NAME[keys.dtype]].address),
            *(scores.data_ptr(), 4 * row, out.data_ptr()),
        ]
        run(prefill_elementwise.attend.address, words, threads)
        return out


RUNG = Prefill()
