"""One token as one program of compiled functions: no torch between the embedding and the logits."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from rung.kernels.cpu.decode import step
from rung.kernels.cpu.decode.step_program import After, Before, Builder, Floats, HeadShape, Piece, address, filled
from rung.kernels.cpu.gemm.float_rows import FloatRows, stored_as
from rung.kernels.cpu.gemm.low_rank import LowRankRows
from rung.kernels.cpu.pack.packing import Packed
from rung.kernels.cpu.parallel import run_program
from rung.kernels.cpu.thread_pool import Program
from rung.ops.decode_step.low_rank import Adapted
from rung.ops.decode_step.numba_prompt import PromptReader, reads
from rung.ops.decode_step.parts import Cache, Reader
from rung.ops.decode_step.rope import Frequencies
from rung.ops.decode_step.weights import Biased, LayerWeights, Weights

#: References to an array that only one attribute holds, while they are counted.
_OWN = 2


@dataclass(frozen=True)
class Rotation:
    """cos and sin of the present position for one kind of layer, and what they are computed from."""

    inverse: npt.NDArray[np.float32]
    magnitude: float
    interleaved: bool
    cosine: Floats
    sine: Floats

    def turn(self, position: int) -> None:
        """Computes the tables of a position."""
        angles = self.inverse * np.float32(position)
        count = angles.size
        np.multiply(np.cos(angles), np.float32(self.magnitude), out=self.cosine[:count])
        np.multiply(np.sin(angles), np.float32(self.magnitude), out=self.sine[:count])


@dataclass
class State:
    """A program bound to weights and a cache, with the memory that Python reads and writes."""

    weights: Weights
    cache: Cache
    program: Program
    threads: int
    position: npt.NDArray[np.int64]
    rotations: tuple[Rotation, ...]
    embedded: Floats
    logits: Floats
    given: Floats  # the logits of the token before, as they were handed out

    def answer(self) -> Floats:
        """A copy of the logits, in the memory of the one before if nobody holds that or looks into it any more.

        Half a megabyte for 128,000 tokens is mapped afresh each time (``engine.process_memory.keep_heap_whole``): 126
        page faults a token, 0.25 ms where pages are cheap and 1 ms where a machine below has to find them.
        """
        if sys.getrefcount(self.given) > _OWN:
            self.given = np.empty_like(self.logits)
        np.copyto(self.given, self.logits)
        return self.given

    @cached_property
    def reads_without_torch(self) -> bool:
        """Return whether prompts are read without torch."""
        return reads(self.weights)

    @cached_property
    def reader(self) -> Reader:
        """Return what reads prompts: without torch where every weight is packed, else torch with the compiled glue."""
        if self.reads_without_torch:
            return PromptReader(self.weights, self.threads)
        from rung.ops.decode_step.network import Network
        from rung.ops.decode_step.numba_glue import NumbaGlue

        return Network(self.weights, NumbaGlue(self.weights.shape, self.threads), self.threads)


class Step:
    """See ``rung.ops.decode_step``; every linear must be packed, or stored as floats."""

    without_torch = True

    def prepare(self, weights: Weights, cache: Cache, *, threads: int) -> State:
        """Lays out memory and writes the program; compiles its functions or loads them from the cache on disk."""
        shape = weights.shape
        position = np.zeros(1, dtype=np.int64)
        heads = HeadShape(
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            shape.attention_scale,
            shape.attention_softcap or 0.0,
            shape.norm_epsilon,
        )
        builder = Builder(shape.hidden, cache.context, threads, heads, position)
        rotations = tuple(_rotation(builder, frequencies) for frequencies in weights.frequencies)
        embedded, logits = _Layout(weights, cache, builder, rotations).write()
        given = np.empty_like(logits)
        return State(weights, cache, builder.program(), threads, position, rotations, embedded, logits, given)

    def reads_without_torch(self, state: State) -> bool:
        """See ``State``."""
        return state.reads_without_torch

    def reader(self, state: State) -> Reader:
        """See ``State``."""
        return state.reader

    def apply(self, state: State, token: int, position: int) -> Floats:
        """Logits [vocabulary] f32 after ``token`` at ``position``."""
        shape = state.weights.shape
        np.multiply(state.weights.look_up.rows([token])[0], np.float32(shape.embedding_scale), out=state.embedded)
        for rotation in state.rotations:
            rotation.turn(position)
        state.position[0] = position
        run_program(state.program, state.threads)
        return state.answer()


def _rotation(builder: Builder, frequencies: Frequencies) -> Rotation:
    count = len(frequencies.inverse)
    cosine, sine = builder.buffer(count), builder.buffer(count)
    return Rotation(frequencies.inverse, frequencies.magnitude, frequencies.interleaved, cosine, sine)


class _Layout:
    """Writes the layers of a model into a builder."""

    def __init__(self, weights: Weights, cache: Cache, builder: Builder, rotations: tuple[Rotation, ...]) -> None:
        self.weights, self.cache, self.builder, self.rotations = weights, cache, builder, rotations
        shape = weights.shape
        heads = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        self.embedded = builder.buffer(shape.hidden)
        self.queries = builder.buffer(heads)
        self.mixed = builder.buffer(shape.heads * shape.head_dim)
        self.added = builder.buffer(shape.hidden)
        self.wide = builder.buffer(2 * shape.feed_forward)
        self.logits = builder.buffer(shape.vocabulary)

    def write(self) -> tuple[Floats, Floats]:
        """Every function in order; the memory of the embedded token [hidden] and of the logits [vocabulary]."""
        shape = self.weights.shape
        post_norm: Floats | None = None
        for index, layer in enumerate(self.weights.layers):
            start = Before(step.START if index == 0 else step.ADD, _vector(layer.attention_norm), post_norm)
            self._layer(layer, start, self.embedded if index == 0 else self.added)
            post_norm = _vector(layer.mlp_post_norm)
        softcap = None if shape.logit_softcap is None else np.array([shape.logit_softcap], dtype=np.float32)
        head = Piece(kernel_weight(self.weights.head), None, address(self.logits), low_rank(self.weights.head))
        after = After(step.NOTHING if softcap is None else step.CAP, softcap=softcap)
        norm = Before(step.ADD, _vector(self.weights.norm), post_norm)
        self.builder.linear([head], address(self.added), norm, after)
        return self.embedded[: shape.hidden], self.logits[: shape.vocabulary]

    def _layer(self, layer: LayerWeights, start: Before, source: Floats) -> None:
        builder, result = self.builder, address(self.queries)
        inputs = []
        for linear in layer.inputs:
            inputs.append(_piece(linear, result))
            result += 4 * inputs[-1].weight.shape[0]
        builder.linear(inputs, address(source), start)
        self._attention(layer)
        builder.linear([_piece(layer.output, address(self.added))], address(self.mixed), Before(step.PLAIN))
        self._feed_forward(layer)

    def _attention(self, layer: LayerWeights) -> None:
        rotation = self.rotations[layer.rope]
        self.builder.attention(
            address(self.queries),
            address(self.mixed),
            (_vector(layer.q_norm), _vector(layer.k_norm)),
            (rotation.cosine, rotation.sine, rotation.inverse.size, rotation.interleaved),
            self.cache.rows(layer.index),
            layer.window,
        )

    def _feed_forward(self, layer: LayerWeights) -> None:
        shape, wide = self.weights.shape, address(self.wide)
        kind = step.GELU if shape.activation == "gelu_tanh" else step.SILU
        gate = _piece(layer.widen[0], wide)
        if len(layer.widen) == 1:
            after = After(kind, gate, shape.feed_forward // 16)
        else:
            after = After(kind, _piece(layer.widen[1], wide + 4 * shape.feed_forward))
        norm = Before(step.ADD, _vector(layer.mlp_norm), _vector(layer.attention_post_norm))
        self.builder.linear([gate], address(self.added), norm, after)
        self.builder.linear([_piece(layer.narrow, address(self.added))], wide, Before(step.PLAIN))


def kernel_weight(linear: Any) -> Packed | FloatRows:
    """The weight of a bound linear; one without a row kernel is our own mistake, as the ladder asks before."""
    state = linear.state
    if isinstance(state, Packed):
        return state
    encoded = state.encoded  # as it is stored
    assert stored_as(encoded.format.name), f"{encoded.format.name} has no row kernel"
    return FloatRows(encoded.format.name, encoded.shape, encoded.parts["data"])


def _piece(linear: Biased, result: int) -> Piece:
    return Piece(kernel_weight(linear.linear), _vector(linear.bias), result, low_rank(linear.linear))


def low_rank(linear: Any) -> LowRankRows | None:
    """Return what adapters add to a bound linear, or None."""
    return linear.beside.rows if isinstance(linear, Adapted) else None


def _vector(values: Floats | None) -> Floats | None:
    return None if values is None else filled(values)


RUNG = Step()
