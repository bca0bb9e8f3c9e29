"""The glue in compiled functions: each part of a layer reads and writes its memory once, on all threads."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rung.kernels.cpu.decode import rows
from rung.kernels.cpu.decode.rope_and_store import StoreWord, rope_and_store_kv
from rung.kernels.cpu.decode.step_program import cache_words
from rung.kernels.cpu.thread_pool import run
from rung.models.card import Decoder as Shape
from rung.ops.decode_step.network import Network, TokenSpan
from rung.ops.decode_step.parts import Cache, Pool
from rung.ops.decode_step.ref import Reference
from rung.ops.decode_step.weights import Weights


def _at(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


class NumbaGlue:
    """See ``Glue``: f32 on the CPU, a cache of f32 or f16, lengths that are multiples of 16."""

    def __init__(self, shape: Shape, pool: Pool, threads: int) -> None:
        self._floats = np.array([shape.norm_epsilon, shape.attention_scale, 0], dtype=np.float32)
        self._pool, self._threads = pool, threads
        self._gelu = shape.activation == "gelu_tanh"

    def _run(self, function: int, *words: int) -> None:
        run(function, (0, *words), self._threads)

    def add_and_norm(
        self, hidden: Tensor, added: Tensor | None, post_norm: Tensor | None, norm: Tensor | None
    ) -> Tensor:
        """See ``Glue``; ``added`` may be overwritten."""
        out = hidden if norm is None else torch.empty_like(hidden)
        pointers = map(_at, (hidden, added, post_norm, norm, out))
        self._run(rows.add_and_norm.address, *hidden.shape, *pointers, self._floats.ctypes.data)
        return out

    def rope_and_store_kv(self, q: Tensor, k: Tensor, v: Tensor, span: TokenSpan, cache: Cache) -> None:
        """See ``Glue``; the heads of a token follow each other without gaps."""
        group, *offsets = self._pool.layer(span.layer)
        layout = (self._pool.block, *offsets)
        lies = cache_words(layout, self._pool.dtype, q.shape[2], None, self._floats)
        at = np.array([(span.start + row, cache.table(group)) for row in range(len(q))], np.int64)
        words = [0] * len(StoreWord)
        words[StoreWord.TOKENS : StoreWord.Q] = len(q), k.shape[1], q.shape[1] // k.shape[1]
        words[StoreWord.Q : StoreWord.Q_APART] = map(_at, (q, k, v))
        words[StoreWord.Q_APART : StoreWord.Q_NORM] = (4 * x.stride(0) for x in (q, k, v))
        words[StoreWord.Q_NORM : StoreWord.COSINE] = map(_at, (span.q_norm, span.k_norm))
        words[StoreWord.COSINE : StoreWord.HALF] = map(_at, (span.cos, span.sin))
        words[StoreWord.HALF], words[StoreWord.INTERLEAVED] = span.cos.shape[1], int(span.interleaved)
        words[StoreWord.ROWS], words[StoreWord.CACHE] = at.ctypes.data, lies.ctypes.data
        run(rope_and_store_kv[self._pool.dtype].address, words, self._threads)

    def gate(self, gate: Tensor, up: Tensor) -> Tensor:
        """See ``Glue``; the rows of both lie equally far apart."""
        count, columns = gate.shape
        self._run(
            rows.gate_rows.address,
            count,
            columns,
            _at(gate),
            _at(up),
            4 * gate.stride(0),
            int(self._gelu),
        )
        return gate


class Glued(Reference):
    """See ``rung.ops.decode_step``: the smaller ops with the glue of this module."""

    def prepare(self, weights: Weights, pool: Pool, *, threads: int) -> Network:
        """The parts are bound already; the glue is compiled."""
        return Network(weights, NumbaGlue(weights.shape, pool, threads), threads)


RUNG = Glued()
