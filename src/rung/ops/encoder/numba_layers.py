"""Layers of an encoder with compiled functions between the products: rows of all texts in one product, no padding."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rung.formats.codec import Floats
from rung.kernels.cpu import encoder
from rung.kernels.cpu.encoder import TextWord, attend_texts, scratch_floats
from rung.kernels.cpu.gemm.product import Step, panel_room, product_steps
from rung.kernels.cpu.pack.packing import Packed
from rung.kernels.cpu.thread_pool import Program, run_program
from rung.ops.encoder.weights import Biased, EncoderLayer, EncoderWeights, LayerNorm


class _Steps:
    """Functions and products in order, which run as one program where nothing between them needs Python."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._steps: list[Step] = []
        self._keep: list[np.ndarray] = []
        self._panels = np.empty(0, np.uint8)

    def add(self, function: int, words: Sequence[int], *keep: np.ndarray | None) -> None:
        """Add a compiled function with its words behind the counter; ``keep`` has what they point to."""
        self._steps.append((function, np.array([0, *words], np.int64)))
        self._keep += [each for each in keep if each is not None]

    def product(self, biased: Biased, x: Floats) -> Floats:
        """Return x [T, in] times the weight, [T, out] without gaps: of a packed weight as a step, else at once."""
        weight = getattr(biased.linear, "state", None)
        if not isinstance(weight, Packed) or weight.gather is not None or not biased.linear.without_torch:
            self.run()
            return _multiply(biased, x)
        y = np.empty((len(x), weight.shape[0]), np.float32)
        if self._panels.size < (room := panel_room(weight, len(x)) + 64):
            self._keep.append(self._panels)  # earlier steps have panels there
            self._panels = np.empty(room, np.uint8)
        panels = self._panels.ctypes.data + -self._panels.ctypes.data % 64
        self._steps += product_steps(weight, x.ctypes.data, x.strides[0], len(x), y.ctypes.data, panels)
        self._keep += [x, y]
        return y

    def run(self) -> None:
        """Run what has been added."""
        if self._steps:
            run_program(Program.of(self._steps, *self._keep), self._threads)
        self._steps, self._keep = [], []


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
        spans = np.stack([np.cumsum(lengths) - lengths, lengths], axis=1)  # first row and rows of each text
        hidden = np.ascontiguousarray(self._weights.look_up.rows([token for text in texts for token in text]))
        for first, count in spans:
            hidden[first : first + count] += self._weights.positions[:count]
        steps = _Steps(self._threads)
        self._add_and_norm(steps, hidden, None, None, self._weights.norm)
        for layer in self._weights.layers:
            self._layer(steps, layer, hidden, spans)
            steps.run()  # what a layer needs is free again
        return hidden

    def _layer(self, steps: _Steps, layer: EncoderLayer, hidden: Floats, spans: np.ndarray) -> None:
        mixed = self._attend(steps, layer, hidden, spans)
        added = steps.product(layer.output, mixed)
        self._add_and_norm(steps, hidden, added, layer.output.bias, layer.attention_norm)
        wide = steps.product(layer.widen, hidden)
        has_erf = int(self._shape.activation == "gelu")
        words = *wide.shape, wide.ctypes.data, _address(layer.widen.bias), has_erf
        steps.add(encoder.add_and_activate.address, words, wide)
        self._add_and_norm(steps, hidden, steps.product(layer.narrow, wide), layer.narrow.bias, layer.mlp_norm)

    def _add_and_norm(
        self, steps: _Steps, hidden: Floats, added: Floats | None, bias: Floats | None, norm: LayerNorm
    ) -> None:
        """hidden = norm(hidden + added + bias), in place."""
        arrays = (hidden, added, bias, norm.weight, norm.bias, self._epsilon)
        steps.add(encoder.add_and_layer_norm.address, (*hidden.shape, *map(_address, arrays)), *arrays)

    def _attend(self, steps: _Steps, layer: EncoderLayer, hidden: Floats, spans: np.ndarray) -> Floats:
        """Return the output of attention, [tokens, hidden]."""
        shape = self._shape
        whole = [steps.product(biased, hidden) for biased in layer.inputs]
        q, k, v = whole if len(whole) == 3 else np.split(whole[0], 3, axis=1)
        out, bias = np.empty_like(hidden), np.concatenate([each.bias for each in layer.inputs])
        scratch = np.empty((self._threads, scratch_floats(int(spans[:, 1].max()), shape.head_dim)), np.float32)
        words = [0] * len(TextWord)
        words[TextWord.TEXTS : TextWord.Q] = len(spans), shape.heads, shape.head_dim
        words[TextWord.Q : TextWord.APART] = map(_address, (q, k, v, out))
        words[TextWord.APART] = q.strides[0]
        words[TextWord.Q_BIAS], words[TextWord.V_BIAS] = _address(bias), _address(bias[2 * shape.hidden :])
        words[TextWord.ROWS :] = _address(spans), _address(self._scale), _address(scratch), scratch.strides[0]
        steps.add(attend_texts.address, words[1:], q, k, v, out, bias, spans, scratch)
        return out


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
