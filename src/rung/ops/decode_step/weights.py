"""Compute what a decoder computes with: its bound parts in their order, for whole tokens and for prompts, without
torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from rung.formats.codec import Floats
from rung.models.card import Decoder as Shape
from rung.ops.decode_step.parts import Adapter, Attend, Embedding, Linear, Parts, Room
from rung.ops.decode_step.rope import Frequencies


class AdapterRows(NamedTuple):
    """The rows [first, last) of a batch, which have an adapter."""

    first: int
    last: int
    adapter: Adapter


@dataclass(frozen=True)
class Biased:
    """A bound linear, its role (``layers.3.q``), and the bias that is added to what it gives."""

    role: str
    linear: Linear
    bias: Floats | None

    def multiply(self, x: Floats, adapters: Sequence[AdapterRows] = (), room: Room | None = None) -> Floats:
        """Return x [T, in] times the weight, with what adapters change, and the bias: [T, out], without torch.
        The next result in the same ``room`` overwrites it."""
        y = self.linear.multiply(x) if room is None else self.linear.multiply(x, room)
        for first, last, adapter in adapters:
            adapter.add(self.role, x[first:last], y[first:last])
        if self.bias is not None:
            y += self.bias
        return y


@dataclass(frozen=True)
class LayerWeights:
    """The bound parts of one layer; ``inputs`` are q, k, v (or qkv alone), ``widen`` gate, up (or gate_up alone).

    ``device`` is torch's name of where the layer computes. Norms have their offset.
    """

    index: int
    rope: int
    window: int | None
    device: str
    attention_norm: Floats
    inputs: tuple[Biased, ...]
    q_norm: Floats | None
    k_norm: Floats | None
    attend: Attend | None
    output: Biased
    attention_post_norm: Floats | None
    mlp_norm: Floats
    widen: tuple[Biased, ...]
    narrow: Biased
    mlp_post_norm: Floats | None

    @property
    def linears(self) -> tuple[Biased, ...]:
        """Return every linear, in the order of use."""
        return (*self.inputs, self.output, *self.widen, self.narrow)

    @classmethod
    def bind(cls, shape: Shape, index: int, parts: Parts) -> LayerWeights:
        """Asks ``parts`` for everything that layer ``index`` has, in the order of use."""

        def norm(role: str) -> Floats:
            return parts.vector(f"layers.{index}.{role}") + np.float32(shape.norm_offset)

        def optional(role: str) -> Floats | None:
            return norm(role) if parts.holds(f"layers.{index}.{role}") else None

        def linear(role: str) -> Biased:
            name = f"layers.{index}.{role}"
            bias = parts.vector(f"{name}_bias") if parts.holds(f"{name}_bias") else None
            return Biased(name, parts.linear(name), bias)

        def fused(whole: str, *pieces: str) -> tuple[Biased, ...]:
            return tuple(map(linear, (whole,) if parts.holds(f"layers.{index}.{whole}") else pieces))

        return cls(
            index=index,
            rope=shape.layers[index].rope,
            window=shape.layers[index].window,
            device=parts.device(index),
            attention_norm=norm("attn_norm"),
            inputs=fused("qkv", "q", "k", "v"),
            q_norm=optional("q_norm"),
            k_norm=optional("k_norm"),
            attend=parts.attention(index),
            output=linear("o"),
            attention_post_norm=optional("attn_post_norm"),
            mlp_norm=norm("mlp_norm"),
            widen=fused("gate_up", "gate", "up"),
            narrow=linear("down"),
            mlp_post_norm=optional("mlp_post_norm"),
        )


@dataclass(frozen=True)
class LayerStack:
    """Layers of one model that follow each other, all or some of them; ``frequencies`` are those of a context of known
    length. ``first_linear`` is the number that the first linear here has among those of all parts of the model."""

    shape: Shape
    frequencies: tuple[Frequencies, ...]
    layers: tuple[LayerWeights, ...]
    first_linear: int = field(default=0, kw_only=True)

    @property
    def linears(self) -> Iterator[tuple[Biased, str]]:
        """Yield every linear with torch's name of where it computes, in the order of use."""
        for layer in self.layers:
            for each in layer.linears:
                yield each, layer.device

    @classmethod
    def bind_layers(cls, shape: Shape, parts: Parts, context: int) -> LayerStack:
        """Asks ``parts`` for every part of the layers of ``shape``, in the order of use."""
        ropes = tuple(Frequencies.choose(rope, context) for rope in shape.ropes)
        return LayerStack(shape, ropes, _bind_all(shape, parts))


def _bind_all(shape: Shape, parts: Parts) -> tuple[LayerWeights, ...]:
    return tuple(LayerWeights.bind(shape, index, parts) for index in range(len(shape.layers)))


@dataclass(frozen=True)
class Weights(LayerStack):
    """Embedding, layers and head of one model. Where other machines have layers too, those here come first."""

    look_up: Embedding
    norm: Floats
    head: Biased

    @property
    def linears(self) -> Iterator[tuple[Biased, str]]:
        """Yield every linear with torch's name of where it computes, in the order of use."""
        yield from super().linears
        yield self.head, self.layers[-1].device

    def part(self, first: int, last: int) -> LayerStack:
        """Return the layers [first, last) alone; with the last layer come norm and head."""
        skipped = self.first_linear + sum(len(layer.linears) for layer in self.layers[:first])
        layers = self.layers[first:last]
        if last == len(self.layers):
            return replace(self, layers=layers, first_linear=skipped)
        return LayerStack(self.shape, self.frequencies, layers, first_linear=skipped)

    @classmethod
    def bind(cls, shape: Shape, parts: Parts, context: int) -> Weights:
        """Asks ``parts`` for every part, in the order of use."""
        return cls(
            shape=shape,
            frequencies=tuple(Frequencies.choose(rope, context) for rope in shape.ropes),
            look_up=parts.look_up(),
            layers=_bind_all(shape, parts),
            norm=parts.vector("norm") + np.float32(shape.norm_offset),
            head=Biased("head", parts.linear("head"), None),
        )
