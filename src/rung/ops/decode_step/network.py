"""A decoder in torch: from token ids to logits, a chunk of tokens at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from rung.formats.codec import Floats
from rung.models.card import Decoder as Shape
from rung.ops.decode_step.parts import Adapter, Cache, first_visible
from rung.ops.decode_step.rope import rotate
from rung.ops.decode_step.weights import Biased, LayerWeights, Weights


@dataclass(frozen=True)
class TokenSpan:
    """Where some tokens stand in a layer: the layer, the first position, and its rotation.

    cos and sin are [T, dims / 2] f32; the norms are those of q and k where a model has them.
    """

    layer: int
    start: int
    cos: Tensor
    sin: Tensor
    interleaved: bool
    q_norm: Tensor | None
    k_norm: Tensor | None


class Glue(Protocol):
    """The small things between the products of a layer."""

    def add_and_norm(
        self, hidden: Tensor, added: Tensor | None, post_norm: Tensor | None, norm: Tensor | None
    ) -> Tensor:
        """hidden [T, hidden] += post_norm(added), in place; then norm(hidden) as a new tensor, hidden without one."""

    def rope_and_store_kv(self, q: Tensor, k: Tensor, v: Tensor, span: TokenSpan, cache: Cache) -> None:
        """Norms and rotates q [T, heads, D] and k [T, kv_heads, D] in place, and writes k and v into the cache."""

    def gate(self, gate: Tensor, up: Tensor) -> Tensor:
        """activation(gate) * up, both [T, feed_forward]; may overwrite them."""


class TorchGlue:
    """The glue in plain torch, on any device."""

    def __init__(self, shape: Shape) -> None:
        self._epsilon = shape.norm_epsilon
        self._gelu = shape.activation == "gelu_tanh"

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """x / sqrt(mean(x^2) + epsilon) * weight over the last dimension."""
        mean = x.square().mean(dim=-1, keepdim=True)
        return (x * mean.add_(self._epsilon).rsqrt_()).mul_(weight)

    def add_and_norm(
        self, hidden: Tensor, added: Tensor | None, post_norm: Tensor | None, norm: Tensor | None
    ) -> Tensor:
        """See ``Glue``."""
        if added is not None:
            hidden += added if post_norm is None else self._norm(added, post_norm)
        return hidden if norm is None else self._norm(hidden, norm)

    def rope_and_store_kv(self, q: Tensor, k: Tensor, v: Tensor, span: TokenSpan, cache: Cache) -> None:
        """See ``Glue``."""
        for x, norm in ((q, span.q_norm), (k, span.k_norm)):
            if norm is not None:
                x.copy_(self._norm(x, norm))
            rotate(x, span.cos, span.sin, span.interleaved)
        cache.write(span.layer, span.start, k, v)

    def gate(self, gate: Tensor, up: Tensor) -> Tensor:
        """silu or gelu (its tanh form) of the gate, times up."""
        if self._gelu:
            return torch.nn.functional.gelu(gate, approximate="tanh").mul_(up)
        return torch.nn.functional.silu(gate, inplace=True).mul_(up)


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


class Network:
    """Embedding, blocks and head of one model in torch. It keeps no state: what has been read is in a cache.

    Everything is f32 beside the weights and the cache. ``glue`` is what lies between the products; ``threads`` is
    what torch computes with on a CPU from now on.
    """

    def __init__(self, weights: Weights, glue: Glue, threads: int) -> None:
        torch.set_num_threads(threads)
        self.weights, self.glue = weights, glue
        self.shape = weights.shape
        self.blocks = tuple(Block(weights.shape, layer) for layer in weights.layers)
        self.head = Linear(weights.head, weights.layers[-1].device)
        self.norm = torch.from_numpy(weights.norm).to(weights.layers[-1].device)

    def embed(self, ids: Tensor) -> Tensor:
        """The scaled rows [T, hidden] f32 of ids [T] int64."""
        hidden = self.weights.look_up(ids)
        return hidden if self.shape.embedding_scale == 1.0 else hidden * self.shape.embedding_scale

    @torch.inference_mode()
    def read(self, ids: Sequence[int], cache: Cache, start: int, adapter: Adapter | None) -> Tensor:
        """Return hidden states [T, hidden] after the last layer, of ids at ``start`` and on; write the cache there."""
        hidden = self.embed(torch.tensor(ids, dtype=torch.int64))
        tables = [frequencies.table(range(start, start + len(ids))) for frequencies in self.weights.frequencies]
        for block in self.blocks:
            layer = block.weights
            hidden = hidden.to(layer.device)
            cos, sin = (torch.from_numpy(table).to(layer.device) for table in tables[layer.rope])
            interleaved = self.weights.frequencies[layer.rope].interleaved
            span = TokenSpan(layer.index, start, cos, sin, interleaved, block.q_norm, block.k_norm)
            block.forward(hidden, cache, span, self.glue, adapter)
        return hidden

    @torch.inference_mode()
    def normed(self, hidden: Tensor) -> Floats:
        """Return hidden states [T, hidden] after the final norm."""
        states: Floats = self.glue.add_and_norm(hidden, None, None, self.norm).to("cpu", torch.float32).numpy()
        return states

    @torch.inference_mode()
    def logits(self, hidden: Tensor, adapter: Adapter | None) -> Floats:
        """Return logits [T, vocabulary] of hidden states [T, hidden]."""
        logits = self.head(self.glue.add_and_norm(hidden, None, None, self.norm), adapter)
        softcap = self.shape.logit_softcap
        if softcap is not None:
            logits = logits.div_(softcap).tanh_().mul_(softcap)
        found: Floats = logits.to("cpu", torch.float32).numpy()
        return found
