"""Layers of an encoder where torch is missing and no compiled function takes the model: NumPy, a text at a time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from rung.formats.codec import Floats
from rung.ops.encoder.weights import EncoderLayer, EncoderWeights, LayerNorm

_erf = np.frompyfunc(math.erf, 1, 1)


class ArrayLayers:
    """An encoder's layers; keeps no state."""

    def __init__(self, weights: EncoderWeights) -> None:
        self._weights, self._shape = weights, weights.shape

    def read(self, ids: Sequence[int]) -> Floats:
        """Return hidden states [tokens, hidden] of one text."""
        weights = self._weights
        hidden = self._norm(weights.look_up.rows(ids) + weights.positions[: len(ids)], weights.norm)
        for layer in weights.layers:
            hidden = self._norm(hidden + layer.output.multiply(self._attend(layer, hidden)), layer.attention_norm)
            wide = self._activated(layer.widen.multiply(hidden))
            hidden = self._norm(hidden + layer.narrow.multiply(wide), layer.mlp_norm)
        return hidden

    def _norm(self, x: Floats, norm: LayerNorm) -> Floats:
        apart = x - x.mean(axis=1, keepdims=True)
        variance = np.square(apart).mean(axis=1, keepdims=True)
        normed: Floats = apart / np.sqrt(variance + np.float32(self._shape.norm_epsilon)) * norm.weight + norm.bias
        return normed

    def _attend(self, layer: EncoderLayer, hidden: Floats) -> Floats:
        heads, size = self._shape.heads, self._shape.head_dim
        whole = np.concatenate([each.multiply(hidden) for each in layer.inputs], axis=1)
        q, k, v = (part.reshape(-1, heads, size).transpose(1, 0, 2) for part in np.split(whole, 3, axis=1))
        scores = q @ k.transpose(0, 2, 1) * np.float32(size**-0.5)
        weights = np.exp(scores - scores.max(axis=2, keepdims=True))
        weights /= weights.sum(axis=2, keepdims=True)
        return np.ascontiguousarray((weights @ v).transpose(1, 0, 2)).reshape(len(hidden), -1)

    def _activated(self, x: Floats) -> Floats:
        half = np.float32(0.5) * x
        if self._shape.activation == "gelu":
            turned = _erf(x * np.float32(0.5**0.5)).astype(x.dtype)
        else:
            turned = np.tanh(np.float32(np.sqrt(2 / np.pi)) * (x + np.float32(0.044715) * x * x * x))
        gated: Floats = half * (1 + turned)
        return gated


class Encoder:
    """See ``rung.ops.encoder``."""

    def prepare(self, weights: EncoderWeights, *, threads: int) -> ArrayLayers:
        """The parts are bound already."""
        return ArrayLayers(weights)

    def apply(self, state: ArrayLayers, texts: Sequence[Sequence[int]]) -> Floats:
        """Return hidden states [tokens, hidden]."""
        return np.concatenate([state.read(text) for text in texts])


RUNG = Encoder()
