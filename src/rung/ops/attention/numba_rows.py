"""Attention in compiled vectors, straight from a cache in 32 or 16 bits, which is not copied.

Heads of a token, or tokens of a head, are computed four at a time; nothing is converted twice or masked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rung.formats.codec import Floats
from rung.kernels.cpu.decode.attention import AttendWord, attend, heads_at_once
from rung.kernels.cpu.decode.cache_layout import QUAD, score_floats
from rung.kernels.cpu.decode.step_program import cache_words
from rung.kernels.cpu.thread_pool import process_threads, run

if TYPE_CHECKING:
    from torch import Tensor


#: NumPy has no bfloat16: its words stand for it.
_NAMES = {"float32": "f32", "float16": "f16", "uint16": "bf16"}


def as_arrays(*tensors: Tensor) -> tuple[Any, ...]:
    """Return views of tensors on the CPU; of bfloat16 the words."""
    import torch

    return tuple((t.view(torch.uint16) if t.dtype == torch.bfloat16 else t).detach().numpy() for t in tensors)


def dtype_of(array: np.ndarray) -> str:
    """Return rung's name of the dtype of a cache."""
    return _NAMES[array.dtype.name]


#: Positions of a block that holds all of an array.
_ALL = 1 << 40


class Attention:
    """See ``rung.ops.attention``; heads of a multiple of 16 values."""

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
        kv_heads, threads = keys.shape[1], process_threads()
        out = np.empty((tokens, heads, size), np.float32)
        scores = np.empty((threads, score_floats(len(keys), size)), np.float32)
        floats = np.array([0.0, scale, softcap or 0.0], dtype=np.float32)
        lies = (_ALL, 0, values.ctypes.data - keys.ctypes.data, keys.strides[1], keys.strides[0])
        cache = cache_words(lies, dtype_of(keys), size, window, floats)
        table = np.array([keys.ctypes.data], np.int64)
        runs, count = self._runs(tokens, start, table.ctypes.data)
        few = heads_at_once(kv_heads, heads // kv_heads, tokens, threads)
        words = [0] * len(AttendWord)
        words[AttendWord.KV_HEADS : AttendWord.QUERY] = kv_heads, heads // kv_heads, few
        words[AttendWord.QUERY : AttendWord.OUT] = q.ctypes.data, q.strides[0]
        words[AttendWord.OUT : AttendWord.RUNS] = out.ctypes.data, out.strides[0]
        words[AttendWord.RUNS : AttendWord.CACHE] = runs.ctypes.data, count.ctypes.data
        words[AttendWord.CACHE :] = cache.ctypes.data, scores.ctypes.data, scores.strides[0]
        run(attend.address, words, threads)
        return out

    @staticmethod
    def _runs(tokens: int, start: int, table: int) -> tuple[np.ndarray, np.ndarray]:
        """Return ``RunWord`` of each run, late ones first, and their number."""
        firsts = np.arange(0, tokens, QUAD)[::-1]
        runs = np.stack(
            [firsts, np.minimum(QUAD, tokens - firsts), start + firsts, np.full(len(firsts), table)], axis=1
        ).astype(np.int64)
        return runs, np.array([len(runs)], np.int64)


RUNG = Attention()
