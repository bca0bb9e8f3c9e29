"""Attention of one query in compiled vectors, straight from a cache in 32 or 16 bits, which is not copied."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rung.kernels.cpu.decode.attention import QUAD, attend_heads, one_query, padded
from rung.kernels.cpu.parallel import run
from rung.kernels.gpu.dtypes import DTYPE_NAME


class Decode:
    """See ``rung.ops.attention``; one query, heads of a multiple of 16 values."""

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
        """[1, H, D] from q [1, H, D] and keys, values [S, KV, D]."""
        if keys.stride(2) != 1 or values.stride() != keys.stride():
            keys, values = keys.contiguous(), values.contiguous()
        first = max(0, start + 1 - window) if window is not None else 0
        count, (_, heads, size) = keys.shape[0] - first, q.shape
        group, width = heads // keys.shape[1], keys.element_size()
        q, threads, area = q.contiguous(), torch.get_num_threads(), 4 * min(QUAD, group) * padded(count)
        out, scores = torch.empty_like(q), torch.empty(threads * area // 4)
        floats = np.array([0.0, scale, softcap or 0.0], dtype=np.float32)
        stride, between = width * keys.stride(0), width * keys.stride(1)
        behind = stride * first
        words = [
            *(0, keys.shape[1], keys.data_ptr() + behind, values.data_ptr() + behind, between),
            *(q.data_ptr(), stride, count, group, size, floats.ctypes.data, scores.data_ptr(), out.data_ptr()),
            *(one_query[DTYPE_NAME[keys.dtype]].address, area),
        ]
        run(attend_heads.address, words, threads)
        return out


RUNG = Decode()
