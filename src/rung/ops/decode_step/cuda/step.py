"""Whole tokens on NVIDIA and AMD GPUs through torch: five kernels in CUDA C a layer, launched as one graph.

One row, or up to eight of as many sequences, which share the weights that are read and take seven kernels a layer;
rows with adapters, each its own or none, take a kernel more for each product that one of them changes. Prompts, and
hidden states that somebody wants, are the network's in torch, whose cache it is. What changes from token to token is
copied to one place before: the kernels and their arguments stay. Tokens of one sequence are chosen there, too, up to 16
one after the other, so that no logits and no embedding cross the bus.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rung.formats.codec import Floats
from rung.kernels.cuda.attention_source import attention, part_floats, parts_of
from rung.kernels.cuda.draw_source import CHOICE, blocks_of, choosing, embedding, kernels_of
from rung.kernels.cuda.driver import Argument, Attend, Draw, Embed, Part, Product
from rung.kernels.cuda.readers import Layout
from rung.kernels.cuda.source import COUNTS, FOUND_BYTES, MOST_AHEAD, THREADS, Source, activation_bytes, counts, tile_of
from rung.kernels.cuda.step_source import downs, gated, norms, sums
from rung.kernels.gpu.cuda_products import Packed, Weight, launch, of_stored, reads
from rung.kernels.gpu.stored import Stored
from rung.kernels.webgpu.layouts import UNIT
from rung.ops.decode_step.network import Network, TorchGlue
from rung.ops.decode_step.parts import Adapter, Pool, SequenceRows, read_each
from rung.ops.decode_step.weights import Biased, LayerWeights, Weights
from rung.ops.token_choice import Row

#: What an adapter changes of a weight: addresses of its tensors, 0 for no factor, and its rank, 0 for no change.
_CHANGE = np.dtype([*((name, "<u8") for name in ("down", "up", "factor")), ("rank", "<i4"), ("none", "<i4")])


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


class Tape:
    """Kernels that are launched again and again: a graph from the second time on, the first one compiles them."""

    def __init__(self, device: torch.device, launches: Sequence[Launch]) -> None:
        self._device, self._launches = device, launches
        self._graph: torch.cuda.CUDAGraph | None = None
        self._warm = self._alone = device.type != "cuda"

    def run(self) -> None:
        """Launch them."""
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
            launch(self._device, each.source, each.kernel, each.blocks, (each.argument,))


class Program:
    """The kernels of a token of ``count`` sequences with their buffers, none of which moves. ``ranks``, by the role of
    a weight, are those of the adapters that its rows may have."""

    def __init__(self, weights: Weights, pool: Pool, count: int = 1, ranks: Mapping[str, int] | None = None) -> None:
        self.weights, self.pool, self.count, shape = weights, pool, count, weights.shape
        self.device = torch.device(weights.layers[0].device)
        self.ranks, self._numbers = ranks or {}, {each.role: n for n, (each, _) in enumerate(weights.linears)}
        self._kept: list[Tensor] = []
        turns = [2 * len(each.inverse) for each in weights.frequencies]
        #: Where rotations begin behind the hidden state, and the address of an adapter behind these.
        self.turns = [shape.hidden + sum(turns[:n]) for n in range(len(turns) + 1)]
        #: Where position and blocks of the sequence begin.
        self.info, self.per_sequence = self.turns[-1] + 2, -(-pool.context // pool.block)
        #: Numbers from a row's to the next one's.
        self.apart = -(-(self.info + 1 + pool.groups * self.per_sequence) // 4) * 4
        self._set_up_input(sum(turns))
        layers = weights.layers
        behind_norms = [weights.head, *(linear for each in layers for linear in (*each.inputs, *each.widen))]
        self.quantized = self._activations(behind_norms, shape.hidden)
        self.mixed = self._activations([each.output for each in layers], shape.heads * shape.head_dim)
        self.inner = self._activations([each.narrow for each in layers], shape.feed_forward)
        self.qkv = self._floats((shape.heads + 2 * shape.kv_heads) * shape.head_dim)
        self.added, self.wide = self._floats(shape.hidden), self._floats(shape.feed_forward)
        self.logits = self._floats(shape.vocabulary)
        self.counters = self._zeros(max(shape.feed_forward // UNIT, count * shape.heads), torch.int32)
        self.parts, self.most = parts_of(pool.context), max(self.ranks.values(), default=0)
        self.left = self._floats(shape.heads * self.parts * part_floats(shape.head_dim))
        self.low = self._floats(len(Product().parts) * self.most)
        self.found = self._zeros(FOUND_BYTES // 4 if count == 1 else 0, torch.int32)
        self.table = self._embedding() if count == 1 else None
        self._launches = self._all()
        self._token = Tape(self.device, self._launches)
        self._choices: dict[tuple[bool, bool, bool], Tape] = {}

    def _set_up_input(self, turned: int) -> None:
        """Make the memory of all that is written before a token: of each row its hidden state, rotations, the address
        of its adapter, position and blocks; then, of a row alone, the settings of choices and later rotations."""
        rows, ahead = self.count * self.apart, MOST_AHEAD if self.count == 1 else 0
        size = rows + (CHOICE.itemsize // 4 + turned * ahead if ahead else 0)
        self.input, self._host = self._zeros(size, torch.float32), np.zeros(size, np.float32)
        self._rows = self._host[:rows].reshape(self.count, self.apart)
        self._behind, self._turned = rows + CHOICE.itemsize // 4, turned

    def tokens(self, rows: Sequence[SequenceRows], changes: Sequence[int]) -> Floats:
        """Return logits [rows, vocabulary] after a token of each of up to ``count`` sequences; write their keys and
        values. ``changes`` are the addresses of their adapters, 0 for none."""
        tokens, positions = [each.tokens[0] for each in rows], [each.start for each in rows]
        self._look_up(tokens)
        self._rows[: len(rows), self.turns[0] : self.turns[-1]] = self._rotations(positions)
        self._rows.view(np.int32)[:, self.info] = -1
        self._rows[:, self.turns[-1] : self.info] = 0  # addresses of adapters, which may be gone by now
        for number, each in enumerate(rows):
            self._fill(number, each, each.start, changes[number])
        self.input.copy_(torch.from_numpy(self._host))
        self._token.run()
        logits: Floats = self.logits.to("cpu").numpy().reshape(self.count, -1)
        return logits[: len(rows)]

    def choose(self, rows: SequenceRows, settings: Sequence[Row], changes: int) -> list[int]:
        """Return the next tokens by their settings, each computed from those before it; -1 where logits are none."""
        first, last = settings[0], rows.start + len(settings) - 1
        if self.table is None:
            self._look_up(rows.tokens)
        rotations = self._rotations(range(rows.start, last + 1))
        self._rows[0, self.turns[0] : self.turns[-1]] = rotations[0]
        self._host[self._behind :][: rotations.size] = rotations.reshape(-1)
        self._fill(0, rows, last, changes)
        choice = self._host[self.apart : self._behind].view(CHOICE)
        choice["inverse"], choice["top_p"], choice["min_p"] = first.inverse, first.top_p, first.min_p
        choice["top_k"], choice["token"], choice["step"], choice["start"] = first.top_k, rows.tokens[0], 0, rows.start
        choice["random"][0, : len(settings)] = [each.random for each in settings]
        self.input.copy_(torch.from_numpy(self._host))
        tape = self._choice(bool(first.inverse), 0 < first.top_k < self.weights.shape.vocabulary, first.top_p < 1)
        for _ in settings:
            tape.run()
        return [int(token) for token in self.found[: len(settings)].to("cpu").tolist()]

    def _look_up(self, tokens: Sequence[int]) -> None:
        """Write the hidden states before the first layer."""
        shape = self.weights.shape
        rows = self.weights.look_up.rows(tokens) * np.float32(shape.embedding_scale)
        self._rows[: len(tokens), : shape.hidden] = rows

    def _rotations(self, positions: Sequence[int]) -> Floats:
        """Return the numbers of all rotations of positions, [positions, numbers] f32."""
        tables = [part for each in self.weights.frequencies for part in each.table(positions)]
        found: Floats = np.concatenate(tables, axis=1, dtype=np.float32)
        return found

    def _fill(self, row: int, rows: SequenceRows, last: int, changes: int) -> None:
        """Write the address of an adapter, the position, and the blocks of a sequence up to its position ``last``."""
        self._rows[row, self.turns[-1] : self.info].view(np.uint64)[0] = changes
        info, count = self._rows[row].view(np.int32)[self.info :], last // self.pool.block + 1
        info[0] = rows.start
        for group in range(self.pool.groups):
            blocks = (ctypes.c_int64 * count).from_address(rows.cache.table(group))
            info[1 + group * self.per_sequence :][:count] = blocks

    def _choice(self, draws: bool, by_count: bool, by_mass: bool) -> Tape:
        """Return the kernels of a token that is chosen at their end, and read by the next one's."""
        if (draws, by_count, by_mass) not in self._choices:
            before = [] if self.table is None else [self._embed(self.table)]
            behind = [self._draw(*each, draws) for each in kernels_of(draws, by_count, by_mass)]
            self._choices[draws, by_count, by_mass] = Tape(self.device, [*before, *self._launches, *behind])
        return self._choices[draws, by_count, by_mass]

    def _draw(self, kernel: str, level: int, by_mass: bool, draws: bool) -> Launch:
        blocks = blocks_of(self.weights.shape.vocabulary)
        argument = Draw(
            logits=self.logits.data_ptr(), choice=self.input.data_ptr() + 4 * self.apart, found=self.found.data_ptr(),
            vocabulary=self.weights.shape.vocabulary, blocks=blocks, draws=draws, level=level, by_mass=by_mass,
        )  # fmt: skip
        return Launch(choosing(), kernel, (blocks, 1), argument)

    def _embed(self, table: Weight) -> Launch:
        here = self.input.data_ptr()
        argument = Embed(
            *(section.data_ptr() for section in table.sections), hidden=here, choice=here + 4 * self.apart,
            turns=here + 4 * self._behind, units=table.units, turned=self.turns[0], width=self._turned, info=self.info,
            scale=self.weights.shape.embedding_scale,
        )  # fmt: skip
        return Launch(embedding(table.layout), "embed", (-(-table.units // THREADS), 1), argument)

    def _embedding(self) -> Weight | None:
        """Return the weight on the device that the embedding has its rows from, that of a tied head or one of its own,
        or None where no kernel reads it."""
        state = getattr(self.weights.look_up, "state", None)
        if isinstance(state, Packed):
            return state.weight
        if not isinstance(state, Stored):
            return None
        if state.encoded is self.weights.head.linear.encoded():
            return self._weight(self.weights.head)
        return of_stored(state, self.device) if reads(state.encoded) else None

    def layout(self, linear: Biased) -> Layout:
        """Return the layout of a weight."""
        return self._weight(linear).layout

    def _weight(self, linear: Biased) -> Weight:
        state = linear.linear.state  # type: ignore[attr-defined]  # of a rung of linear in CUDA C
        if isinstance(state, Stored):
            return of_stored(state, self.device)
        assert isinstance(state, Packed), "check_cuda lets no other linear come here"
        return state.weight

    def _activations(self, linears: Sequence[Biased], columns: int) -> Activations:
        """Return memory of the rows for all that these weights take."""
        kinds = {self._weight(each).layout.looks_up for each in linears}
        kinds |= {True} if self.ranks else set()  # adapters are multiplied with floats
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
        cap = self.weights.shape.logit_softcap or 0.0
        return [*found, *self._store([self.weights.head], self.logits, cap)]

    def _layer(self, layer: LayerWeights, after: Floats) -> list[Launch]:
        """Return the kernels of a layer, which ends with the norm ``after`` it."""
        return [
            *self._store(layer.inputs, self.qkv),
            self._attend(layer),
            *self._add(layer.output, self.mixed, layer.attention_post_norm, layer.mlp_norm),
            *self._gate(layer.widen),
            *self._add(layer.narrow, self.inner, layer.mlp_post_norm, after),
        ]

    @property
    def tile(self) -> int:
        """Return the rows of weights of a block."""
        return tile_of(self.count)

    def _changed(self, linears: Sequence[Biased]) -> bool:
        """Return whether an adapter may change one of these weights."""
        return any(each.role in self.ranks for each in linears)

    def _down(self, linears: Sequence[Biased], product: Product) -> list[Launch]:
        """Return the kernel that multiplies activations with what adapters have for them, where there may be one."""
        blocks = len(linears) * self.most, self.count
        return [Launch(downs(), "down_product", blocks, product)] if self._changed(linears) else []

    def _gate(self, widen: Sequence[Biased]) -> list[Launch]:
        """Return the kernels of gate and up, two weights or one."""
        shape, found = self.weights.shape, self._product(widen, self.quantized, self.wide, quantized=self.inner)
        layouts = [self._weight(each).layout for each in (widen[0], widen[-1])]
        if len(widen) == 1:
            found.parts[0].rows = shape.feed_forward
            found.parts[1] = Part.from_buffer_copy(found.parts[0])
            found.parts[1].first = shape.feed_forward
            found.parts[1].bias = found.parts[0].bias and found.parts[0].bias + 4 * shape.feed_forward
        source = gated(layouts, shape.activation, self.count, self._changed(widen))
        return [*self._down(widen, found), Launch(source, "gate", (shape.feed_forward // self.tile, 1), found)]

    def _store(self, linears: Sequence[Biased], y: Tensor, softcap: float = 0.0) -> list[Launch]:
        found = self._product(linears, self.quantized, y)
        found.softcap = softcap
        source = sums([self._weight(each).layout for each in linears], self.count, self._changed(linears))
        return [*self._down(linears, found), Launch(source, "store", (found.blocks, 1), found)]

    def _add(self, linear: Biased, x: Activations, post: Floats | None, norm: Floats) -> list[Launch]:
        """Return the kernel that adds and norms, or two of several rows."""
        found = self._product([linear], x, self.added, post, norm)
        source = sums([self._weight(linear).layout], self.count, self._changed([linear]))
        kernels = [*self._down([linear], found), Launch(source, "add", (found.blocks, 1), found)]
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
            apart=self.apart, width=0 if y is None else len(y) // self.count, low=self.low.data_ptr(), most=self.most,
            changes=self.input.data_ptr() + 4 * self.turns[-1],
        )  # fmt: skip
        for number, each in enumerate(linears):
            weight = self._weight(each)
            found.parts[number] = Part(
                *(section.data_ptr() for section in weight.sections), self._there(each.bias), weight.shape[0], 0,
                self._numbers[each.role], number,
            )  # fmt: skip
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
            info=self.input.data_ptr() + 4 * self.info, quantized=codes, floats=floats,
            left=self.left.data_ptr(), counters=self.counters.data_ptr(), most_parts=self.parts,
            block_bytes=keys.stride(0) * keys.itemsize, head=lies.head, row=lies.row,
            heads=shape.heads, kv_heads=shape.kv_heads, half=len(rope.inverse), window=layer.window or 0,
            table=1 + lies.group * self.per_sequence, block=self.pool.block, scale=shape.attention_scale,
            softcap=shape.attention_softcap or 0.0, epsilon=shape.norm_epsilon, apart=self.apart,
        )  # fmt: skip
        source = attention(shape.head_dim, rope.interleaved, self.pool.dtype)
        return Launch(source, "attend", (self.count * shape.heads, self.parts), found)


class State:
    """A model on a GPU: the network in torch, and the programs of a token of so many sequences, without adapters and
    with those that rows have had: one of a higher rank, or of other weights, makes programs anew."""

    def __init__(self, weights: Weights, pool: Pool, threads: int) -> None:
        self.network = Network(weights, TorchGlue(weights.shape), threads)
        self.programs = {1: Program(weights, pool)}
        self.changed: dict[int, Program] = {}
        self._ranks: dict[str, int] = {}
        self._changes: weakref.WeakKeyDictionary[Adapter, Tensor] = weakref.WeakKeyDictionary()
        linears = [each for each, _ in weights.linears]
        #: Rows that share the weights that are read, at most.
        self.most = min(counts(self.programs[1].layout(each))[-1] for each in linears)

    def program(self, rows: Sequence[SequenceRows]) -> tuple[Program, list[int]]:
        """Return the program of the smallest count that so many rows have room in, made when it is first needed, and
        the addresses of their adapters."""
        count, one = next(each for each in COUNTS if each >= len(rows)), self.programs[1]
        changes = [0 if each.adapter is None else self._address(each.adapter) for each in rows]
        programs, ranks = (self.changed, self._ranks) if any(changes) else (self.programs, {})
        if count not in programs:
            programs[count] = Program(one.weights, one.pool, count, dict(ranks))
        return programs[count], changes

    def _address(self, adapter: Adapter) -> int:
        """Return the address of what an adapter changes of each weight."""
        if adapter not in self._changes:
            linears = [each.role for each, _ in self.network.weights.linears]
            table = np.zeros(len(linears), _CHANGE)
            for row, role in zip(table, linears, strict=True):
                tensors = adapter.tensors(role)
                if tensors is None:
                    continue
                down, up, factor = tensors
                row["down"], row["up"] = down.data_ptr(), up.data_ptr()
                row["factor"], row["rank"] = 0 if factor is None else factor.data_ptr(), len(down)
                if len(down) > self._ranks.get(role, 0):
                    self._ranks[role] = len(down)
                    self.changed.clear()
            self._changes[adapter] = torch.from_numpy(table.view(np.uint8)).to(self.programs[1].device)
        return self._changes[adapter].data_ptr()


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
        """Return 16, or 1 where the processor looks rows of the embedding up."""
        return 1 if state.programs[1].table is None else MOST_AHEAD

    def choose(self, state: State, rows: SequenceRows, settings: Sequence[Row]) -> list[int]:
        """Return the next tokens, which are chosen on the device."""
        program, changes = state.program([rows])
        return program.choose(rows, settings, changes[0])

    def apply(self, state: State, batch: Sequence[SequenceRows]) -> Floats:
        """Return logits [outputs, vocabulary] f32."""
        none = np.empty((0, state.network.shape.vocabulary), np.float32)
        found, alone = [none] * len(batch), []
        for number, rows in enumerate(batch):
            if len(rows.tokens) > 1 or rows.states is not None:
                found[number] = read_each(state.network, [rows])
            else:
                alone.append(number)
        for first in range(0, len(alone), state.most):
            some = alone[first : first + state.most]
            program, changes = state.program([batch[number] for number in some])
            logits = program.tokens([batch[number] for number in some], changes)
            for number, row in zip(some, logits, strict=True):
                found[number] = row[None][: batch[number].logits]
        return np.concatenate([none, *found])


RUNG = Step()
