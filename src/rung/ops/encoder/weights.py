"""Hold what an encoder computes with: its bound parts in the order of use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from rung.formats.codec import Floats
from rung.models.card import Encoder

if TYPE_CHECKING:
    from torch import Tensor


class Linear(Protocol):
    """A bound linear: x [T, in] f32 -> [T, out] f32, as tensors, and as arrays where no torch is needed."""

    def __call__(self, x: Tensor) -> Tensor:
        """Multiply a tensor."""

    @property
    def without_torch(self) -> bool:
        """Return whether ``multiply`` may be called."""

    def multiply(self, x: Floats) -> Floats:
        """Multiply an array, without torch."""


class Embedding(Protocol):
    """A bound embedding: ids [T] -> rows [T, hidden] f32, as a tensor or an array."""

    def __call__(self, ids: Tensor) -> Tensor:
        """Look up int64 ids."""

    def rows(self, ids: Sequence[int]) -> Floats:
        """Look up ids without torch."""


@dataclass(frozen=True)
class Biased:
    """A bound linear and the bias that is added to what it gives."""

    linear: Linear
    bias: Floats

    def multiply(self, x: Floats) -> Floats:
        """Return x [T, in] times the weight, and the bias: [T, out], without torch."""
        y: Floats = self.linear.multiply(x) + self.bias
        return y


class EncoderParts(Protocol):
    """Where an encoder gets its bound parts from, a role (``layers.3.q``) at a time, in the order of use."""

    def holds(self, role: str) -> bool:
        """Return whether ``qkv`` of a layer is one weight."""

    def linear(self, role: str) -> Linear:
        """x [T, in] -> [T, out], bound."""

    def look_up(self) -> Embedding:
        """The rows of ``embed``."""

    def table(self, role: str) -> Floats:
        """The rows of ``positions`` or ``types`` in the format of the plan, f32 [rows, hidden]."""

    def vector(self, role: str) -> Floats:
        """A norm's weight or a bias: f32, one dimension."""

    @property
    def device_name(self) -> str:
        """torch's name of where everything computes."""


@dataclass(frozen=True)
class LayerNorm:
    """A LayerNorm's weight and bias, f32 [hidden]."""

    weight: Floats
    bias: Floats

    @classmethod
    def bind(cls, parts: EncoderParts, role: str) -> LayerNorm:
        """Ask ``parts`` for both."""
        return cls(parts.vector(role), parts.vector(f"{role}_bias"))


@dataclass(frozen=True)
class EncoderLayer:
    """The bound parts of one layer: ``inputs`` are q, k and v, or one weight of all three under each other."""

    inputs: tuple[Biased, ...]
    output: Biased
    attention_norm: LayerNorm
    widen: Biased
    narrow: Biased
    mlp_norm: LayerNorm

    @classmethod
    def bind(cls, parts: EncoderParts, index: int) -> EncoderLayer:
        """Ask ``parts`` for everything that layer ``index`` has."""

        def linear(role: str) -> Biased:
            name = f"layers.{index}.{role}"
            return Biased(parts.linear(name), parts.vector(f"{name}_bias"))

        def inputs() -> tuple[Biased, ...]:
            if not parts.holds(f"layers.{index}.qkv"):
                return linear("q"), linear("k"), linear("v")
            bias = np.concatenate([parts.vector(f"layers.{index}.{each}_bias") for each in "qkv"])
            return (Biased(parts.linear(f"layers.{index}.qkv"), bias),)

        return cls(
            inputs(),
            linear("o"),
            LayerNorm.bind(parts, f"layers.{index}.attn_norm"),
            linear("up"),
            linear("down"),
            LayerNorm.bind(parts, f"layers.{index}.mlp_norm"),
        )


@dataclass(frozen=True)
class EncoderWeights:
    """Embeddings and layers of one model.

    ``positions`` [context, hidden] f32 have the row of token type 0 in them, which every token of a text alone has.
    ``device`` is torch's name of where all of it computes.
    """

    shape: Encoder
    device: str
    look_up: Embedding
    positions: Floats
    norm: LayerNorm
    layers: tuple[EncoderLayer, ...]

    @classmethod
    def bind(cls, shape: Encoder, parts: EncoderParts) -> EncoderWeights:
        """Ask ``parts`` for every part, in the order of use."""
        return cls(
            shape,
            parts.device_name,
            parts.look_up(),
            np.ascontiguousarray(parts.table("positions") + parts.table("types")[:1]),
            LayerNorm.bind(parts, "embed_norm"),
            tuple(EncoderLayer.bind(parts, index) for index in range(shape.layers)),
        )
