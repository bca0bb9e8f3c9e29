"""Builds the program of one token: areas of memory, argument words, and the order of the functions of ``step``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rung.kernels.cpu import chunks, nodes
from rung.kernels.cpu.decode import attention, step
from rung.kernels.cpu.decode.step import FILL_WORDS, SEGMENT_WORDS, AttentionWord, LinearWord, SegmentWord
from rung.kernels.cpu.gemm import activations, product
from rung.kernels.cpu.gemm.float_rows import FloatRows, multiply_one
from rung.kernels.cpu.gemm.low_rank import LowRankRows, fill_sums, up_rows
from rung.kernels.cpu.gemm.microkernel import panel_unit_bytes
from rung.kernels.cpu.pack.layouts import ROWS, UNIT
from rung.kernels.cpu.pack.mapped import multiply_mapped
from rung.kernels.cpu.pack.packing import Packed
from rung.kernels.cpu.thread_pool import Program

Floats = npt.NDArray[np.float32]
_LINE = 64
#: The kind of panel that holds the activations as they are, for weights that are stored as floats.
_FLOATS = (0, 0)
#: The kind of panel that mapped weights are packed into, and its bytes.
_SCRATCH, _SCRATCH_BYTES = (-1, -1), 64 << 10
#: Kinds of panels: (offset, parts) of quantized activations, or the sums of an adapter, which each thread makes for
#: itself: they take less time than a barrier.
_Panel = tuple[int, int] | LowRankRows


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
    made = floats(values.size)
    made[: values.size] = values.reshape(-1)
    return made


@dataclass(frozen=True)
class Piece:
    """A weight of a linear with its bias and what an adapter adds, and where its result goes (an address)."""

    weight: Packed | FloatRows
    bias: Floats | None
    result: int
    low_rank: LowRankRows | None = None


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
        """As ``step.attention`` reads them."""
        return np.array([self.epsilon, self.scale, self.softcap], dtype=np.float32)


@dataclass
class Builder:
    """Collects the functions of a token, then gives their program.

    ``hidden`` and ``context`` are the model's; ``position`` int64 [1] is read by attention in each run.
    """

    hidden: int
    context: int
    threads: int
    heads: HeadShape
    position: npt.NDArray[np.int64]
    _steps: list[tuple[int, npt.NDArray[np.int64]]] = field(default_factory=list)
    _keep: list[Any] = field(default_factory=list)
    _area: int = 0  # bytes of a thread's area behind the hidden state and its norm

    def __post_init__(self) -> None:
        self._floats = self.hold(self.heads.floats)

    def hold(self, value: Any) -> Any:
        """Keeps alive what an address in the program points to."""
        self._keep.append(value)
        return value

    def buffer(self, count: int) -> Floats:
        """Zeros that live as long as the program."""
        made: Floats = self.hold(floats(count))
        return made

    def linear(self, pieces: Sequence[Piece], source: int, before: Before, after: After = After()) -> None:
        """Some weights times the same activations; see ``step.LinearWord``."""
        columns = pieces[0].weight.shape[1]
        panels = self._panels([*pieces, after.up] if after.up else pieces)
        segments = np.zeros((len(pieces), SEGMENT_WORDS), dtype=np.int64)
        for segment, piece in zip(segments, pieces, strict=True):
            self._segment(segment, piece, panels, after)
        near = nodes.table()
        rows = [ROWS * after.up_group or piece.weight.shape[0] for piece in pieces]
        table = chunks.cut([-(-count // ROWS) for count in rows], self.threads, near is not None)
        table[:, 0] = address(segments) + table[:, 0] * segments.strides[0]
        fills = self._fills(panels, columns)
        self._keep += [segments, fills, pieces, before, after, table, near]
        words = np.zeros(len(LinearWord), dtype=np.int64)
        words[LinearWord.COLUMNS], words[LinearWord.SOURCE] = columns, source
        words[LinearWord.BEFORE], words[LinearWord.NORM] = before.kind, address(before.norm)
        words[LinearWord.POST_NORM], words[LinearWord.EPSILON] = address(before.post_norm), address(self._floats)
        words[LinearWord.FILLS], words[LinearWord.FILL_COUNT] = address(fills), len(fills)
        words[LinearWord.TABLE], words[LinearWord.CHUNKS] = address(table), len(table)
        words[LinearWord.NODES] = near.address if near else 0
        self._steps.append((step.linear.address, words))

    def _panels(self, pieces: Sequence[Piece]) -> dict[_Panel, int]:
        """The offset in the area of each kind of panel that some pieces want."""
        at = 8 * self.hidden
        panels: dict[_Panel, int] = {}
        for piece in pieces:
            for kind, size in _wanted(piece):
                if kind not in panels:
                    panels[kind] = at
                    at += -(-size // _LINE) * _LINE + _LINE
        self._area = max(self._area, at - 8 * self.hidden)
        return panels

    def _fills(self, panels: dict[_Panel, int], columns: int) -> npt.NDArray[np.int64]:
        rows = [_fill(kind, at, columns) for kind, at in panels.items() if kind != _SCRATCH]
        return np.array(rows, dtype=np.int64).reshape(-1, FILL_WORDS)

    def _segment(self, segment: npt.NDArray[np.int64], piece: Piece, panels: dict[_Panel, int], after: After) -> None:
        segment[SegmentWord.PANEL] = panels[_panel(piece.weight)]
        segment[SegmentWord.RESULT], segment[SegmentWord.BIAS] = piece.result, address(piece.bias)
        segment[SegmentWord.AFTER], segment[SegmentWord.SOFTCAP] = after.kind, address(after.softcap)
        calls = segment[len(SegmentWord) :].reshape(4, 16)
        segment[SegmentWord.KERNEL], calls[0] = self._call(piece, panels)
        if piece.low_rank is not None:
            segment[SegmentWord.LOW_RANK_PANEL] = panels[piece.low_rank]
            segment[SegmentWord.LOW_RANK], calls[2] = _low_rank_call(piece.low_rank, piece.result)
        if after.up is not None:
            segment[SegmentWord.UP_RESULT], segment[SegmentWord.UP_BIAS] = after.up.result, address(after.up.bias)
            segment[SegmentWord.UP_GROUP] = after.up_group
            segment[SegmentWord.UP_PANEL] = panels[_panel(after.up.weight)]
            segment[SegmentWord.UP_KERNEL], calls[1] = self._call(after.up, panels)
            if after.up.low_rank is not None:
                segment[SegmentWord.UP_LOW_RANK_PANEL] = panels[after.up.low_rank]
                segment[SegmentWord.UP_LOW_RANK], calls[3] = _low_rank_call(after.up.low_rank, after.up.result)

    def _call(self, piece: Piece, panels: dict[_Panel, int]) -> tuple[int, list[int]]:
        """The kernel of a weight for one row of activations, and its 16 arguments."""
        weight = piece.weight
        if isinstance(weight, FloatRows):
            rows, columns = weight.shape
            given = [weight.data.ctypes.data, weight.data.strides[0], 0, piece.result, columns, rows]
            return multiply_one(weight.format).address, given + [0] * 10
        if weight.mapped is None:
            return _packed_call(weight, piece.result)
        multiply = product.multiply(weight.layout.name, 1).address
        words = self.hold(weight.mapped.with_kernel(multiply, weight.table_pointer, _panel_block(weight)))
        away = panels[_SCRATCH] - panels[_panel(weight)]
        given = [address(words), weight.mapped.group_bytes, 0, piece.result, weight.shape[0], away]
        return multiply_mapped.address, given + [0] * 10

    def attention(
        self,
        query: int,
        out: int,
        norms: tuple[Floats | None, Floats | None],
        rotation: tuple[Floats, Floats, int, bool],
        cache: tuple[int, int, int, int, str],
        window: int | None,
    ) -> None:
        """Attention of one token; see ``step.AttentionWord``.

        ``norms`` are those of q and k; ``rotation`` is cos, sin, how many pairs, interleaved; ``cache`` the addresses
        of keys and values, the bytes between heads and between rows, and the dtype.
        """
        shape, (cosine, sine, half, interleaved) = self.heads, rotation
        keys, values, head_stride, row_stride, dtype = cache
        parts = share(shape.heads, shape.kv_heads, self.threads)
        count = shape.heads // shape.kv_heads // parts
        self._area = max(self._area, 4 * (shape.size + count * attention.padded(self.context)))
        self._keep += [norms, rotation]
        words = np.zeros(len(AttentionWord), dtype=np.int64)
        words[AttentionWord.POSITION] = address(self.position)
        words[AttentionWord.HEADS : AttentionWord.PARTS + 1] = shape.heads, shape.kv_heads, shape.size, parts
        words[AttentionWord.QUERY], words[AttentionWord.OUT] = query, out
        words[AttentionWord.Q_NORM], words[AttentionWord.K_NORM] = (address(norm) for norm in norms)
        words[AttentionWord.COSINE], words[AttentionWord.SINE] = address(cosine), address(sine)
        words[AttentionWord.HALF], words[AttentionWord.INTERLEAVED] = half, interleaved
        words[AttentionWord.KEYS], words[AttentionWord.VALUES] = keys, values
        words[AttentionWord.HEAD_STRIDE], words[AttentionWord.ROW_STRIDE] = head_stride, row_stride
        words[AttentionWord.WINDOW], words[AttentionWord.FLOATS] = window or 0, address(self._floats)
        words[AttentionWord.ATTEND] = attention.one_query[dtype].address
        self._steps.append((step.attention[dtype].address, words))

    def program(self) -> Program:
        """The program, once every function is in it."""
        size = -(-(8 * self.hidden + self._area) // _LINE) * _LINE + 2 * _LINE
        areas = self.buffer(self.threads * size // 4)
        for function, words in self._steps:
            if function == step.linear.address:
                words[LinearWord.AREA], words[LinearWord.AREA_BYTES] = address(areas), size
            else:
                words[AttentionWord.AREA] = address(areas) + 8 * self.hidden
                words[AttentionWord.AREA_BYTES] = size
        return Program.of(self._steps, *self._keep)


def share(heads: int, kv_heads: int, threads: int) -> int:
    """Into how many parts the query heads of a key head are divided, so that all threads have the same to do."""
    group = heads // kv_heads
    divisors = [parts for parts in range(1, group + 1) if group % parts == 0]
    for parts in divisors:
        if kv_heads * parts % threads == 0 or kv_heads * parts >= 4 * threads:
            return parts
    return divisors[-1]


def _panel(weight: Packed | FloatRows) -> tuple[int, int]:
    """The kind of panel (offset, parts) that a weight is multiplied with."""
    if isinstance(weight, FloatRows):
        return _FLOATS
    assert weight.layout is not None
    return weight.layout.activations


def _wanted(piece: Piece) -> Iterator[tuple[_Panel, int]]:
    """Yield the kinds of panels that a piece wants, with their bytes."""
    kind, columns = _panel(piece.weight), piece.weight.shape[1]
    yield kind, 4 * columns if kind == _FLOATS else columns // UNIT * panel_unit_bytes(1, kind[1])
    if isinstance(piece.weight, Packed) and piece.weight.mapped is not None:
        yield _SCRATCH, _SCRATCH_BYTES
    if piece.low_rank is not None:
        yield piece.low_rank, 4 * piece.low_rank.rank


def _fill(kind: _Panel, at: int, columns: int) -> list[int]:
    """Return the words that fill a panel at the offset ``at``: see ``FILL_WORDS``."""
    if isinstance(kind, LowRankRows):
        down = [0, address(kind.down), kind.down.strides[0], 0, columns, kind.rank, 0, 0, 0]
        return [fill_sums[kind.kind].address, at, *down]
    if kind == _FLOATS:
        return [activations.keep.address, at, 0, 0, 1, 0, 1, 0, 0, 0, columns // ROWS]
    return [activations.quantize("f32").address, at, 0, 0, 1, 0, 1, kind[1], kind[0], 0, columns // UNIT]


def _low_rank_call(low_rank: LowRankRows, result: int) -> tuple[int, list[int]]:
    """Return the kernel that adds an adapter's change to a result, and its 16 arguments."""
    given = [address(low_rank.up), low_rank.factor_address, 0, result, low_rank.rank]
    return up_rows[low_rank.kind].address, given + [0] * 11


def _panel_block(weight: Packed) -> int:
    """Bytes of a panel for a block of the layout, of a single row."""
    return weight.layout.block // UNIT * panel_unit_bytes(1, weight.layout.parts)


def _packed_call(weight: Packed, result: int) -> tuple[int, list[int]]:
    """The kernel of a packed weight, and its 16 arguments."""
    layout = weight.layout
    arguments = {
        "weights": weight.pointer,
        "table": weight.table_pointer,
        "x": 0,
        "y": result,
        "stride": 0,
        "rows": 1,
        "lanes": weight.shape[0],
        "first": 0,
        "last": 0,
        "group_bytes": weight.group_bytes,
        "from_block": 0,
        "to_block": weight.shape[1] // layout.block,
        "row_header": layout.row_header,
        "block_bytes": layout.block_bytes,
        "panel_block": _panel_block(weight),
        "add": 0,
    }
    return product.multiply(layout.name, 1).address, list(arguments.values())
