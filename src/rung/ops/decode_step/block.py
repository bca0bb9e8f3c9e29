"""One layer of a decoder in torch: attention and feed-forward part, for many tokens at once."""

from __future__ import annotations

import torch
from torch import Tensor

from rung.models.card import Decoder as Shape
from rung.ops.decode_step.glue import Glue, TokenSpan
from rung.ops.decode_step.parts import Adapter, Cache, first_visible
from rung.ops.decode_step.weights import Biased, LayerWeights


class Linear:
    """A bound linear and its bias as a tensor where the layer computes."""

    def __init__(self, biased: Biased, device: str) -> None:
        self._role, self._linear = biased.role, biased.linear
        self._bias = None if biased.bias is None else torch.from_numpy(biased.bias).to(device)

    def __call__(self, x: Tensor, adapter: Adapter | None) -> Tensor:
        """[T, in] -> [T, out]."""
        y = self._linear(x)
        if adapter is not None:
            y = adapter.added(self._role, y, x)
        return y if self._bias is None else y.add_(self._bias)


class Block:
    """The parts of one layer where it computes; see ``LayerWeights``."""

    def __init__(self, shape: Shape, weights: LayerWeights) -> None:
        """Copies the vectors there; nothing on the CPU."""
        self.shape, self.weights = shape, weights
        self.attention_norm, self.mlp_norm = (
            torch.from_numpy(norm).to(weights.device) for norm in (weights.attention_norm, weights.mlp_norm)
        )
        self.q_norm, self.k_norm, self.attention_post_norm, self.mlp_post_norm = (
            None if norm is None else torch.from_numpy(norm).to(weights.device)
            for norm in (weights.q_norm, weights.k_norm, weights.attention_post_norm, weights.mlp_post_norm)
        )
        self.inputs, self.widen = (
            tuple(Linear(linear, weights.device) for linear in group) for group in (weights.inputs, weights.widen)
        )
        self.output, self.narrow = (Linear(linear, weights.device) for linear in (weights.output, weights.narrow))

    def forward(self, hidden: Tensor, cache: Cache, span: TokenSpan, glue: Glue, adapter: Adapter | None) -> None:
        """Adds what this layer computes to hidden [T, hidden], in place; writes the cache at ``place.start`` and on."""
        x = glue.add_and_norm(hidden, None, None, self.attention_norm)
        mixed = self.output(self._attention(x, cache, span, glue, adapter), adapter)
        x = glue.add_and_norm(hidden, mixed, self.attention_post_norm, self.mlp_norm)
        del mixed
        narrowed = self.narrow(self._gated(x, glue, adapter), adapter)
        glue.add_and_norm(hidden, narrowed, self.mlp_post_norm, None)

    def _attention(self, x: Tensor, cache: Cache, span: TokenSpan, glue: Glue, adapter: Adapter | None) -> Tensor:
        """Return the output of attention, [T, heads * head_dim]."""
        q, k, v = self._heads(x, adapter)
        glue.rope_and_store_kv(q, k, v, span, cache)
        scale, softcap, window = self.shape.attention_scale, self.shape.attention_softcap, self.weights.window
        first = first_visible(span.start, window)
        keys, values = cache.read(self.weights.index, first, span.start + x.shape[0])
        start = span.start - first
        assert self.weights.attend is not None, "no cache in blocks comes here"
        out = self.weights.attend(q, keys, values, start=start, scale=scale, window=window, softcap=softcap)
        return out.reshape(x.shape[0], -1)

    def _heads(self, x: Tensor, adapter: Adapter | None) -> tuple[Tensor, Tensor, Tensor]:
        """q [T, heads, head_dim], k and v [T, kv_heads, head_dim]; the tokens may lie apart."""
        shape = self.shape
        if len(self.inputs) == 1:
            wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
            q, k, v = self.inputs[0](x, adapter).split([wide, narrow, narrow], dim=1)
        else:
            q, k, v = (linear(x, adapter) for linear in self.inputs)
        q, k, v = (piece.unflatten(1, (-1, shape.head_dim)) for piece in (q, k, v))
        return q, k, v

    def _gated(self, x: Tensor, glue: Glue, adapter: Adapter | None) -> Tensor:
        if len(self.widen) == 1:
            gate, up = self.widen[0](x, adapter).chunk(2, dim=1)
        else:
            gate, up = (linear(x, adapter) for linear in self.widen)
        return glue.gate(gate, up)
