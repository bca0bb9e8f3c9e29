"""Build the program of some tokens: areas of memory, argument words, and the order of the functions of a decoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rung.kernels.cpu import nodes, target, thread_pool
from rung.kernels.cpu.decode import attention, step
from rung.kernels.cpu.decode.attention import AttendWord
from rung.kernels.cpu.decode.cache_layout import QUAD, CacheWord
from rung.kernels.cpu.decode.rope_and_store import StoreWord, rope_and_store_kv
from rung.kernels.cpu.decode.rows import FILL_WORDS, PrepareWord, prepare_rows
from rung.kernels.cpu.decode.step import CALL_WORDS, SEGMENT_WORDS, AdapterTable, LinearWord, SegmentWord
from rung.kernels.cpu.gemm import product
from rung.kernels.cpu.gemm.float_rows import FloatRows, multiply_one
from rung.kernels.cpu.gemm.microkernel import panel_unit_bytes
from rung.kernels.cpu.pack.layouts import ROWS, UNIT
from rung.kernels.cpu.pack.packing import Packed, multiply_mapped
from rung.kernels.cpu.thread_pool import Program

Floats = npt.NDArray[np.float32]
Words = npt.NDArray[np.int64]
_LINE = 64
#: The kind of panel that holds the activations as they are, for weights that are stored as floats.
_FLOATS = (0, 0)
#: The kind of panel that mapped weights are packed into, and its bytes.
_SCRATCH, _SCRATCH_BYTES = (-1, -1), 64 << 10
#: Kinds of panels: (offset, parts) of quantized activations.
_Kind = tuple[int, int]


def address(array: npt.NDArray[Any] | None) -> int:
    """Where an array begins; 0 for None."""
    return 0 if array is None else int(array.ctypes.data)


def floats(count: int) -> Floats:
    """Zeros: ``count`` float32, rounded up to a whole vector, at an address that 64 divides."""
    raw = np.zeros(count + 2 * ROWS, dtype=np.float32)
    start = -raw.ctypes.data % _LINE // 4
    return raw[start : start + -(-count // ROWS) * ROWS]


def filled(values: npt.NDArray[Any]) -> Floats:
    """A copy of a vector as ``floats`` gives it."""
    result = floats(values.size)
    result[: values.size] = values.reshape(-1)
    return result


@dataclass(frozen=True)
class Rows:
    """Rows of float32 at an address, ``apart`` bytes from each other."""

    address: int
    apart: int

    def at(self, column: int) -> Rows:
        """Return the same rows from a column on."""
        return Rows(self.address + 4 * column, self.apart)


@dataclass(frozen=True)
class Piece:
    """A weight of a linear with its bias, where its result goes, and its number among the weights of the model."""

    weight: Packed | FloatRows
    bias: Floats | None
    result: Rows
    number: int


@dataclass(frozen=True)
class Before:
    """Hold what a linear does first: ``kind`` of ``step`` (PLAIN, START, ADD), with which norms."""

    kind: int
    norm: Floats | None = None
    post_norm: Floats | None = None


@dataclass(frozen=True)
class After:
    """Hold what a linear does to its result: ``kind`` of ``step`` (NOTHING, SILU, GELU, CAP).

    For a gate: ``up`` is the piece beside it (the gate itself when both are one weight) and ``up_group`` the first
    group of its rows.
    """

    kind: int = step.NOTHING
    up: Piece | None = None
    up_group: int = 0
    softcap: Floats | None = None


@dataclass(frozen=True)
class HeadShape:
    """The attention of a model: heads, key heads, their size, and scale, softcap (0: none) and norms' epsilon."""

    heads: int
    kv_heads: int
    size: int
    scale: float
    softcap: float
    epsilon: float

    @property
    def floats(self) -> Floats:
        """As the kernels read them."""
        return np.array([self.epsilon, self.scale, self.softcap], dtype=np.float32)


@dataclass(frozen=True)
class Heads:
    """Queries, keys and values of one layer, where they lie, and how they are turned."""

    q: Rows
    k: Rows
    v: Rows
    out: Rows
    norms: tuple[Floats | None, Floats | None]
    cosine: Floats
    sine: Floats
    half: int
    interleaved: bool


def cache_words(layout: tuple[int, ...], dtype: str, size: int, window: int | None, floats: Floats) -> Words:
    """Return ``CacheWord`` of a layer; ``layout`` has the first five of them."""
    words = np.zeros(len(CacheWord), np.int64)
    words[: len(layout)] = layout
    words[CacheWord.SIZE], words[CacheWord.WINDOW] = size, window or 0
    words[CacheWord.FLOATS], words[CacheWord.ATTEND] = address(floats), attention.attend_rows[dtype].address
    if dtype in ("q8_0", "q5_1", "q4_0"):
        words[CacheWord.QUANTIZE] = product.quantize("f32").address
        words[CacheWord.TILE] = min(QUAD, target.level().tile)
    return words


@dataclass
class Builder:
    """Collects the functions that compute ``rows`` tokens, then gives their program.

    ``hidden`` is the model's. ``states`` and ``normed`` are rows of the hidden state and its norm, which threads share
    where there are several rows, or ``shared`` is set; ``scores`` those of each thread's attention. ``adapters`` has
    what is added to weights.
    """

    rows: int
    hidden: int
    threads: int
    heads: HeadShape
    states: Rows
    normed: Rows
    scores: Floats
    adapters: AdapterTable
    shared: bool = False
    _steps: list[tuple[int, Words]] = field(default_factory=list)
    _keep: list[Any] = field(default_factory=list)
    _area: int = 0  # bytes of an area behind the hidden state and its norm

    def __post_init__(self) -> None:
        self.floats = self.hold(self.heads.floats)
        self.shared = self.rows > 1

    def hold(self, value: Any) -> Any:
        """Keeps alive what an address in the program points to."""
        self._keep.append(value)
        return value

    def linear(self, pieces: Sequence[Piece], source: Rows, before: Before, after: After = After()) -> None:
        """Some weights times the same activations; see ``step.LinearWord``."""
        columns = pieces[0].weight.shape[1]
        panels = _Panels([*pieces, after.up] if after.up else pieces, self.rows, 8 * self.hidden)
        self._area = max(self._area, panels.end - 8 * self.hidden)
        segments = np.zeros((len(pieces), SEGMENT_WORDS), dtype=np.int64)
        for segment, piece in zip(segments, pieces, strict=True):
            self._segment(segment, piece, panels, after, pieces[0].number)
        near = nodes.table()
        rows = [ROWS * after.up_group or piece.weight.shape[0] for piece in pieces]
        table = thread_pool.cut(tuple(-(-count // ROWS) for count in rows), self.threads, near is not None).copy()
        table[:, 0] = address(segments) + table[:, 0] * segments.strides[0]
        fills = panels.fills(columns)
        self._keep += [segments, fills, pieces, before, after, table, near]
        words = np.zeros(len(LinearWord), dtype=np.int64)
        words[LinearWord.TABLE], words[LinearWord.CHUNKS] = address(table), len(table)
        words[LinearWord.NODES] = near.address if near else 0
        self._changes(words, [*pieces, after.up] if after.up else pieces)
        if self.shared:
            x = source if before.kind == step.PLAIN else self.normed
            words[LinearWord.SOURCE], words[LinearWord.SOURCE_APART] = x.address, x.apart
            self._prepare(source, columns, before, fills)
        else:
            words[LinearWord.COLUMNS], words[LinearWord.SOURCE] = columns, source.address
            words[LinearWord.BEFORE], words[LinearWord.NORM] = before.kind, address(before.norm)
            words[LinearWord.POST_NORM], words[LinearWord.EPSILON] = address(before.post_norm), address(self.floats)
            words[LinearWord.FILLS], words[LinearWord.FILL_COUNT] = address(fills), fills.shape[1]
        self._steps.append((step.linear.address, words))

    def _changes(self, words: Words, pieces: Sequence[Piece]) -> None:
        """Where a linear finds what adapters change."""
        first, table = pieces[0].number, self.adapters
        words[LinearWord.ADAPTERS], words[LinearWord.WEIGHTS] = address(table.words), pieces[-1].number - first + 1
        words[LinearWord.CHANGES], words[LinearWord.SUMS] = table.changes(first), table.counters(first)

    def _prepare(self, source: Rows, columns: int, before: Before, fills: Words) -> None:
        """Hidden states, norms and panels of several rows."""
        words = np.zeros(len(PrepareWord), np.int64)
        words[PrepareWord.ROWS], words[PrepareWord.COLUMNS] = self.rows, columns
        words[PrepareWord.HIDDEN], words[PrepareWord.NORMED] = self.states.address, self.normed.address
        words[PrepareWord.SOURCE], words[PrepareWord.APART] = source.address, source.apart
        words[PrepareWord.BEFORE], words[PrepareWord.NORM] = before.kind, address(before.norm)
        words[PrepareWord.POST_NORM], words[PrepareWord.EPSILON] = address(before.post_norm), address(self.floats)
        words[PrepareWord.FILLS], words[PrepareWord.FILL_COUNT] = address(fills), fills.shape[1]
        self._steps.append((prepare_rows.address, words))

    def _segment(self, segment: Words, piece: Piece, panels: _Panels, after: After, first: int) -> None:
        """Write a weight of a linear whose first weight has the number ``first``."""
        segment[SegmentWord.ROWS] = self.rows
        segment[SegmentWord.RESULT], segment[SegmentWord.APART] = piece.result.address, piece.result.apart
        segment[SegmentWord.BIAS], segment[SegmentWord.NUMBER] = address(piece.bias), piece.number - first
        segment[SegmentWord.AFTER], segment[SegmentWord.SOFTCAP] = after.kind, address(after.softcap)
        calls = self.hold(panels.calls(piece, self._keep))
        segment[SegmentWord.CALLS], segment[SegmentWord.COUNT] = address(calls), len(calls)
        if after.up is not None:
            segment[SegmentWord.UP_RESULT], segment[SegmentWord.UP_BIAS] = (
                after.up.result.address,
                address(after.up.bias),
            )
            segment[SegmentWord.UP_GROUP], segment[SegmentWord.UP_NUMBER] = after.up_group, after.up.number - first
            calls = self.hold(panels.calls(after.up, self._keep))
            segment[SegmentWord.UP_CALLS], segment[SegmentWord.UP_COUNT] = address(calls), len(calls)

    def attention(self, heads: Heads, cache: Words, dtype: str, rows: Words, runs: Words, count: Words) -> None:
        """Attention of the tokens; ``cache`` are its words, the rest are the tables that each run of the program
        reads."""
        shape = self.heads
        store = np.zeros(len(StoreWord), np.int64)
        group = shape.heads // shape.kv_heads
        store[StoreWord.TOKENS : StoreWord.Q] = self.rows, shape.kv_heads, group
        store[StoreWord.Q : StoreWord.Q_APART] = heads.q.address, heads.k.address, heads.v.address
        store[StoreWord.Q_APART : StoreWord.Q_NORM] = heads.q.apart, heads.k.apart, heads.v.apart
        store[StoreWord.Q_NORM], store[StoreWord.K_NORM] = (address(norm) for norm in heads.norms)
        store[StoreWord.COSINE], store[StoreWord.SINE] = address(heads.cosine), address(heads.sine)
        store[StoreWord.HALF], store[StoreWord.INTERLEAVED] = heads.half, heads.interleaved
        store[StoreWord.ROWS], store[StoreWord.CACHE] = address(rows), address(cache)
        words = np.zeros(len(AttendWord), np.int64)
        words[AttendWord.KV_HEADS], words[AttendWord.GROUP] = shape.kv_heads, group
        words[AttendWord.FEW] = attention.heads_at_once(shape.kv_heads, group, self.rows, self.threads)
        words[AttendWord.QUERY], words[AttendWord.QUERY_APART] = heads.q.address, heads.q.apart
        words[AttendWord.OUT], words[AttendWord.OUT_APART] = heads.out.address, heads.out.apart
        words[AttendWord.RUNS], words[AttendWord.COUNT] = address(runs), address(count)
        words[AttendWord.CACHE] = address(cache)
        self._keep += [heads, cache, rows, runs, count, self.scores]
        self._steps.append((rope_and_store_kv[dtype].address, store))
        self._steps.append((attention.attend.address, words))

    def program(self) -> Program:
        """The program, once every function is in it."""
        size = -(-(8 * self.hidden + self._area) // _LINE) * _LINE + 2 * _LINE
        areas = self.hold(floats((1 if self.shared else self.threads) * size // 4))
        for function, words in self._steps:
            if function == step.linear.address:
                words[LinearWord.AREA], words[LinearWord.AREA_BYTES] = address(areas), 0 if self.shared else size
            elif function == prepare_rows.address:
                words[PrepareWord.PANELS] = address(areas)
            elif function == attention.attend.address:
                words[AttendWord.SCORES], words[AttendWord.SCORE_BYTES] = address(self.scores), self.scores.strides[0]
        return Program.of(self._steps, *self._keep)


def cut_rows(rows: int) -> Iterator[tuple[int, int, int]]:
    """Yield (first row, rows, rows of a tile) of the panels that so many rows are multiplied in.

    Whole tiles of the level, then the smallest power of two that holds the rest.
    """
    most, first = target.level().tile, 0
    while first < rows:
        count = min(most, rows - first)
        yield first, count, product.tile_of(count)
        first += count


class _Panels:
    """The panels of a linear in an area: for each kind of activations that its weights want, one a tile of rows."""

    def __init__(self, pieces: Sequence[Piece], rows: int, first: int) -> None:
        self._cuts = list(cut_rows(rows))
        self._rows, self.end = rows, first
        self._offsets: dict[_Kind, list[int]] = {}
        for piece in pieces:
            for kind, size in self._panel_kinds(piece):
                if kind not in self._offsets:
                    step = -(-size // _LINE) * _LINE + _LINE
                    count = 1 if kind == _SCRATCH else len(self._cuts) if _is_quantized(kind) else rows
                    self._offsets[kind] = [self.end + step * number for number in range(count)]
                    self.end += step * count

    def _panel_kinds(self, piece: Piece) -> Iterator[tuple[_Kind, int]]:
        """Yield the kinds of panels that a piece wants, with the bytes of the largest."""
        kind, columns = _kind(piece.weight), piece.weight.shape[1]
        tile = max(tile for _, _, tile in self._cuts)
        yield kind, 4 * columns if kind == _FLOATS else columns // UNIT * panel_unit_bytes(tile, kind[1])
        if isinstance(piece.weight, Packed) and piece.weight.mapped is not None:
            yield _SCRATCH, _SCRATCH_BYTES

    def fills(self, columns: int) -> Words:
        """Return the words that fill the panels, [rows, kinds, ``FILL_WORDS``]."""
        kinds = [kind for kind in self._offsets if kind != _SCRATCH]
        words = np.zeros((self._rows, len(kinds), FILL_WORDS), np.int64)
        for cut, (first, count, tile) in enumerate(self._cuts):
            for row in range(first, first + count):
                for number, kind in enumerate(kinds):
                    panel = self._offsets[kind][cut if _is_quantized(kind) else row]
                    words[row, number] = _fill(kind, panel, columns, tile, row - first)
        return words

    def calls(self, piece: Piece, keep: list[Any]) -> Words:
        """Return the calls that make the result of a piece, [calls, ``CALL_WORDS``]."""
        weight, found = piece.weight, []
        panels = self._offsets[_kind(weight)]
        if isinstance(weight, FloatRows):
            found = [[*_float_call(weight, self._result(piece, row), panels[row])] for row in range(self._rows)]
        elif weight.mapped is not None:
            assert self._rows == 1, "mapped weights are packed into the memory of a thread, for one row"
            multiply = product.multiply(weight.layout.name, 1).address
            words = weight.mapped.with_kernel(multiply, weight.table_pointer, _panel_block(weight, 1))
            keep.append(words)
            away = self._offsets[_SCRATCH][0] - panels[0]
            arguments = [address(words), weight.mapped.group_bytes, 0, piece.result.address, weight.shape[0], away]
            found = [[multiply_mapped.address, panels[0], *arguments, *[0] * 10]]
        else:
            for panel, (first, count, tile) in zip(panels, self._cuts, strict=True):
                result = Rows(self._result(piece, first), piece.result.apart)
                found.append([*_packed_call(weight, result, count, tile, panel)])
        return np.array(found, np.int64).reshape(-1, CALL_WORDS)

    @staticmethod
    def _result(piece: Piece, row: int) -> int:
        return piece.result.address + piece.result.apart * row


def _is_quantized(kind: _Kind) -> bool:
    return kind != _FLOATS


def _kind(weight: Packed | FloatRows) -> tuple[int, int]:
    """The kind of panel (offset, parts) that a weight is multiplied with."""
    if isinstance(weight, FloatRows):
        return _FLOATS
    assert weight.layout is not None
    return weight.layout.activations


def _fill(kind: _Kind, panel: int, columns: int, tile: int, at: int) -> list[int]:
    """Return the words that fill row ``at`` of a panel at that offset: see ``FILL_WORDS``."""
    if kind == _FLOATS:
        return [product.keep.address, panel, 0, 0, 1, 0, 1, 0, 0, 0, columns // ROWS, 0]
    words = [0, 0, 1, 0, tile, kind[1], kind[0], 0, columns // UNIT, at]
    return [product.quantize("f32").address, panel, *words]


def _float_call(weight: FloatRows, result: int, panel: int) -> list[int]:
    """Return the call of a weight that is stored as floats, for one row."""
    rows, columns = weight.shape
    arguments = [weight.data.ctypes.data, weight.data.strides[0], 0, result, columns, rows]
    return [multiply_one(weight.format).address, panel, *arguments, *[0] * 10]


def _panel_block(weight: Packed, tile: int) -> int:
    """Bytes of a panel for a block of the layout."""
    return weight.layout.block // UNIT * panel_unit_bytes(tile, weight.layout.parts)


def _packed_call(weight: Packed, result: Rows, rows: int, tile: int, panel: int) -> list[int]:
    """Return the call of a packed weight for the rows of a panel."""
    layout = weight.layout
    arguments = {
        "weights": weight.pointer,
        "table": weight.table_pointer,
        "x": 0,
        "y": result.address,
        "stride": result.apart,
        "rows": rows,
        "lanes": weight.shape[0],
        "first": 0,
        "last": 0,
        "group_bytes": weight.group_bytes,
        "from_block": 0,
        "to_block": weight.shape[1] // layout.block,
        "row_header": layout.row_header,
        "block_bytes": layout.block_bytes,
        "panel_block": _panel_block(weight, tile),
        "add": 0,
    }
    return [product.multiply(layout.name, tile).address, panel, *arguments.values()]
