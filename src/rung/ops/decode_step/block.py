"""One layer of a decoder: attention and feed-forward part, bound to their linears."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rung.models.card import Decoder as Shape
from rung.ops.decode_step.glue import Glue, Place
from rung.ops.decode_step.parts import Attend, Cache, Linear, Parts


@dataclass(frozen=True)
class Biased:
    """A bound linear and the bias that is added to what it gives."""

    linear: Linear
    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor:
        """[T, in] -> [T, out]."""
        y = self.linear(x)
        return y if self.bias is None else y.add_(self.bias)


@dataclass(frozen=True)
class Block:
    """The bound parts of one layer; ``inputs`` are q, k, v (or qkv alone), ``widen`` gate, up (or gate_up alone)."""

    index: int
    rope: int
    window: int | None
    shape: Shape
    attention_norm: Tensor
    inputs: tuple[Biased, ...]
    q_norm: Tensor | None
    k_norm: Tensor | None
    attend: Attend
    output: Biased
    attention_post_norm: Tensor | None
    mlp_norm: Tensor
    widen: tuple[Biased, ...]
    narrow: Biased
    mlp_post_norm: Tensor | None

    @classmethod
    def bind(cls, shape: Shape, index: int, parts: Parts) -> Block:
        """Asks ``parts`` for everything that layer ``index`` has, in the order of use."""

        def norm(role: str) -> Tensor | None:
            name = f"layers.{index}.{role}"
            return parts.vector(name) + shape.norm_offset if parts.holds(name) else None

        def linear(role: str) -> Biased:
            name = f"layers.{index}.{role}"
            bias = parts.vector(f"{name}_bias") if parts.holds(f"{name}_bias") else None
            return Biased(parts.linear(name), bias)

        def fused(whole: str, *pieces: str) -> tuple[Biased, ...]:
            return tuple(map(linear, (whole,) if parts.holds(f"layers.{index}.{whole}") else pieces))

        attention_norm = parts.vector(f"layers.{index}.attn_norm") + shape.norm_offset
        inputs = fused("qkv", "q", "k", "v")
        return cls(
            index=index,
            rope=shape.layers[index].rope,
            window=shape.layers[index].window,
            shape=shape,
            attention_norm=attention_norm,
            inputs=inputs,
            q_norm=norm("q_norm"),
            k_norm=norm("k_norm"),
            attend=parts.attention(index),
            output=linear("o"),
            attention_post_norm=norm("attn_post_norm"),
            mlp_norm=parts.vector(f"layers.{index}.mlp_norm") + shape.norm_offset,
            widen=fused("gate_up", "gate", "up"),
            narrow=linear("down"),
            mlp_post_norm=norm("mlp_post_norm"),
        )

    def forward(self, hidden: Tensor, cache: Cache, place: Place, glue: Glue) -> None:
        """Adds what this layer computes to hidden [T, hidden], in place; writes the cache at ``place.start`` and on."""
        mixed = self._attention(glue.add_and_norm(hidden, None, None, self.attention_norm), cache, place, glue)
        x = glue.add_and_norm(hidden, mixed, self.attention_post_norm, self.mlp_norm)
        del mixed
        glue.add_and_norm(hidden, self.narrow(self._gated(x, glue)), self.mlp_post_norm, None)

    def _attention(self, x: Tensor, cache: Cache, place: Place, glue: Glue) -> Tensor:
        q, k, v = self._heads(x)
        glue.turn_and_keep(q, k, v, place, cache)
        keys, values = cache.read(self.index, place.start + x.shape[0])
        scale, softcap = self.shape.attention_scale, self.shape.attention_softcap
        out = self.attend(q, keys, values, start=place.start, scale=scale, window=self.window, softcap=softcap)
        return self.output(out.reshape(x.shape[0], -1))

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q [T, heads, head_dim], k and v [T, kv_heads, head_dim]; the tokens may lie apart."""
        shape = self.shape
        if len(self.inputs) == 1:
            wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
            q, k, v = self.inputs[0](x).split([wide, narrow, narrow], dim=1)
        else:
            q, k, v = (linear(x) for linear in self.inputs)
        q, k, v = (piece.unflatten(1, (-1, shape.head_dim)) for piece in (q, k, v))
        return q, k, v

    def _gated(self, x: Tensor, glue: Glue) -> Tensor:
        if len(self.widen) == 1:
            gate, up = self.widen[0](x).chunk(2, dim=1)
        else:
            gate, up = (linear(x) for linear in self.widen)
        return glue.gate(gate, up)
