"""Layers of an encoder with compiled functions between the products: rows of all texts in one product, no padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rung.formats.codec import Floats
from rung.kernels.cpu.encoder import rows
from rung.kernels.cpu.encoder.attention import TextWord, attend_texts, scratch_floats
from rung.kernels.cpu.parallel import run
from rung.ops.encoder.weights import Biased, EncoderLayer, EncoderWeights, LayerNorm


class Layers:
    """An encoder's layers; keeps no state."""

    def __init__(self, weights: EncoderWeights, threads: int) -> None:
        self._weights, self._threads = weights, threads
        shape = self._shape = weights.shape
        self._epsilon = np.array([shape.norm_epsilon], np.float32)
        self._scale = np.array([shape.head_dim**-0.5], np.float32)

    def read(self, texts: Sequence[Sequence[int]]) -> Floats:
        """Return hidden states [tokens, hidden] of all texts."""
        lengths = np.array([len(text) for text in texts], np.int64)
        places = np.stack([np.cumsum(lengths) - lengths, lengths], axis=1)  # first row and rows of each text
        hidden = np.ascontiguousarray(self._weights.look_up.rows([token for text in texts for token in text]))
        for first, count in places:
            hidden[first : first + count] += self._weights.positions[:count]
        self._add_and_norm(hidden, None, None, self._weights.norm)
        for layer in self._weights.layers:
            self._layer(layer, hidden, places)
        return hidden

    def _layer(self, layer: EncoderLayer, hidden: Floats, places: np.ndarray) -> None:
        mixed = self._attend(layer, hidden, places)
        self._add_and_norm(hidden, _multiply(layer.output, mixed), layer.output.bias, layer.attention_norm)
        wide = _multiply(layer.widen, hidden)
        bias = _address(layer.widen.bias)
        has_erf = int(self._shape.activation == "gelu")
        self._run(rows.add_and_activate.address, *wide.shape, wide.ctypes.data, bias, has_erf)
        self._add_and_norm(hidden, _multiply(layer.narrow, wide), layer.narrow.bias, layer.mlp_norm)

    def _add_and_norm(self, hidden: Floats, added: Floats | None, bias: Floats | None, norm: LayerNorm) -> None:
        """hidden = norm(hidden + added + bias), in place."""
        arrays = (hidden, added, bias, norm.weight, norm.bias, self._epsilon)
        self._run(rows.add_and_layer_norm.address, *hidden.shape, *map(_address, arrays))

    def _attend(self, layer: EncoderLayer, hidden: Floats, places: np.ndarray) -> Floats:
        """Return what the queries gather, [tokens, hidden]."""
        shape = self._shape
        q, k, v = (_multiply(biased, hidden) for biased in layer.inputs)
        out = np.empty_like(q)
        scratch = np.empty((self._threads, scratch_floats(int(places[:, 1].max()), shape.head_dim)), np.float32)
        words = [0] * len(TextWord)
        words[TextWord.TEXTS : TextWord.Q] = len(places), shape.heads, shape.head_dim
        words[TextWord.Q : TextWord.Q_BIAS] = map(_address, (q, k, v, out))
        words[TextWord.Q_BIAS], words[TextWord.V_BIAS] = _address(layer.inputs[0].bias), _address(layer.inputs[2].bias)
        words[TextWord.ROWS :] = _address(places), _address(self._scale), _address(scratch), scratch.strides[0]
        run(attend_texts.address, words, self._threads)
        return out

    def _run(self, function: int, *words: int) -> None:
        run(function, (0, *words), self._threads)


def _multiply(biased: Biased, x: Floats) -> Floats:
    """Return x [T, in] times the weight, [T, out] without gaps; by torch where that multiplies such weights."""
    if biased.linear.without_torch:
        return np.ascontiguousarray(biased.linear.multiply(x))
    import torch

    with torch.inference_mode():
        product: Floats = biased.linear(torch.from_numpy(x)).contiguous().numpy()
    return product


def _address(array: np.ndarray | None) -> int:
    return 0 if array is None else int(array.ctypes.data)


class Encoder:
    """See ``rung.ops.encoder``."""

    def prepare(self, weights: EncoderWeights, *, threads: int) -> Layers:
        """The parts are bound already."""
        return Layers(weights, threads)

    def apply(self, state: Layers, texts: Sequence[Sequence[int]]) -> Floats:
        """Return hidden states [tokens, hidden]."""
        return state.read(texts)


RUNG = Encoder()
