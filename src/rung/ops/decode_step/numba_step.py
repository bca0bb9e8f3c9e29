"""A few tokens as one program of compiled functions: no torch between the embedding and the logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from rung.core.types import Case
from rung.kernels.cpu.compiled import Kernel
from rung.kernels.cpu.decode import rows, step
from rung.kernels.cpu.decode.cache_layout import score_floats
from rung.kernels.cpu.decode.rope_and_store import rope_and_store_kv
from rung.kernels.cpu.decode.step import AdapterTable
from rung.kernels.cpu.decode.step_program import (
    After,
    Before,
    Builder,
    Floats,
    Heads,
    HeadShape,
    Piece,
    Rows,
    address,
    cache_words,
    filled,
    floats,
)
from rung.kernels.cpu.gemm.float_rows import FloatRows, stored_as
from rung.kernels.cpu.gemm.low_rank import add_rows
from rung.kernels.cpu.pack.packing import Packed
from rung.kernels.cpu.thread_pool import Program, run_program
from rung.ops.decode_step import BLOCKS
from rung.ops.decode_step.batch import BatchTables, logit_rows, pieces, positions
from rung.ops.decode_step.numba_prompt import PromptReader, reads
from rung.ops.decode_step.parts import Pool, SequenceRows, read_each
from rung.ops.decode_step.weights import Biased, LayerStack, LayerWeights, Weights

#: Rows of a batch that a program computes; more are read an op at a time.
MOST_ROWS = 16


class _Memory:
    """Memory that programs read and write, for up to ``MOST_ROWS`` rows: pages that no program comes to are not
    there."""

    def __init__(self, weights: LayerStack, pool: Pool, threads: int) -> None:
        shape = weights.shape
        self.scores = floats(threads * score_floats(pool.context, shape.head_dim)).reshape(threads, -1)
        self._keep: list[Floats] = []
        self.embedded = self._array(shape.hidden)
        self.states, self.normed, self.added = (self._rows(shape.hidden) for _ in range(3))
        self.queries = self._rows((shape.heads + 2 * shape.kv_heads) * shape.head_dim)
        self.mixed = self._rows(shape.heads * shape.head_dim)
        self.wide = self._rows(2 * shape.feed_forward)
        self.logits = self._array(shape.vocabulary)
        self.rotations = [
            tuple(floats(MOST_ROWS * len(frequencies.inverse)) for _ in range(2)) for frequencies in weights.frequencies
        ]
        self.tables = BatchTables(pool, MOST_ROWS)
        self.adapters = AdapterTable(len(list(weights.linears)), MOST_ROWS, weights.first_linear)

    def _array(self, columns: int) -> Floats:
        """Return rows of so many columns, [MOST_ROWS, columns to a whole vector]."""
        wide = -(-columns // 16) * 16
        return floats(MOST_ROWS * wide).reshape(MOST_ROWS, wide)

    def _rows(self, columns: int) -> Rows:
        self._keep.append(self._array(columns))
        return rows_of(self._keep[-1])

    @property
    def left(self) -> tuple[Floats, Floats]:
        """Return hidden states as a program through layers leaves them, and the sums that are to be added."""
        return self._keep[0], self._keep[2]

    def gather(self, rows: Sequence[int]) -> None:
        """Move hidden states and what is added to them of some rows to the front, for a head of fewer rows."""
        for buffer in self.left:
            buffer[: len(rows)] = buffer[list(rows)]


def rows_of(array: Floats) -> Rows:
    """Return the rows of an array as programs take them."""
    return Rows(address(array), array.strides[0])


@dataclass
class State:
    """Programs bound to weights and a cache, by the rows they compute, with the memory that Python reads and writes."""

    weights: LayerStack
    pool: Pool
    threads: int
    memory: _Memory
    programs: dict[tuple[int, int, bool], Program] = field(default_factory=dict)

    def program(self, rows: int, logits: int, apart: bool = False) -> Program:
        """Return the program of ``rows`` rows through the layers and ``logits`` rows through the head; 0 for none.
        ``apart``: what comes between is computed elsewhere."""
        key = rows, logits, apart
        if key not in self.programs:
            self.programs[key] = _Layout(self, rows or logits).write(rows > 0, logits > 0, apart)
        return self.programs[key]

    @property
    def whole(self) -> Weights:
        """Return the weights, which have an embedding and a head here."""
        assert isinstance(self.weights, Weights), "layers alone have no embedding and no head"
        return self.weights

    @cached_property
    def reads_without_torch(self) -> bool:
        """Return whether long prompts are read without torch."""
        return reads(self.weights)

    @cached_property
    def one_by_one(self) -> bool:
        """Return whether a program takes a single row: mapped weights are packed in the memory of a thread."""
        return any(isinstance(each, Packed) and each.mapped is not None for each in _states(self.weights))

    @cached_property
    def all_packed(self) -> bool:
        """Return whether every weight is packed."""
        return all(isinstance(each, Packed) for each in _states(self.weights))

    @cached_property
    def reader(self) -> PromptReader:
        """Return the reader of prompts that needs no torch."""
        return PromptReader(self.weights, self.pool, self.threads)

    @cached_property
    def network(self) -> Any:
        """Return the network that reads prompts with torch and the compiled glue."""
        from rung.ops.decode_step.network import Network
        from rung.ops.decode_step.numba_glue import NumbaGlue

        return Network(self.whole, NumbaGlue(self.weights.shape, self.pool, self.threads), self.threads)


class Step:
    """See ``rung.ops.decode_step``; every linear must be packed, or stored as floats."""

    block = BLOCKS["numba.step"]

    def prepare(self, weights: LayerStack, pool: Pool, *, threads: int) -> State:
        """Lay out memory and write the program of one row; compile its functions or load them from the disk."""
        state = State(weights, pool, threads, _Memory(weights, pool, threads))
        is_whole = isinstance(weights, Weights)
        state.program(1, int(is_whole), not is_whole)
        return state

    def last_kernels(self, case: Case) -> list[Kernel]:
        """Return the kernels that the check of a case comes to last; see ``ops.proof.compile_ahead``."""
        last = [rows.prepare_rows, rows.add_and_norm, add_rows, rows.gate_rows, rows.cap_rows]
        return [rope_and_store_kv[case.format], *last]

    def same_bytes(self, state: State) -> bool:
        """Return whether all weights are packed: others are summed in an order of their own."""
        return state.all_packed

    def rows_without_torch(self, state: State) -> int | None:
        """See there."""
        return None if state.reads_without_torch else 1 if state.one_by_one else MOST_ROWS

    def look_ahead(self, state: State) -> int:
        """Return 0: tokens are chosen from the logits."""
        return 0

    def apply(self, state: State, batch: Sequence[SequenceRows]) -> Floats:
        """Return logits [outputs, vocabulary] f32; they lie in memory that the next call writes to."""
        count = sum(len(each.tokens) for each in batch)
        wants_states = any(each.states is not None for each in batch)
        if wants_states or (count > 1 and (count > MOST_ROWS or state.one_by_one)):
            if state.reads_without_torch:
                return state.reader.read(batch)
            return read_each(state.network, batch)
        self._run(state, batch, count)
        return state.memory.logits[: sum(each.logits for each in batch), : state.weights.shape.vocabulary]

    def embed(self, state: State, batch: Sequence[SequenceRows]) -> Floats:
        """Return hidden states [rows, hidden] f32 before the first layer."""
        return state.reader.embed(batch)

    def through(self, state: State, batch: Sequence[SequenceRows], hidden: Floats) -> Floats:
        """Return hidden states [rows, hidden] behind the layers that there are; memory that the next call writes to."""
        most = 1 if state.one_by_one else MOST_ROWS
        if len(hidden) <= most:
            return self._through(state, batch, hidden)
        if state.reads_without_torch:
            return state.reader.through(batch, hidden.copy())
        found, first = np.empty_like(hidden), 0
        for piece in pieces(batch, most):
            last = first + sum(len(each.tokens) for each in piece)
            found[first:last] = self._through(state, piece, hidden[first:last])
            first = last
        return found

    def _through(self, state: State, batch: Sequence[SequenceRows], hidden: Floats) -> Floats:
        """Do as ``through`` with a program."""
        count = len(hidden)
        state.memory.embedded[:count, : hidden.shape[1]] = hidden
        self._fill(state, batch, count)
        run_program(state.program(count, 0, apart=True), state.threads)
        states, added = (each[:count] for each in state.memory.left)
        return state.reader.add_and_norm(states, added, state.weights.layers[-1].mlp_post_norm, None)

    def head(self, state: State, batch: Sequence[SequenceRows], hidden: Floats) -> Floats:
        """Return the requested logits [outputs, vocabulary] of hidden states behind the last layer of the
        model."""
        outputs, most = logit_rows(batch), 1 if state.one_by_one else MOST_ROWS
        if not outputs or (len(outputs) > most and state.reads_without_torch):
            return state.reader.head(batch, hidden)
        state.reader.write_states(batch, hidden)
        adapters = [each.adapter for each in batch for _ in each.tokens]
        parts = [outputs[first : first + most] for first in range(0, len(outputs), most)]
        found = [self._head(state, hidden[part], [adapters[row] for row in part]) for part in parts]
        return found[0] if len(found) == 1 else np.concatenate(found)

    def finish(self, state: State, batch: Sequence[SequenceRows], hidden: Floats) -> Floats:
        """Return the requested logits [outputs, vocabulary] of hidden states before the layers that there are."""
        return self.head(state, batch, self.through(state, batch, hidden))

    def _head(self, state: State, hidden: Floats, adapters: Sequence[Any]) -> Floats:
        """Return logits of a few hidden states, by a program."""
        count = len(hidden)
        state.memory.embedded[:count, : hidden.shape[1]] = hidden
        state.memory.adapters.fill(adapters)
        run_program(state.program(0, count, apart=True), state.threads)
        return state.memory.logits[:count, : state.weights.shape.vocabulary].copy()

    def _fill(self, state: State, batch: Sequence[SequenceRows], count: int) -> list[Any]:
        """Write what a program reads of a batch beside hidden states; return the adapter of each row."""
        at = positions(batch)
        for frequencies, (cosine, sine) in zip(state.weights.frequencies, state.memory.rotations, strict=True):
            size = count * len(frequencies.inverse)
            turned = frequencies.table(at)
            cosine[:size], sine[:size] = turned[0].reshape(-1), turned[1].reshape(-1)
        state.memory.tables.fill(batch)
        adapters = [each.adapter for each in batch for _ in each.tokens]
        state.memory.adapters.fill(adapters)
        return adapters

    def _run(self, state: State, batch: Sequence[SequenceRows], count: int) -> None:
        """Compute the rows with programs: one where every row is an output, else one for the head alone."""
        memory, shape = state.memory, state.weights.shape
        tokens = [token for each in batch for token in each.tokens]
        embedded = memory.embedded[:count, : shape.hidden]
        np.multiply(state.whole.look_up.rows(tokens), np.float32(shape.embedding_scale), out=embedded)
        adapters = self._fill(state, batch, count)
        logits = sum(each.logits for each in batch)
        if logits in (0, count):
            run_program(state.program(count, logits), state.threads)
            return
        run_program(state.program(count, 0), state.threads)
        with_logits = logit_rows(batch)
        memory.gather(with_logits)
        memory.adapters.fill([adapters[row] for row in with_logits])
        run_program(state.program(0, logits), state.threads)


class _Layout:
    """Writes the layers of a model into a builder."""

    def __init__(self, state: State, rows: int) -> None:
        weights, memory = state.weights, state.memory
        shape = weights.shape
        heads = HeadShape(
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            shape.attention_scale,
            shape.attention_softcap or 0.0,
            shape.norm_epsilon,
        )
        self.state, self.weights, self.memory, self.pool = state, weights, memory, state.pool
        self.builder = Builder(
            rows, shape.hidden, state.threads, heads, memory.states, memory.normed, memory.scores, memory.adapters
        )
        self._numbers = {each.role: number for number, (each, _) in enumerate(weights.linears)}

    def write(self, layers: bool, head: bool, apart: bool) -> Program:
        """Return the program of every function in order. The head alone goes on from what a program has left, or where
        it is ``apart`` from hidden states as embeddings are."""
        memory = self.memory
        self.builder.shared |= apart or not layers
        for index, layer in enumerate(self.weights.layers if layers else ()):
            first = index == 0
            post_norm = None if first else _vector(self.weights.layers[index - 1].mlp_post_norm)
            start = Before(step.START if first else step.ADD, _vector(layer.attention_norm), post_norm)
            self._layer(layer, start, rows_of(memory.embedded) if first else memory.added)
        if head:
            self._head(apart)
        return self.builder.program()

    def _head(self, apart: bool) -> None:
        weights, memory = self.state.whole, self.memory
        cap = weights.shape.logit_softcap
        softcap = None if cap is None else np.array([cap], dtype=np.float32)
        piece = self._piece(weights.head, rows_of(memory.logits))
        after = After(step.NOTHING if softcap is None else step.CAP, softcap=softcap)
        if apart:
            self.builder.linear([piece], rows_of(memory.embedded), Before(step.START, _vector(weights.norm)), after)
        else:
            last = Before(step.ADD, _vector(weights.norm), _vector(weights.layers[-1].mlp_post_norm))
            self.builder.linear([piece], memory.added, last, after)

    def _piece(self, biased: Biased, result: Rows) -> Piece:
        return Piece(kernel_weight(biased.linear), _vector(biased.bias), result, self._numbers[biased.role])

    def _layer(self, layer: LayerWeights, start: Before, source: Rows) -> None:
        builder, memory = self.builder, self.memory
        inputs, column = [], 0
        for linear in layer.inputs:
            inputs.append(self._piece(linear, memory.queries.at(column)))
            column += inputs[-1].weight.shape[0]
        builder.linear(inputs, source, start)
        self._attention(layer)
        builder.linear([self._piece(layer.output, memory.added)], memory.mixed, Before(step.PLAIN))
        self._feed_forward(layer)

    def _attention(self, layer: LayerWeights) -> None:
        shape, memory = self.weights.shape, self.memory
        frequencies, (cosine, sine) = self.weights.frequencies[layer.rope], memory.rotations[layer.rope]
        k = memory.queries.at(shape.heads * shape.head_dim)
        heads = Heads(
            memory.queries,
            k,
            k.at(shape.kv_heads * shape.head_dim),
            memory.mixed,
            (_vector(layer.q_norm), _vector(layer.k_norm)),
            cosine,
            sine,
            len(frequencies.inverse),
            frequencies.interleaved,
        )
        group, *offsets = self.pool.layer(layer.index)
        layout = (self.pool.block, *offsets)
        words = cache_words(layout, self.pool.dtype, shape.head_dim, layer.window, self.builder.floats)
        tables = memory.tables
        self.builder.attention(heads, words, self.pool.dtype, tables.rows[group], tables.runs[group], tables.count)

    def _feed_forward(self, layer: LayerWeights) -> None:
        shape, memory = self.weights.shape, self.memory
        kind = step.GELU if shape.activation == "gelu_tanh" else step.SILU
        gate = self._piece(layer.widen[0], memory.wide)
        if len(layer.widen) == 1:
            after = After(kind, gate, shape.feed_forward // 16)
        else:
            after = After(kind, self._piece(layer.widen[1], memory.wide.at(shape.feed_forward)))
        norm = Before(step.ADD, _vector(layer.mlp_norm), _vector(layer.attention_post_norm))
        self.builder.linear([gate], memory.added, norm, after)
        self.builder.linear([self._piece(layer.narrow, memory.added)], memory.wide, Before(step.PLAIN))


def kernel_weight(linear: Any) -> Packed | FloatRows:
    """The weight of a bound linear; one without a row kernel is our own mistake, as the ladder asks before."""
    state = linear.state
    if isinstance(state, Packed):
        return state
    encoded = state.encoded  # as it is stored
    assert stored_as(encoded.format.name), f"{encoded.format.name} has no row kernel"
    return FloatRows(encoded.format.name, encoded.shape, encoded.parts["data"])


def _states(weights: LayerStack) -> list[Any]:
    linears: list[Any] = [each.linear for each, _ in weights.linears]
    return [linear.state for linear in linears]


def _vector(values: Floats | None) -> Floats | None:
    return None if values is None else filled(values)


RUNG = Step()
