"""One token as one program of compiled functions: no torch between the embedding and the logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rung.kernels.cpu import step
from rung.kernels.cpu.packing import Packed
from rung.kernels.cpu.parallel import run_program
from rung.kernels.cpu.step_program import After, Before, Builder, Floats, HeadShape, Piece, address, filled
from rung.kernels.cpu.team import Program
from rung.ops.decode_step.block import Biased, Block
from rung.ops.decode_step.network import Network
from rung.ops.decode_step.numba_glue import NumbaGlue
from rung.ops.decode_step.parts import Cache

_CACHE_DTYPES = {torch.float32: "f32", torch.float16: "f16"}


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


@dataclass(frozen=True)
class State:
    """A program bound to a network and a cache, with the memory that Python reads and writes."""

    network: Network
    cache: Cache
    program: Program
    threads: int
    position: npt.NDArray[np.int64]
    rotations: tuple[Rotation, ...]
    embedded: Tensor
    logits: Floats


class Step:
    """See ``rung.ops.decode_step``; every linear's state must be ``Packed``."""

    def prepare(self, network: Network, cache: Cache, *, threads: int) -> State:
        """Lays out memory and writes the program; compiles its functions or loads them from the cache on disk."""
        shape = network.shape
        position = np.zeros(1, dtype=np.int64)
        heads = HeadShape(
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            shape.attention_scale,
            shape.attention_softcap or 0.0,
            shape.norm_epsilon,
        )
        builder = Builder(shape.hidden, cache.keys[0].shape[1], threads, heads, position)
        rotations = tuple(_rotation(builder, network, index) for index in range(len(shape.ropes)))
        layout = _Layout(network, cache, builder, rotations)
        embedded, logits = layout.write()
        program = builder.program()
        network.glue = NumbaGlue(shape, threads)
        return State(network, cache, program, threads, position, rotations, embedded, logits)

    @torch.inference_mode()
    def apply(self, state: State, token: int, position: int) -> Tensor:
        """Logits [vocabulary] f32 after ``token`` at ``position``."""
        state.embedded.copy_(state.network.embed(torch.tensor([token]))[0])
        for rotation in state.rotations:
            rotation.turn(position)
        state.position[0] = position
        run_program(state.program, state.threads)
        return torch.from_numpy(state.logits.copy())


def _rotation(builder: Builder, network: Network, index: int) -> Rotation:
    frequencies = network.frequencies[index]
    count = len(frequencies.inverse)
    inverse = frequencies.inverse.numpy()
    return Rotation(
        inverse, frequencies.magnitude, frequencies.interleaved, builder.buffer(count), builder.buffer(count)
    )


class _Layout:
    """Writes the layers of a network into a builder."""

    def __init__(self, network: Network, cache: Cache, builder: Builder, rotations: tuple[Rotation, ...]) -> None:
        self.network, self.cache, self.builder, self.rotations = network, cache, builder, rotations
        shape = network.shape
        heads = (shape.heads + 2 * shape.kv_heads) * shape.head_dim
        self.embedded = builder.buffer(shape.hidden)
        self.queries = builder.buffer(heads)
        self.mixed = builder.buffer(shape.heads * shape.head_dim)
        self.added = builder.buffer(shape.hidden)
        self.wide = builder.buffer(2 * shape.feed_forward)
        self.logits = builder.buffer(shape.vocabulary)

    def write(self) -> tuple[Tensor, Floats]:
        """Every function in order; the memory of the embedded token [hidden] and of the logits [vocabulary]."""
        shape = self.network.shape
        post_norm: Floats | None = None
        for index, block in enumerate(self.network.blocks):
            start = Before(step.START if index == 0 else step.ADD, _vector(block.attention_norm), post_norm)
            self._block(block, start, self.embedded if index == 0 else self.added)
            post_norm = _vector(block.mlp_post_norm)
        softcap = None if shape.logit_softcap is None else np.array([shape.logit_softcap], dtype=np.float32)
        head = Piece(packed(self.network.head), None, address(self.logits))
        after = After(step.NOTHING if softcap is None else step.CAP, softcap=softcap)
        norm = Before(step.ADD, _vector(self.network.norm), post_norm)
        self.builder.linear([head], address(self.added), norm, after)
        return torch.from_numpy(self.embedded), self.logits[: shape.vocabulary]

    def _block(self, block: Block, start: Before, source: Floats) -> None:
        builder, result = self.builder, address(self.queries)
        inputs = []
        for linear in block.inputs:
            inputs.append(_piece(linear, result))
            result += 4 * inputs[-1].weight.shape[0]
        builder.linear(inputs, address(source), start)
        self._attention(block)
        builder.linear([_piece(block.output, address(self.added))], address(self.mixed), Before(step.PLAIN))
        self._feed_forward(block)

    def _attention(self, block: Block) -> None:
        keys, values = self.cache.keys[block.index], self.cache.values[block.index]
        assert keys.stride() == values.stride()
        assert keys.stride(2) == 1
        width, rotation = keys.element_size(), self.rotations[block.rope]
        self.builder.attention(
            address(self.queries),
            address(self.mixed),
            (_vector(block.q_norm), _vector(block.k_norm)),
            (rotation.cosine, rotation.sine, rotation.inverse.size, rotation.interleaved),
            (
                keys.data_ptr(),
                values.data_ptr(),
                width * keys.stride(0),
                width * keys.stride(1),
                _CACHE_DTYPES[keys.dtype],
            ),
            block.window,
        )

    def _feed_forward(self, block: Block) -> None:
        shape, wide = self.network.shape, address(self.wide)
        kind = step.GELU if shape.activation == "gelu_tanh" else step.SILU
        gate = _piece(block.widen[0], wide)
        if len(block.widen) == 1:
            after = After(kind, gate, shape.feed_forward // 16)
        else:
            after = After(kind, _piece(block.widen[1], wide + 4 * shape.feed_forward))
        norm = Before(step.ADD, _vector(block.mlp_norm), _vector(block.attention_post_norm))
        self.builder.linear([gate], address(self.added), norm, after)
        self.builder.linear([_piece(block.narrow, address(self.added))], wide, Before(step.PLAIN))


def packed(linear: Any) -> Packed:
    """The packed weight of a bound linear; a linear without one is our own mistake, as the ladder asks before."""
    state = linear.state
    assert isinstance(state, Packed), f"bound to {type(state).__name__}, which has no row kernel"
    return state


def _piece(linear: Biased, result: int) -> Piece:
    return Piece(packed(linear.linear), _vector(linear.bias), result)


def _vector(values: Tensor | None) -> Floats | None:
    return None if values is None else filled(values.numpy())


RUNG = Step()
