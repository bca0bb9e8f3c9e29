"""One layer of a decoder: attention and feed-forward part, bound to their linears."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from rung.models.card import Decoder as Shape
from rung.ops.decode_step.glue import Glue
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
    glue: Glue
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
    def bind(cls, shape: Shape, index: int, parts: Parts, glue: Glue) -> Block:
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
            glue=glue,
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

    def forward(self, hidden: Tensor, cache: Cache, start: int, cos: Tensor, sin: Tensor, interleaved: bool) -> None:
        """Adds what this layer computes to hidden [T, hidden], in place; writes the cache at ``start`` and on."""
        glue = self.glue
        mixed = self._attention(glue.norm(hidden, self.attention_norm), cache, start, cos, sin, interleaved)
        if self.attention_post_norm is not None:
            mixed = glue.norm(mixed, self.attention_post_norm)
        hidden += mixed
        del mixed
        added = self.narrow(self._gated(glue.norm(hidden, self.mlp_norm)))
        if self.mlp_post_norm is not None:
            added = glue.norm(added, self.mlp_post_norm)
        hidden += added

    def _attention(self, x: Tensor, cache: Cache, start: int, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
        q, k, v = self._heads(x)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.glue.norm(q, self.q_norm), self.glue.norm(k, self.k_norm)
        self.glue.rotate(q, cos, sin, interleaved)
        self.glue.rotate(k, cos, sin, interleaved)
        cache.write(self.index, start, k, v)
        keys, values = cache.read(self.index, start + x.shape[0])
        scale, softcap = self.shape.attention_scale, self.shape.attention_softcap
        out = self.attend(q, keys, values, start=start, scale=scale, window=self.window, softcap=softcap)
        return self.output(out.reshape(x.shape[0], -1))

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q [T, heads, head_dim], k and v [T, kv_heads, head_dim]."""
        shape = self.shape
        if len(self.inputs) == 1:
            wide, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
            q, k, v = (piece.contiguous() for piece in self.inputs[0](x).split([wide, narrow, narrow], dim=1))
        else:
            q, k, v = (linear(x) for linear in self.inputs)
        return tuple(piece.view(x.shape[0], -1, shape.head_dim) for piece in (q, k, v))  # type: ignore[return-value]

    def _gated(self, x: Tensor) -> Tensor:
        if len(self.widen) == 1:
            gate, up = self.widen[0](x).chunk(2, dim=1)
        else:
            gate, up = (linear(x) for linear in self.widen)
        return self.glue.gate(gate, up)
