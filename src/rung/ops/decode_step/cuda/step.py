"""Whole tokens on NVIDIA and AMD GPUs through torch: five kernels in CUDA C a layer, launched as one graph.

One row, or up to eight of as many sequences, which share the weights that are read and take seven kernels a layer; rows
with adapters, prompts, and hidden states that somebody wants are the network's in torch, whose cache it is. What
changes from token to token is copied to one place before: the kernels and their arguments stay.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rung.formats.codec import Floats
from rung.kernels.cuda.attention_source import attention, part_floats, parts_of
from rung.kernels.cuda.driver import Argument, Attend, Part, Product
from rung.kernels.cuda.source import COUNTS, Source, activation_bytes, counts, tile_of
from rung.kernels.cuda.step_source import gated, norms, sums
from rung.kernels.gpu.cuda_products import Packed, Weight, launch, of_stored
from rung.kernels.gpu.stored import Stored
from rung.kernels.webgpu.layouts import UNIT
from rung.ops.decode_step.network import Network, TorchGlue
from rung.ops.decode_step.parts import Cache, Pool, SequenceRows, read_each
from rung.ops.decode_step.weights import Biased, LayerWeights, Weights


class Launch(NamedTuple):
    """A kernel, its blocks across and down, and its argument."""

    source: Source
    kernel: str
    blocks: tuple[int, int]
    argument: Argument


class Activations(NamedTuple):
    """Activations that products read: int8, float32 where codes index a table, or both."""

    codes: Tensor | None
    floats: Tensor | None

    @property
    def addresses(self) -> tuple[int | None, int | None]:
        """Return where they lie."""
        codes, floats = (None if each is None else each.data_ptr() for each in self)
        return codes, floats


class Program:
    """The kernels of a token of ``count`` sequences with their buffers, none of which moves."""

    def __init__(self, weights: Weights, pool: Pool, count: int = 1) -> None:
        self.weights, self.pool, self.count, shape = weights, pool, count, weights.shape
        self.device = torch.device(weights.layers[0].device)
        self._kept: list[Tensor] = []
        turns = [2 * len(each.inverse) for each in weights.frequencies]
        #: Where rotations begin behind the hidden state, and position and blocks behind these.
        self.turns = [shape.hidden + sum(turns[:n]) for n in range(len(turns) + 1)]
        #: Hidden state, rotations, position and blocks of the sequence, all written before a token.
        self.per_sequence = -(-pool.context // pool.block)
        #: Numbers from a row's to the next one's.
        self.apart = -(-(self.turns[-1] + 1 + pool.groups * self.per_sequence) // 4) * 4
        self.input = self._zeros(count * self.apart, torch.float32)
        self._host = np.zeros((count, self.apart), np.float32)
        layers = weights.layers
        behind_norms = [weights.head, *(linear for each in layers for linear in (*each.inputs, *each.widen))]
        self.quantized = self._activations(behind_norms, shape.hidden)
        self.mixed = self._activations([each.output for each in layers], shape.heads * shape.head_dim)
        self.inner = self._activations([each.narrow for each in layers], shape.feed_forward)
        self.qkv = self._floats((shape.heads + 2 * shape.kv_heads) * shape.head_dim)
        self.added, self.wide = self._floats(shape.hidden), self._floats(shape.feed_forward)
        self.logits = self._floats(shape.vocabulary)
        self.counters = self._zeros(max(shape.feed_forward // UNIT, count * shape.heads), torch.int32)
        self.parts = parts_of(pool.context)
        self.left = self._floats(shape.heads * self.parts * part_floats(shape.head_dim))
        self._launches = self._all()
        self._graph: torch.cuda.CUDAGraph | None = None
        self._warm = self._alone = self.device.type != "cuda"

    def tokens(self, rows: Sequence[SequenceRows]) -> Floats:
        """Return logits [rows, vocabulary] after a token of each of up to ``count`` sequences; write their keys and
        values."""
        shape, host = self.weights.shape, self._host
        tokens, positions = [each.tokens[0] for each in rows], [each.start for each in rows]
        host[: len(rows), : shape.hidden] = self.weights.look_up.rows(tokens) * np.float32(shape.embedding_scale)
        for frequencies, at in zip(self.weights.frequencies, self.turns, strict=False):
            turns = np.concatenate(frequencies.table(positions), axis=1)
            host[: len(rows), at : at + turns.shape[1]] = turns
        info = host.view(np.int32)[:, self.turns[-1] :]
        info[:, 0] = -1
        for own, each in zip(info, rows, strict=False):
            self._fill_rows(own, each.start, each.cache)
        self.input.copy_(torch.from_numpy(host.reshape(-1)))
        self._run()
        logits: Floats = self.logits.to("cpu").numpy().reshape(self.count, -1)[: len(rows)]
        if shape.logit_softcap is not None:
            logits = np.tanh(logits / np.float32(shape.logit_softcap)) * np.float32(shape.logit_softcap)
        return logits

    def _fill_rows(self, info: np.ndarray[tuple[int], np.dtype[np.int32]], position: int, cache: Cache) -> None:
        """Write position and blocks of a sequence."""
        info[0], count = position, position // self.pool.block + 1
        for group in range(self.pool.groups):
            blocks = (ctypes.c_int64 * count).from_address(cache.table(group))
            info[1 + group * self.per_sequence :][:count] = blocks

    def _run(self) -> None:
        """Replay the graph; the first token compiles its kernels, the second one is captured."""
        if self._graph is not None:
            self._graph.replay()
        elif self._alone or not self._warm:
            self._warm = True
            self._launch()
        else:
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                    self._launch()
            except RuntimeError:  # nothing ran: a driver that captures nothing launches them one by one
                self._alone = True
                self._launch()
                return
            self._graph = graph
            graph.replay()

    def _launch(self) -> None:
        for each in self._launches:
            launch(self.device, each.source, each.kernel, each.blocks, (each.argument,))

    def _weight(self, linear: Biased) -> Weight:
        state = linear.linear.state  # type: ignore[attr-defined]  # of a rung of linear in CUDA C
        if isinstance(state, Stored):
            return of_stored(state, self.device)
        assert isinstance(state, Packed), "check_cuda lets no other linear come here"
        return state.weight

    def _activations(self, linears: Sequence[Biased], columns: int) -> Activations:
        """Return memory of the rows for all that these weights take."""
        kinds = {self._weight(each).layout.looks_up for each in linears}
        codes, floats = (
            self._zeros(self.count * activation_bytes(looks_up, columns), torch.uint8) if looks_up in kinds else None
            for looks_up in (False, True)
        )
        return Activations(codes, floats)

    def _zeros(self, count: int, dtype: torch.dtype) -> Tensor:
        return torch.zeros(count, dtype=dtype, device=self.device)

    def _floats(self, width: int) -> Tensor:
        """Return memory of rows of so many float32."""
        return self._zeros(-(-self.count * width // 4) * 4, torch.float32)[: self.count * width]

    def _there(self, values: Floats | None) -> int | None:
        """Return the address of float32 values on the device, None for none."""
        if values is None:
            return None
        self._kept.append(torch.from_numpy(np.ascontiguousarray(values, np.float32)).to(self.device))
        return self._kept[-1].data_ptr()

    def _all(self) -> list[Launch]:
        layers = self.weights.layers
        after = [*(layer.attention_norm for layer in layers[1:]), self.weights.norm]
        first = self._product((), self.quantized, norm=layers[0].attention_norm)
        found = [Launch(norms(), "norm_hidden", (self.count, 1), first)]
        for layer, norm in zip(layers, after, strict=True):
            found += self._layer(layer, norm)
        return [*found, self._store([self.weights.head], self.logits)]

    def _layer(self, layer: LayerWeights, after: Floats) -> list[Launch]:
        """Return the kernels of a layer, which ends with the norm ``after`` it."""
        shape, widen = self.weights.shape, layer.widen
        gate = self._product(widen, self.quantized, self.wide, quantized=self.inner)
        layouts = [self._weight(each).layout for each in (widen[0], widen[-1])]
        if len(widen) == 1:
            gate.parts[0].rows = shape.feed_forward
            gate.parts[1] = Part.from_buffer_copy(gate.parts[0])
            gate.parts[1].first = shape.feed_forward
            gate.parts[1].bias = gate.parts[0].bias and gate.parts[0].bias + 4 * shape.feed_forward
        return [
            self._store(layer.inputs, self.qkv),
            self._attend(layer),
            *self._add(layer.output, self.mixed, layer.attention_post_norm, layer.mlp_norm),
            Launch(gated(layouts, shape.activation, self.count), "gate", (shape.feed_forward // self.tile, 1), gate),
            *self._add(layer.narrow, self.inner, layer.mlp_post_norm, after),
        ]

    @property
    def tile(self) -> int:
        """Return the rows of weights of a block."""
        return tile_of(self.count)

    def _store(self, linears: Sequence[Biased], y: Tensor) -> Launch:
        found = self._product(linears, self.quantized, y)
        source = sums([self._weight(each).layout for each in linears], self.count)
        return Launch(source, "store", (found.blocks, 1), found)

    def _add(self, linear: Biased, x: Activations, post: Floats | None, norm: Floats) -> list[Launch]:
        """Return the kernel that adds and norms, or two of several rows."""
        found = self._product([linear], x, self.added, post, norm)
        source = sums([self._weight(linear).layout], self.count)
        kernels = [Launch(source, "add", (found.blocks, 1), found)]
        return kernels if self.count == 1 else [*kernels, Launch(norms(), "norm_hidden", (self.count, 1), found)]

    def _product(
        self,
        linears: Sequence[Biased],
        x: Activations,
        y: Tensor | None = None,
        post: Floats | None = None,
        norm: Floats | None = None,
        quantized: Activations | None = None,
    ) -> Product:
        (codes, wide), (inner_codes, inner_floats) = x.addresses, (quantized or self.quantized).addresses
        found = Product(
            x=codes, wide=wide, y=None if y is None else y.data_ptr(), hidden=self.input.data_ptr(),
            post=self._there(post), norm=self._there(norm), quantized=inner_codes, floats=inner_floats,
            counters=self.counters.data_ptr(), size=self.weights.shape.hidden, epsilon=self.weights.shape.norm_epsilon,
            apart=self.apart, width=0 if y is None else len(y) // self.count,
        )  # fmt: skip
        for number, each in enumerate(linears):
            weight = self._weight(each)
            found.parts[number] = Part(
                *(section.data_ptr() for section in weight.sections), self._there(each.bias), weight.shape[0], 0
            )
            found.units = weight.units
            found.blocks += -(-weight.shape[0] // self.tile)
        return found

    def _attend(self, layer: LayerWeights) -> Launch:
        shape, lies = self.weights.shape, self.pool.layer(layer.index)
        codes, floats = self.mixed.addresses
        rope, (keys, values) = self.weights.frequencies[layer.rope], self.pool.tensors[layer.index]
        found = Attend(
            qkv=self.qkv.data_ptr(), q_norm=self._there(layer.q_norm), k_norm=self._there(layer.k_norm),
            turn=self.input.data_ptr() + 4 * self.turns[layer.rope], keys=keys.data_ptr(), values=values.data_ptr(),
            info=self.input.data_ptr() + 4 * self.turns[-1], quantized=codes, floats=floats,
            left=self.left.data_ptr(), counters=self.counters.data_ptr(), most_parts=self.parts,
            block_bytes=keys.stride(0) * keys.itemsize, head=lies.head, row=lies.row,
            heads=shape.heads, kv_heads=shape.kv_heads, half=len(rope.inverse), window=layer.window or 0,
            table=1 + lies.group * self.per_sequence, block=self.pool.block, scale=shape.attention_scale,
            softcap=shape.attention_softcap or 0.0, epsilon=shape.norm_epsilon, apart=self.apart,
        )  # fmt: skip
        source = attention(shape.head_dim, rope.interleaved, self.pool.dtype)
        return Launch(source, "attend", (self.count * shape.heads, self.parts), found)

    @property
    def most(self) -> int:
        """Return the rows that share the weights that are read, at most."""
        layers = self.weights.layers
        linears = [w for each in layers for w in (*each.inputs, each.output, *each.widen, each.narrow)]
        return min(counts(self._weight(each).layout)[-1] for each in (*linears, self.weights.head))


class State:
    """A model on a GPU: the network in torch, and the programs of a token of so many sequences."""

    def __init__(self, weights: Weights, pool: Pool, threads: int) -> None:
        self.network = Network(weights, TorchGlue(weights.shape), threads)
        self.programs = {1: Program(weights, pool)}
        self.most = self.programs[1].most

    def program(self, rows: int) -> Program:
        """Return the program of the smallest count that so many rows have room in; made when it is first needed."""
        count = next(each for each in COUNTS if each >= rows)
        if count not in self.programs:
            one = self.programs[1]
            self.programs[count] = Program(one.weights, one.pool, count)
        return self.programs[count]


class Step:
    """See ``rung.ops.decode_step``."""

    block = 0

    def prepare(self, weights: Weights, pool: Pool, *, threads: int) -> State:
        """Make the buffers and arguments of the kernels."""
        return State(weights, pool, threads)

    def same_bytes(self, state: State) -> bool:
        """Return False: prompts are multiplied by libraries."""
        return False

    def rows_without_torch(self, state: State) -> int | None:
        """Return 0: memory is torch's."""
        return 0

    def look_ahead(self, state: State) -> int:
        """Return 0: tokens are chosen from the logits."""
        return 0

    def apply(self, state: State, batch: Sequence[SequenceRows]) -> Floats:
        """Return logits [outputs, vocabulary] f32."""
        none = np.empty((0, state.network.shape.vocabulary), np.float32)
        found, alone = [none] * len(batch), []
        for number, rows in enumerate(batch):
            if len(rows.tokens) > 1 or rows.adapter is not None or rows.states is not None:
                found[number] = read_each(state.network, [rows])
            else:
                alone.append(number)
        for first in range(0, len(alone), state.most):
            some = alone[first : first + state.most]
            logits = state.program(len(some)).tokens([batch[number] for number in some])
            for number, row in zip(some, logits, strict=True):
                found[number] = row[None][: batch[number].logits]
        return np.concatenate([none, *found])


RUNG = Step()
