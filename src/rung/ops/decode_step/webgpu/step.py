"""Whole tokens on a GPU through WebGPU: five kernels a layer, one command buffer for up to 64 rows.

In float32, or with activations as signed bytes for weights whose codes are integers (``kernels.webgpu.int8.tiles``).
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rung.formats.codec import Floats
from rung.kernels.webgpu.draw import PROCESSOR
from rung.kernels.webgpu.draw import settings as draw_settings
from rung.kernels.webgpu.gpu import Dispatch
from rung.kernels.webgpu.info import (
    INFO,
    MOST_AHEAD,
    MOST_LOGITS,
    MOST_ROWS,
    POSITION,
    SELECTED,
    SHARED_ROWS,
    TABLE,
    TOKEN,
)
from rung.ops.decode_step.parts import Adapter, Cache, Pool, SequenceRows
from rung.ops.decode_step.webgpu.program import SIZES, State
from rung.ops.decode_step.weights import LayerStack, Weights
from rung.ops.token_choice import Row as Settings

#: Positions of a block of the cache.
BLOCK = 64
#: Rows that take less time 16 at a time than 64 at once.
_FEW = 3 * SHARED_ROWS


class Row(NamedTuple):
    """A row of a batch: the number of its sequence, its token and position."""

    sequence: int
    token: int
    position: int
    wants_logits: bool
    state: int  # of the hidden states that its sequence wants, -1 for none


class Step:
    """See ``rung.ops.decode_step``. ``integers``: activations are signed bytes."""

    block = BLOCK

    def __init__(self, integers: bool) -> None:
        self._integers = integers

    def prepare(self, weights: LayerStack, pool: Pool, *, threads: int) -> State:
        """Join weights that are computed together, and make the buffers between kernels."""
        return State(weights, pool, self._integers)

    def same_bytes(self, state: State) -> bool:
        """Return False: a row alone is added up in another order than several."""
        return False

    def rows_without_torch(self, state: State) -> int | None:
        """Return None: nothing here knows torch."""
        return None

    def look_ahead(self, state: State) -> int:
        """Return 16, or 1 where the CPU looks rows of the embedding up."""
        return MOST_AHEAD if state.embed else 1

    def choose(self, state: State, rows: SequenceRows, settings: Sequence[Settings]) -> list[int]:
        """Return the next tokens, computed in one command buffer, up to the first that the processor has to draw."""
        count, first, vocabulary = len(settings), settings[0], state.shape.vocabulary
        ahead = [Row(0, rows.tokens[0], rows.start + at, True, -1) for at in range(count)]
        state.gpu.write(state.info, 0, _info(state, ahead[:1], [0], [0]))
        _write_tables(state, [rows], ahead, [0])
        top_k = first.top_k if first.top_k < vocabulary else 0
        if first.inverse:
            bits = [each.random for each in settings]
            state.gpu.write(state.settings, 0, draw_settings(first.inverse, top_k, first.top_p, first.min_p, bits))
        kernels = state.choices(bool(first.inverse), top_k > 0 or first.top_p < 1 or first.min_p > 0)
        program, last = state.program(rows.adapter), ahead[-1].position
        token = [*_embed(state, ahead[:1]), *program.layers(1, True, last), *program.head(1), *kernels]
        state.gpu.run(token * count)
        found = state.gpu.read(state.chosen, 0, 4 * count).view(np.uint32).tolist()
        sure = found[: found.index(PROCESSOR)] if PROCESSOR in found else found
        return [token if token < vocabulary else -1 for token in sure]

    def apply(self, state: State, batch: Sequence[SequenceRows]) -> Floats:
        """Return logits [outputs, vocabulary] f32."""
        return self._logits(state, batch, None)

    def through(self, state: State, batch: Sequence[SequenceRows], hidden: Floats) -> Floats:
        """Return hidden states [rows, hidden] behind the layers that there are."""
        alone, found = [each._replace(logits=0, states=None) for each in batch], np.empty_like(hidden)
        for first, adapter, rows in _passes(alone):
            _layers(state, alone, rows, adapter, hidden[first : first + len(rows)])
            found[first : first + len(rows)] = _hidden(state, len(rows))
        return found

    def finish(self, state: State, batch: Sequence[SequenceRows], hidden: Floats) -> Floats:
        """Return the requested logits [outputs, vocabulary] of hidden states before the layers that there are."""
        return self._logits(state, batch, hidden)

    def _logits(self, state: State, batch: Sequence[SequenceRows], hidden: Floats | None) -> Floats:
        found = [np.empty((0, state.shape.vocabulary), np.float32)]
        for first, adapter, rows in _passes(batch):
            before = None if hidden is None else hidden[first : first + len(rows)]
            logits = _pass(state, batch, rows, adapter, before)
            if logits is not None:
                found.append(logits)
        return np.concatenate(found)


def _passes(batch: Sequence[SequenceRows]) -> Iterator[tuple[int, Adapter | None, list[Row]]]:
    """Yield rows that are computed together, with the number of the first: those that follow each other, with one
    adapter, up to 64 of which 16 want logits; 16 at a time where 64 would be too few."""
    first = 0
    for adapter, rows in _alike(batch):
        while rows:
            wanting = itertools.accumulate(row.wants_logits for row in rows)
            most = sum(count <= MOST_LOGITS for count in itertools.islice(wanting, MOST_ROWS))
            most = most if most > _FEW else min(most, SHARED_ROWS)
            yield first, adapter, rows[:most]
            first, rows = first + most, rows[most:]


def _alike(batch: Sequence[SequenceRows]) -> Iterator[tuple[Adapter | None, list[Row]]]:
    """Yield rows that follow each other and have one adapter."""
    rows: list[Row] = []
    adapter: Adapter | None = None
    for number, each in enumerate(batch):
        count = len(each.tokens)
        states = 0 if each.states is None else len(each.states)
        for at, token in enumerate(each.tokens):
            if rows and each.adapter is not adapter:
                yield adapter, rows
                rows = []
            adapter = each.adapter
            rows.append(Row(number, token, each.start + at, at >= count - each.logits, max(at - count + states, -1)))
    if rows:
        yield adapter, rows


def _layers(
    state: State,
    batch: Sequence[SequenceRows],
    rows: list[Row],
    adapter: Adapter | None,
    hidden: Floats | None,
    behind: Sequence[Dispatch] = (),
) -> None:
    """Compute rows through the layers, of their tokens or of ``hidden`` states before them, and then other kernels."""
    device, slots = state.gpu, _slots(rows)
    selected = [number for number, row in enumerate(rows) if row.wants_logits]
    device.write(state.info, 0, _info(state, rows, slots, selected))
    _write_tables(state, batch, rows, slots)
    if hidden is not None:
        device.write(state.hidden[0], 0, hidden)
    embedding = _embed(state, rows) if hidden is None else []
    last = max(row.position for row in rows)
    layers = state.program(adapter).layers(_size(len(rows)), len(slots) == len(rows), last)
    device.run([*embedding, *layers, *behind], len(rows))


def _hidden(state: State, count: int) -> Floats:
    """Return hidden states [count, hidden] behind the last layer."""
    size = 4 * count * state.shape.hidden

    def read(buffer: Any) -> Floats:
        return state.gpu.read(buffer, 0, size).view(np.float32).reshape(count, -1)

    hidden = read(state.hidden[state.sums % 2])
    if state.last_norm is None:
        return hidden
    added = read(state.added)
    mean = np.square(added).mean(axis=1, keepdims=True) + np.float32(state.shape.norm_epsilon)
    summed: Floats = hidden + added / np.sqrt(mean) * state.last_norm
    return summed


def _pass(
    state: State, batch: Sequence[SequenceRows], rows: list[Row], adapter: Adapter | None, hidden: Floats | None
) -> Floats | None:
    """Compute rows; return the logits of those that want them, or None."""
    device, shape, program = state.gpu, state.shape, state.program(adapter)
    wanting = sum(row.wants_logits for row in rows)
    states = [number for number, row in enumerate(rows) if row.state >= 0]
    behind = [*program.head(_size(wanting))] if wanting else []
    if states:
        device.write(state.other_info, 0, _info(state, rows, _slots(rows), states))
        behind.append(state.norm_kernel(len(states)))
    _layers(state, batch, rows, adapter, hidden, behind)
    if states:
        normed = device.read(state.normed, 0, 4 * len(states) * shape.hidden).view(np.float32).reshape(len(states), -1)
        for number, values in zip(states, normed, strict=True):
            target = batch[rows[number].sequence].states
            assert target is not None, "only rows that have a place for them ask for states"
            target[rows[number].state] = values
    if not wanting:
        return None
    size = 4 * wanting * shape.vocabulary
    return device.read(state.logits, 0, size).view(np.float32).reshape(wanting, -1)


def _slots(rows: Sequence[Row]) -> list[int]:
    """Return the numbers of the sequences of rows, each once."""
    return list(dict.fromkeys(row.sequence for row in rows))


def _info(state: State, rows: Sequence[Row], slots: Sequence[int], selected: Sequence[int]) -> npt.NDArray[np.uint32]:
    """Return the buffer of numbers that kernels read, see ``rung.kernels.webgpu.info``."""
    info = np.zeros(INFO, np.uint32)
    info[POSITION : POSITION + len(rows)] = [row.position for row in rows]
    info[TOKEN : TOKEN + len(rows)] = [row.token for row in rows]
    info[TABLE : TABLE + len(rows)] = [slots.index(row.sequence) * state.per_sequence for row in rows]
    info[SELECTED : SELECTED + len(selected)] = selected
    return info


def _write_tables(state: State, batch: Sequence[SequenceRows], rows: Sequence[Row], slots: Sequence[int]) -> None:
    """Write the block tables of sequences, and the rotations of rows."""
    last = {row.sequence: row.position for row in rows}
    for group, buffer in state.tables.items():
        for slot, number in enumerate(slots):
            table = _table(batch[number].cache, group, last[number] // state.pool.block + 1)
            state.gpu.write(buffer, 4 * slot * state.per_sequence, table.astype(np.uint32))
    positions = np.array([row.position for row in rows], np.int64)
    for frequencies, buffer in zip(state.weights.frequencies, state.turns, strict=True):
        state.gpu.write(buffer, 0, np.concatenate(frequencies.table(positions), axis=1))


def _embed(state: State, rows: Sequence[Row]) -> list[Dispatch]:
    """Return the kernels of the embedding, or write its rows, which the CPU looks up."""
    if state.embed:
        return state.embed
    assert isinstance(state.weights, Weights), "layers alone have no embedding"
    found = state.weights.look_up.rows([row.token for row in rows])
    state.gpu.write(state.hidden[0], 0, found * np.float32(state.shape.embedding_scale))
    return []


def _size(rows: int) -> int:
    """Return the rows of the program that so many rows need."""
    return next(size for size in SIZES if size >= rows)


def _table(cache: Cache, group: int, count: int) -> npt.NDArray[np.int64]:
    """Return the first entries of a block table."""
    return np.ctypeslib.as_array((ctypes.c_int64 * count).from_address(cache.table(group)))


FLOATS, INTEGERS = Step(integers=False), Step(integers=True)
