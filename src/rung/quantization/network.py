"""Compute a decoder a layer at a time over a whole text, forwards and backwards, with one layer's weights in memory.

This is the network of ``rung.ops.decode_step`` in f32, without a cache and with gradients: what enters each linear is
seen on the way forwards, and how much the answer depends on what leaves it on the way back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from rung import formats
from rung.formats.codec import Floats
from rung.models.card import Decoder, ModelCard
from rung.models.reader import Reader
from rung.ops.decode_step.rope import SPREAD, Frequencies, spread_evenly

#: Return the weights [rows, columns] of a role in f32, or None for those of the file.
Override = Callable[[str], Floats | None]
#: Told the role of a linear, what enters it [T, in] and what leaves it [T, out].
Watch = Callable[[str, Tensor, Tensor], None]


def nothing(role: str, x: Tensor, y: Tensor) -> None:
    """Watch nothing."""


#: Formats of weights whose inputs are multiplied as floats.
_FLOATS = ("f32", "f16", "bf16")
_DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Arithmetic:
    """How a program computes with weights that are as they are.

    - ``cache``: what keys and values are stored in: f32, f16, q8_0, q5_1 or q4_0.
    - ``inputs``: f32; ``int8``: inputs of weights in blocks are rounded to int8 in blocks of 32; ``int8:N``: inputs of
      all weights, in blocks of N, and of 32 where N does not divide them (llama.cpp on processors: N = 256 for
      K-quants).
    - ``floats``: what inputs of weights in 16 bits are rounded to.
    """

    cache: str = "f32"
    inputs: str = "f32"
    floats: str = "f32"

    def stored(self, x: Tensor) -> Tensor:
        """Return keys or values [..., head_dim] as the cache has them."""
        if self.cache in SPREAD:
            return torch.from_numpy(spread_evenly(SPREAD[self.cache](spread_evenly(x.contiguous().numpy()))))
        return in_blocks(x, torch.float16) if self.cache == "q8_0" else _through(x, self.cache)

    def query(self, x: Tensor) -> Tensor:
        """Return queries [..., head_dim] as keys are multiplied with them: those in blocks with signed bytes."""
        if self.cache in SPREAD:
            turned = in_blocks(torch.from_numpy(spread_evenly(x.contiguous().numpy())), torch.float32)
            return torch.from_numpy(spread_evenly(turned.numpy()))
        return in_blocks(x, torch.float32) if self.cache == "q8_0" else x

    def entering(self, x: Tensor, stored: str) -> Tensor:
        """Return x [T, in] as it enters a weight that is stored in a format."""
        if ":" in self.inputs:
            count = int(self.inputs.partition(":")[2])
            return in_blocks(x, torch.float32, 32 if x.shape[-1] % count else count)
        if stored in _FLOATS:
            return x if stored == "f32" else _through(x, self.floats)
        return in_blocks(x, torch.float32) if self.inputs == "int8" else x


#: Float32 throughout.
EXACT = Arithmetic()


def in_blocks(x: Tensor, scales: torch.dtype, count: int = 32) -> Tensor:
    """Return x as ``count`` signed bytes and a scale hold it, half away from zero; what they do not divide is left."""
    size = x.shape[-1] // count * count
    blocks = x[..., :size].unflatten(-1, (-1, count))
    step = blocks.abs().amax(dim=-1, keepdim=True) / 127
    y = blocks * torch.where(step > 0, 1.0 / step, 0.0)
    codes = (y.abs() + 0.5).floor().clamp(max=127) * y.sign()
    return torch.cat(((codes * step.to(scales).float()).flatten(-2), x[..., size:]), dim=-1)


def _through(x: Tensor, dtype: str) -> Tensor:
    """Return x as a dtype holds it."""
    return x.to(_DTYPES[dtype]).float() if dtype in _DTYPES else x


@dataclass
class Layer:
    """The weights of one layer in f32, by their role in it: ``q``, ``attn_norm``, ``q_bias``; ``formats`` are what
    they are stored in."""

    index: int
    weights: Mapping[str, Tensor]
    formats: Mapping[str, str] = field(default_factory=dict)
    arithmetic: Arithmetic = EXACT

    def linear(self, role: str, x: Tensor, watch: Watch) -> Tensor:
        """Return x [T, in] times a weight, with its bias: [T, out]."""
        entering = self.arithmetic.entering(x, self.formats.get(role, "f32"))
        y = functional.linear(entering, self.weights[role], self.weights.get(f"{role}_bias"))
        watch(f"layers.{self.index}.{role}", x, y)
        return y


class Network:
    """The layers of a model; ``override`` gives other weights for some roles. Windows of a text are [B, L] tokens."""

    def __init__(
        self,
        card: ModelCard,
        reader: Reader,
        length: int,
        override: Override = lambda role: None,
        arithmetic: Arithmetic = EXACT,
    ) -> None:
        self.card, self.shape, self._reader, self._override = card, card.decoder, reader, override
        self._arithmetic = arithmetic
        self._tensors = {tensor.role: tensor for tensor in card.tensors}
        self._tables = []
        for rope in self.shape.ropes:
            chosen = Frequencies.choose(rope, length)
            cos, sin = (torch.from_numpy(table) for table in chosen.table(range(length)))
            self._tables.append((cos, sin, chosen.interleaved))
        self._masks = {layer.window: _mask(length, layer.window) for layer in self.shape.layers}

    def weight(self, role: str) -> Tensor:
        """Return a tensor in f32: a matrix [rows, columns], or a vector."""
        tensor = self._tensors[role]
        other = self._override(role)
        if other is None:
            other = formats.decode(self._reader.read(tensor))
            self._reader.done(tensor)
        found = torch.from_numpy(other)
        if len(tensor.shape) > 1:
            return found
        offset = self.shape.norm_offset if role.endswith("norm") else 0.0
        return found.reshape(-1) + offset

    @property
    def head_role(self) -> str:
        """Return the role of the matrix that the logits are made with."""
        return "embed" if self.card.tied_head else "head"

    def embed(self, ids: Tensor) -> Tensor:
        """Return the hidden states [B, L, hidden] of ids [B, L]."""
        return self.weight("embed")[ids] * self.shape.embedding_scale

    def layers(self, backwards: bool = False) -> Iterator[Layer]:
        """Read the layers one after the other."""
        by_layer: dict[int, list[str]] = {}
        for role in self._tensors:
            if role.startswith("layers."):
                by_layer.setdefault(int(role.split(".")[1]), []).append(role)
        for index in sorted(by_layer, reverse=backwards):
            names = {role.split(".", 2)[2]: role for role in by_layer[index]}
            weights = {name: self.weight(role) for name, role in names.items()}
            stored = {name: self._tensors[role].format for name, role in names.items()}
            yield Layer(index, weights, stored, self._arithmetic)

    def forward(self, layer: Layer, hidden: Tensor, watch: Watch = nothing) -> Tensor:
        """Return the hidden states [B, L, hidden] after a layer."""
        shape, weights = self.shape, layer.weights
        batch, length, _ = hidden.shape
        x = self.norm(hidden, weights["attn_norm"]).reshape(batch * length, -1)
        if "qkv" in weights:
            narrow = shape.kv_heads * shape.head_dim
            q, k, v = layer.linear("qkv", x, watch).split([shape.heads * shape.head_dim, narrow, narrow], dim=1)
        else:
            q, k, v = (layer.linear(role, x, watch) for role in ("q", "k", "v"))
        mixed = self._attention(layer, *(each.reshape(batch, length, -1, shape.head_dim) for each in (q, k, v)))
        added = layer.linear("o", mixed.reshape(batch * length, -1), watch).reshape(hidden.shape)
        if "attn_post_norm" in weights:
            added = self.norm(added, weights["attn_post_norm"])
        hidden = hidden + added
        x = self.norm(hidden, weights["mlp_norm"]).reshape(batch * length, -1)
        if "gate_up" in weights:
            gate, up = layer.linear("gate_up", x, watch).chunk(2, dim=1)
        else:
            gate, up = layer.linear("gate", x, watch), layer.linear("up", x, watch)
        gelu = shape.activation == "gelu_tanh"
        gate = functional.gelu(gate, approximate="tanh") if gelu else functional.silu(gate)
        added = layer.linear("down", gate * up, watch).reshape(hidden.shape)
        if "mlp_post_norm" in weights:
            added = self.norm(added, weights["mlp_post_norm"])
        return hidden + added

    def normed(self, hidden: Tensor) -> Tensor:
        """Return hidden states after the final norm, as they enter the head."""
        return self._arithmetic.entering(self.norm(hidden, self.weight("norm")), self._tensors[self.head_role].format)

    def norm(self, x: Tensor, weight: Tensor) -> Tensor:
        """Return x / sqrt(mean(x^2) + epsilon) * weight over the last dimension."""
        mean = x.square().mean(dim=-1, keepdim=True)
        return x * (mean + self.shape.norm_epsilon).rsqrt() * weight

    def _attention(self, layer: Layer, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the output of attention, [B, L, heads, head_dim]."""
        shape, about = self.shape, self.shape.layers[layer.index]
        cos, sin, interleaved = self._tables[about.rope]
        if "q_norm" in layer.weights:
            q, k = self.norm(q, layer.weights["q_norm"]), self.norm(k, layer.weights["k_norm"])
        q, k = (_rotated(x, cos, sin, interleaved).transpose(1, 2) for x in (q, k))
        q, k, v = self._arithmetic.query(q), self._arithmetic.stored(k), self._arithmetic.stored(v.transpose(1, 2))
        shared = shape.heads // shape.kv_heads
        k, v = (each.repeat_interleave(shared, dim=1) for each in (k, v))
        mask = self._masks[about.window]
        if shape.attention_softcap is None:
            gathered = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=shape.attention_scale)
        else:
            scores = torch.tanh(q @ k.transpose(2, 3) * shape.attention_scale / shape.attention_softcap)
            scores = (scores * shape.attention_softcap).masked_fill(~mask, -torch.inf)
            gathered = scores.softmax(dim=-1) @ v
        return gathered.transpose(1, 2)


def logits(shape: Decoder, states: Tensor, head: Tensor) -> Tensor:
    """Return logits [T, vocabulary] of states [T, hidden] after the final norm and the matrix of the head."""
    scores = states @ head.T
    softcap = shape.logit_softcap
    return scores if softcap is None else torch.tanh(scores / softcap) * softcap


def _mask(length: int, window: int | None) -> Tensor:
    """Return which positions [L, L] each position sees."""
    positions = torch.arange(length)
    visible = positions[None] <= positions[:, None]
    return visible if window is None else visible & (positions[None] > positions[:, None] - window)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor, interleaved: bool) -> Tensor:
    """Return x [B, L, heads, head_dim] with its leading dimensions rotated; see ``rung.ops.decode_step.rope``."""
    half = cos.shape[1]
    turning, rest = x[..., : 2 * half], x[..., 2 * half :]
    cos, sin = cos[:, None], sin[:, None]
    if interleaved:
        first, second = turning.unflatten(-1, (half, 2)).unbind(-1)
    else:
        first, second = turning.split(half, dim=-1)
    pair = (first * cos - second * sin, second * cos + first * sin)
    turned = torch.stack(pair, dim=-1).flatten(-2) if interleaved else torch.cat(pair, dim=-1)
    return torch.cat((turned, rest), dim=-1)
