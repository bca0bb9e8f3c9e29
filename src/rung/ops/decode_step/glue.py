"""Hold what lies between the products of a layer: norms, rotation, the cache and the gated activation, in plain
torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from rung.models.card import Decoder as Shape
from rung.ops.decode_step.parts import Cache
from rung.ops.decode_step.rope import rotate


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
