"""Layers of an encoder in plain torch, a text at a time, on any device: the specification of the others."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from rung.formats.codec import Floats
from rung.ops.encoder.weights import Biased, EncoderLayer, EncoderWeights, LayerNorm


class TorchLayers:
    """An encoder's layers; keeps no state."""

    def __init__(self, weights: EncoderWeights, threads: int) -> None:
        torch.set_num_threads(threads)
        self._weights, self._shape = weights, weights.shape
        self._positions = self._there(weights.positions)

    def _there(self, values: Floats) -> Tensor:
        return torch.from_numpy(values).to(self._weights.device)

    @torch.inference_mode()
    def read(self, ids: Sequence[int]) -> Floats:
        """Return hidden states [tokens, hidden] of one text."""
        weights = self._weights
        hidden = weights.look_up(torch.tensor(list(ids), dtype=torch.int64)).to(weights.device)
        hidden = self._norm(hidden + self._positions[: len(ids)], weights.norm)
        for layer in weights.layers:
            hidden = self._norm(
                hidden + self._multiply(layer.output, self._attend(layer, hidden)), layer.attention_norm
            )
            wide = functional.gelu(
                self._multiply(layer.widen, hidden),
                approximate="none" if self._shape.activation == "gelu" else "tanh",
            )
            hidden = self._norm(hidden + self._multiply(layer.narrow, wide), layer.mlp_norm)
        found: Floats = hidden.cpu().numpy()
        return found

    def _multiply(self, biased: Biased, x: Tensor) -> Tensor:
        return biased.linear(x) + self._there(biased.bias)

    def _norm(self, x: Tensor, norm: LayerNorm) -> Tensor:
        weight, bias = self._there(norm.weight), self._there(norm.bias)
        return functional.layer_norm(x, (self._shape.hidden,), weight, bias, self._shape.norm_epsilon)

    def _attend(self, layer: EncoderLayer, hidden: Tensor) -> Tensor:
        heads, size = self._shape.heads, self._shape.head_dim
        whole = torch.cat([self._multiply(each, hidden) for each in layer.inputs], dim=1)
        q, k, v = (part.unflatten(1, (heads, size)).transpose(0, 1) for part in whole.chunk(3, dim=1))
        scores = torch.softmax(q @ k.transpose(1, 2) * size**-0.5, dim=2)
        mixed: Tensor = (scores @ v).transpose(0, 1).reshape(hidden.shape)
        return mixed


class Reference:
    """See ``rung.ops.encoder``."""

    def prepare(self, weights: EncoderWeights, *, threads: int) -> TorchLayers:
        """The parts are bound already."""
        return TorchLayers(weights, threads)

    def apply(self, state: TorchLayers, texts: Sequence[Sequence[int]]) -> Floats:
        """Return hidden states [tokens, hidden]."""
        return torch.cat([torch.from_numpy(state.read(text)) for text in texts]).numpy()


RUNG = Reference()
