"""Attention of one query in compiled vectors, straight from a float32 or float16 cache, which is not copied."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rung.kernels.cpu.attention import one_query, padded

_DTYPES = {torch.float32: "f32", torch.float16: "f16"}


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
        q, group, width = q.contiguous(), heads // keys.shape[1], keys.element_size()
        out, scores = torch.empty_like(q), torch.empty(group * padded(count))
        floats = np.array([0.0, scale, softcap or 0.0], dtype=np.float32)
        attend = one_query[_DTYPES[keys.dtype]].call
        stride, between = width * keys.stride(0), width * keys.stride(1)
        for head in range(keys.shape[1]):
            behind, mine = between * head + stride * first, 4 * size * group * head
            attend(
                q.data_ptr() + mine,
                keys.data_ptr() + behind,
                values.data_ptr() + behind,
                stride,
                count,
                group,
                size,
                floats.ctypes.data,
                scores.data_ptr(),
                out.data_ptr() + mine,
            )
        return out


RUNG = Decode()
