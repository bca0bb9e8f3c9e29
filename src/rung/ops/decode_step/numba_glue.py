"""The glue in compiled functions: each part of a layer reads and writes its memory once, on all threads."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rung.kernels.cpu.decode import prefill_elementwise
from rung.kernels.cpu.parallel import run
from rung.models.card import Decoder as Shape
from rung.ops.decode_step.glue import TokenSpan
from rung.ops.decode_step.network import Network
from rung.ops.decode_step.parts import Cache
from rung.ops.decode_step.ref import Reference, State
from rung.ops.decode_step.weights import Weights


def _at(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


class NumbaGlue:
    """See ``Glue``: f32 on the CPU, a cache of f32 or f16, lengths that are multiples of 16."""

    def __init__(self, shape: Shape, threads: int) -> None:
        self._epsilon = np.array([shape.norm_epsilon], dtype=np.float32)
        self._threads = threads
        self._gelu = shape.activation == "gelu_tanh"

    def _run(self, function: int, *words: int) -> None:
        run(function, (0, *words), self._threads)

    def add_and_norm(
        self, hidden: Tensor, added: Tensor | None, post_norm: Tensor | None, norm: Tensor | None
    ) -> Tensor:
        """See ``Glue``; ``added`` may be overwritten."""
        out = hidden if norm is None else torch.empty_like(hidden)
        pointers = map(_at, (hidden, added, post_norm, norm, out))
        self._run(prefill_elementwise.add_and_norm.address, *hidden.shape, *pointers, self._epsilon.ctypes.data)
        return out

    def rope_and_store_kv(self, q: Tensor, k: Tensor, v: Tensor, place: TokenSpan, cache: Cache) -> None:
        """See ``Glue``; the heads of a token follow each other without gaps."""
        rows = cache.rows(place.layer)
        behind = place.start * rows.row_stride
        self._run(
            prefill_elementwise.rope_and_store_kv[rows.dtype].address,
            *(*q.shape[:2], *k.shape[1:]),
            *map(_at, (q, k, v)),
            *(4 * x.stride(0) for x in (q, k, v)),
            *map(_at, (place.q_norm, place.k_norm)),
            self._epsilon.ctypes.data,
            *map(_at, (place.cos, place.sin)),
            *(place.cos.shape[1], int(place.interleaved)),
            *(rows.keys + behind, rows.values + behind, rows.head_stride, rows.row_stride),
        )

    def gate(self, gate: Tensor, up: Tensor) -> Tensor:
        """See ``Glue``; the rows of both lie equally far apart."""
        rows, columns = gate.shape
        self._run(
            prefill_elementwise.gate_rows.address,
            rows,
            columns,
            _at(gate),
            _at(up),
            4 * gate.stride(0),
            int(self._gelu),
        )
        return gate


class Glued(Reference):
    """See ``rung.ops.decode_step``: the smaller ops with the glue of this module."""

    def prepare(self, weights: Weights, cache: Cache, *, threads: int) -> State:
        """The parts are bound already; the glue is compiled."""
        return State(Network(weights, NumbaGlue(weights.shape, threads), threads), cache)


RUNG = Glued()
