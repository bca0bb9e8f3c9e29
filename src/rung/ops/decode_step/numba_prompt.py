"""Prompts without torch: bound linears, compiled functions between the products, everything else f32 in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from rung.formats.codec import Floats
from rung.kernels.cpu.decode import prefill_elementwise
from rung.kernels.cpu.decode.attention import BLOCK, padded, query_block
from rung.kernels.cpu.parallel import run
from rung.ops.decode_step.parts import Cache, Linear
from rung.ops.decode_step.weights import LayerWeights, Weights


def reads(weights: Weights) -> bool:
    """Return whether every linear is bound to rungs that need no torch, so that ``PromptReader`` multiplies with it."""
    linears: list[Linear] = [weights.head]
    for layer in weights.layers:
        linears += [biased.linear for biased in (*layer.inputs, layer.output, *layer.widen, layer.narrow)]
    return all(linear.without_torch for linear in linears)


@dataclass(frozen=True)
class _Rows:
    """Float32 rows at ``address``, ``stride`` bytes apart; ``keep`` owns the memory."""

    address: int
    stride: int
    keep: Floats


class PromptReader:
    """See ``rung.ops.decode_step``. Keeps no state: what has been read is in the cache."""

    def __init__(self, weights: Weights, threads: int) -> None:
        self._weights, self._threads = weights, threads
        shape = self._shape = weights.shape
        self._epsilon = np.array([shape.norm_epsilon], dtype=np.float32)
        self._scales = np.array([0.0, shape.attention_scale, shape.attention_softcap or 0.0], dtype=np.float32)

    def read(self, ids: Sequence[int], cache: Cache, start: int) -> Floats:
        """Return hidden states [T, hidden] after the last layer, of ids at ``start`` and on; write the cache there."""
        hidden = self._weights.look_up.rows(ids)
        hidden = hidden * np.float32(self._shape.embedding_scale)
        turns = [frequencies.table(start, len(ids)) for frequencies in self._weights.frequencies]
        for layer in self._weights.layers:
            self._layer(layer, hidden, cache, start, turns[layer.rope])
        return hidden

    def logits(self, hidden: Floats) -> Floats:
        """Return logits [T, vocabulary] of hidden states [T, hidden], which are overwritten."""
        logits = self._weights.head.multiply(self._add_and_norm(hidden, None, None, self._weights.norm))
        softcap = self._shape.logit_softcap
        if softcap is not None:
            np.multiply(np.tanh(logits / np.float32(softcap)), np.float32(softcap), out=logits)
        return logits

    def _layer(
        self, layer: LayerWeights, hidden: Floats, cache: Cache, start: int, turns: tuple[Floats, Floats]
    ) -> None:
        q, k, v = self._heads(layer, self._add_and_norm(hidden, None, None, layer.attention_norm))
        self._rope_and_store_kv(layer, (q, k, v), cache, (start, len(hidden)), turns)
        mixed = layer.output.multiply(self._attend(layer, q, cache, start, len(hidden)))
        x = self._add_and_norm(hidden, mixed, layer.attention_post_norm, layer.mlp_norm)
        self._add_and_norm(hidden, layer.narrow.multiply(self._gated(layer, x)), layer.mlp_post_norm, None)

    def _add_and_norm(
        self, hidden: Floats, added: Floats | None, post_norm: Floats | None, norm: Floats | None
    ) -> Floats:
        """Add post_norm(added) to hidden in place; return norm(hidden), or hidden without a norm."""
        out = hidden if norm is None else np.empty_like(hidden)
        arrays = (hidden, added, post_norm, norm, out)
        self._run(
            prefill_elementwise.add_and_norm.address, *hidden.shape, *map(_address, arrays), self._epsilon.ctypes.data
        )
        return out

    def _heads(self, layer: LayerWeights, x: Floats) -> tuple[_Rows, _Rows, _Rows]:
        """Return q, k and v of x [T, hidden], as one product where the weights are one."""
        whole = [linear.multiply(x) for linear in layer.inputs]
        if len(whole) == 3:
            q, k, v = (_Rows(part.ctypes.data, part.strides[0], part) for part in whole)
            return q, k, v
        (qkv,) = whole
        q_bytes, kv_bytes = (4 * heads * self._shape.head_dim for heads in (self._shape.heads, self._shape.kv_heads))
        part = partial(_Rows, stride=qkv.strides[0], keep=qkv)
        at = qkv.ctypes.data
        return part(at), part(at + q_bytes), part(at + q_bytes + kv_bytes)

    def _rope_and_store_kv(
        self,
        layer: LayerWeights,
        qkv: tuple[_Rows, _Rows, _Rows],
        cache: Cache,
        positions: tuple[int, int],
        turns: tuple[Floats, Floats],
    ) -> None:
        """Norm and rotate q and k in place; write k and v into the cache. ``positions``: the first, and how many."""
        shape, rows, (start, count) = self._shape, cache.rows(layer.index), positions
        (cosine, sine), behind = turns, start * rows.row_stride
        self._run(
            prefill_elementwise.rope_and_store_kv[rows.dtype].address,
            *(count, shape.heads, shape.kv_heads, shape.head_dim),
            *(part.address for part in qkv),
            *(part.stride for part in qkv),
            *map(_address, (layer.q_norm, layer.k_norm)),
            *(self._epsilon.ctypes.data, cosine.ctypes.data, sine.ctypes.data, cosine.shape[1]),
            int(self._weights.frequencies[layer.rope].interleaved),
            *(rows.keys + behind, rows.values + behind, rows.head_stride, rows.row_stride),
        )

    def _attend(self, layer: LayerWeights, q: _Rows, cache: Cache, start: int, count: int) -> Floats:
        """Return what the queries gather, [T, heads * head_dim]."""
        shape, rows = self._shape, cache.rows(layer.index)
        out = np.empty((count, shape.heads * shape.head_dim), np.float32)
        row = BLOCK * padded(start + count + BLOCK)
        scores = np.empty(self._threads * row, np.float32)
        self._run(
            prefill_elementwise.attend.address,
            *(count, shape.heads, shape.kv_heads, shape.head_dim, q.address, q.stride),
            *(rows.keys, rows.values, rows.head_stride, rows.row_stride, start, layer.window or 0),
            *(self._scales.ctypes.data, query_block[rows.dtype].address, scores.ctypes.data, 4 * row, out.ctypes.data),
        )
        return out

    def _gated(self, layer: LayerWeights, x: Floats) -> Floats:
        """Return activation(gate) * up, [T, feed_forward]."""
        whole = [linear.multiply(x) for linear in layer.widen]
        columns = self._shape.feed_forward
        gate, up = (whole[0][:, :columns], whole[0][:, columns:]) if len(whole) == 1 else whole
        is_gelu = int(self._shape.activation == "gelu_tanh")
        self._run(
            prefill_elementwise.gate_rows.address,
            len(x),
            columns,
            gate.ctypes.data,
            up.ctypes.data,
            gate.strides[0],
            is_gelu,
        )
        return gate

    def _run(self, function: int, *words: int) -> None:
        run(function, (0, *words), self._threads)


def _address(array: Floats | None) -> int:
    return 0 if array is None else int(array.ctypes.data)
