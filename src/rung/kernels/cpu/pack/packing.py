"""Weights in the layouts of ``layouts`` ("r16"): packing them, and the exact way back.

Nothing here needs torch, and the compiled part holds no lock of the interpreter: ``start`` and ``fill`` may be called
from threads of their own, for different rows of one weight too.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from rung import formats
from rung.core.pages import huge_advice, release
from rung.core.types import Format
from rung.formats import Encoded
from rung.formats.families import codebook4
from rung.formats.families.rowwise import INVERSE
from rung.kernels.cpu import nodes
from rung.kernels.cpu.compiled import OPTIONS, Kernel, kernel
from rung.kernels.cpu.pack import grouped
from rung.kernels.cpu.pack.codebooks import CODEBOOKS, grid_codes
from rung.kernels.cpu.pack.generic import PLAIN
from rung.kernels.cpu.pack.grids import GRIDS
from rung.kernels.cpu.pack.layouts import HUGE, ROWS, UNIT, Layout, is_generic, layout_of
from rung.kernels.cpu.pack.native import NATIVE, each_row
from rung.kernels.isa.generic import read_int
from rung.kernels.isa.scalar import call_address

#: Columns that are packed at once: two groups of them then take at most 40 kB.
_COLUMNS = 1024
#: Groups of rows that a thread packs at once.
AT_ONCE = 2
#: Offsets in bytes of the words of a weight: the address of its first row, bytes of a row, rows, and the kernel that
#: packs a row with its last argument.
_STORED, _ROW_BYTES, _COUNT, _MOVE, _EXTRA = range(0, 40, 8)
#: Blocks of the layout in a block of the format, bytes of the latter in the file, of the former in memory.
_BLOCKS, _STORED_BYTES, _PACKED_BYTES = range(40, 64, 8)
#: For a single row of activations: the kernel that multiplies, its codebook, blocks of the layout in a row and in what
#: is packed at once, bytes of a panel for a block.
_MULTIPLY, _TABLE, _ALL, _STEP, _PANEL = range(64, 104, 8)
_WORDS = 13


@dataclass(frozen=True, eq=False)
class Mapped:
    """Describe to kernels how a stored weight is packed: ``words``, and ``keep`` what they point to."""

    words: npt.NDArray[np.int64]
    step: int
    group_bytes: int
    keep: list[Any] = field(repr=False)

    @property
    def address(self) -> int:
        """Where the words lie."""
        return int(self.words.ctypes.data)

    @property
    def scratch(self) -> int:
        """Bytes that a thread packs into; 64 divides them."""
        return AT_ONCE * self.group_bytes

    def with_kernel(self, multiply: int, table: int, panel_block: int) -> npt.NDArray[np.int64]:
        """The words for a single row of activations: the address of the kernel of the layout, of its codebook, and the
        bytes of a panel for a block."""
        words = self.words.copy()
        words[_MULTIPLY // 8], words[_TABLE // 8], words[_PANEL // 8] = multiply, table, panel_block
        return words


def packer(format: Format, layout: Layout) -> tuple[Kernel, int, int, Any]:
    """Return the kernel that packs a row, the columns of the blocks that it counts, its last argument, and the object
    that must stay alive for it."""
    if not is_generic(format):
        block = layout.block
        return NATIVE[layout.name if layout.name in NATIVE else "codebook"][0], block, block // UNIT, None
    codes = grid_codes(format.name)  # kept: threads that ask first at the same time each get an array of their own
    move = PLAIN[format.name] if format.name in PLAIN else GRIDS[format.name]
    return move, format.block, codes.ctypes.data, codes


def describe(format: Format, layout: Layout, rows: npt.NDArray[np.uint8], columns: int) -> Mapped:
    """Return how such a weight is packed; ``rows`` are its stored bytes [rows, bytes of a row]."""
    move, block, extra, codes = packer(format, layout)
    wide = max(block, layout.block)
    step = max(_COLUMNS // wide, 1) * wide // layout.block
    words = np.zeros(_WORDS, np.int64)
    words[_STORED // 8], words[_ROW_BYTES // 8], words[_COUNT // 8] = rows.ctypes.data, rows.strides[0], len(rows)
    words[_MOVE // 8], words[_EXTRA // 8] = move.address, extra
    words[_BLOCKS // 8] = block // layout.block
    words[_STORED_BYTES // 8], words[_PACKED_BYTES // 8] = rows.shape[1] // (columns // block), layout.block_bytes
    words[_ALL // 8], words[_STEP // 8] = columns // layout.block, step
    group_bytes = -(-step * layout.block_bytes // 64) * 64
    return Mapped(words, step, group_bytes, [rows, codes])


@numba.njit(**OPTIONS)
def fill_scratch(words, group, until, block, to_block, scratch, group_bytes):
    """Pack the blocks [block, to_block) of the layout of the groups [group, until) at ``scratch``."""
    blocks, move, extra = read_int(words + _BLOCKS), read_int(words + _MOVE), read_int(words + _EXTRA)
    row_bytes, last = read_int(words + _ROW_BYTES), min(ROWS * until, read_int(words + _COUNT))
    source = read_int(words + _STORED) + block // blocks * read_int(words + _STORED_BYTES)
    for row in range(ROWS * group, last):
        target = scratch + (row // ROWS - group) * group_bytes
        call_address(move, (source + row * row_bytes, target, row % ROWS, (to_block - block) // blocks, extra))


@kernel(16)
def multiply_mapped(words, group_bytes, x, y, lanes, away, u0, first, last, u1, u2, u3, u4, u5, u6, u7):
    """The groups [first, last) times one row of activations, called as the kernels of packed weights are; the scratch
    of the thread lies ``away`` bytes behind its panel at ``x``."""
    scratch, blocks, step = x + away, read_int(words + _ALL), read_int(words + _STEP)
    packed, multiply, table = read_int(words + _PACKED_BYTES), read_int(words + _MULTIPLY), read_int(words + _TABLE)
    panel = read_int(words + _PANEL)
    for group in range(first, last):
        for block in range(0, blocks, step):
            until = min(block + step, blocks)
            fill_scratch(words, group, group + 1, block, until, scratch, group_bytes)
            base = scratch - block * packed
            result = y + 64 * group
            left, add = lanes - ROWS * group, (1 if block > 0 else 0) + (2 if until < blocks else 0)
            call_address(
                multiply, (base, table, x, result, 0, 1, left, 0, 1, group_bytes, block, until, 0, packed, panel, add)
            )


Bytes = npt.NDArray[np.uint8]

_ARENA = 64 << 20
_LINE = 64

_lock = threading.Lock()


class _Arena:
    """A mapping that is handed out from its start; it lives as long as an array looks into it."""

    def __init__(self, size: int) -> None:
        mapped = mmap.mmap(-1, size + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if (advice := huge_advice(HUGE)) is not None:
            with contextlib.suppress(OSError):  # a kernel without huge pages
                mapped.madvise(advice)
        whole = np.frombuffer(mapped, np.uint8)
        start = -whole.ctypes.data % HUGE
        self.free = whole[start : start + size]

    def take(self, size: int) -> Bytes | None:
        """The next bytes, or None when there are not so many."""
        rounded = -(-size // _LINE) * _LINE
        if rounded > self.free.size:
            return None
        taken, self.free = self.free[:size], self.free[rounded:]
        return taken


_current = _Arena(0)


def empty(size: int) -> Bytes:
    """That many zero bytes, uint8, at an address that 64 divides."""
    global _current
    if size > _ARENA // 4:
        own = _Arena(-(-size // HUGE) * HUGE).take(size)
        assert own is not None
        return own
    with _lock:
        taken = _current.take(size)
        if taken is None:
            _current = _Arena(_ARENA)
            taken = _current.take(size)
        assert taken is not None
        return taken


Floats = npt.NDArray[np.float32]

#: Stored bytes that are packed at once; read pages of a mapped file are given back after each such slab.
SLAB = 2 << 20


@dataclass(eq=False)
class Packed:
    """A weight of ``shape`` (rows, columns) as the kernels read it.

    ``data`` uint8, 64-byte aligned: groups of 16 rows of ``group_bytes`` each; rows that fill the last group have
    scale 0. ``table``: 16 unsigned bytes (value + 128) and, at byte 16, the float32 that a product is multiplied
    with; None without a codebook. ``kept`` holds parts for the way back that ``data`` does not. ``source`` is the
    stored weight itself, for the way back of a generic layout: a mapped file costs no memory. ``gather`` int64
    [columns] says which column of the activations each column meets; None where they lie in their own order.
    ``threads`` is how many threads multiply with it. ``mapped``: ``data`` is the stored weight instead, whose rows are
    packed whenever they are multiplied.
    """

    format: Format
    shape: tuple[int, int]
    layout: Layout
    data: Bytes = field(repr=False)
    table: Bytes | None = field(default=None, repr=False)
    kept: dict[str, npt.NDArray[Any]] = field(default_factory=dict, repr=False)
    source: Encoded | None = field(default=None, repr=False)
    gather: npt.NDArray[np.int64] | None = field(default=None, repr=False)
    threads: int = 1
    mapped: Mapped | None = field(default=None, repr=False)

    @cached_property
    def pointer(self) -> int:
        """The address of the first group."""
        return int(self.data.ctypes.data)

    @cached_property
    def table_pointer(self) -> int:
        """The address of the codebook, 0 without one."""
        return 0 if self.table is None else int(self.table.ctypes.data)

    @property
    def groups(self) -> int:
        """Number of groups of 16 rows."""
        return -(-self.shape[0] // ROWS)

    @property
    def group_bytes(self) -> int:
        """Bytes of a group of rows."""
        return self.layout.group_bytes(self.shape[1])

    @property
    def nbytes(self) -> int:
        """Bytes held by this object itself."""
        others = [*self.kept.values(), *([] if self.gather is None else [self.gather])]
        return self.data.nbytes + sum(part.nbytes for part in others)


def pack(encoded: Encoded, threads: int = 1) -> Packed:
    """Packs a weight in this thread, a slab of rows at a time; ``threads`` will multiply with it.

    Pages of a read-only mapped file are given back as soon as they are packed, so that the weight does not count
    twice in the resident memory.
    """
    packed = start(encoded, threads)
    rows = encoded.shape[0]
    step = max(ROWS, SLAB // max(encoded.nbytes // max(rows, 1), 1) // ROWS * ROWS)
    with nodes.packing_thread(nodes.halves()) as move:
        for first in range(0, rows, step):
            last = min(first + step, rows)
            move(first + last > rows)
            fill(packed, encoded, first, last)
            _give_back(encoded, first, last)
    return packed


def as_stored(encoded: Encoded, threads: int = 1) -> Packed:
    """The weight as it is stored, for the kernels that pack its rows whenever they multiply with them."""
    layout, columns = layout_of(encoded.format), encoded.shape[1]
    rows = encoded.parts["data"].reshape(encoded.shape[0], -1)
    mapped = describe(encoded.format, layout, rows, columns)
    table = _table(encoded.format)
    return Packed(encoded.format, encoded.shape, layout, rows, table, source=encoded, threads=threads, mapped=mapped)


def start(encoded: Encoded, threads: int = 1) -> Packed:
    """The packed weight without its rows, for ``fill``; ``threads`` will multiply with it."""
    layout = layout_of(encoded.format)
    rows, columns = encoded.shape
    data = empty(-(-rows // ROWS) * layout.group_bytes(columns))
    packed = Packed(encoded.format, encoded.shape, layout, data, _table(encoded.format), threads=threads)
    if encoded.format.nested:
        packed.kept = {name: np.array(encoded.parts[name]) for name in ("absmax", "nested_absmax", "nested_offset")}
    if encoded.format.name == "llm_int8":
        packed.kept = {"scale": np.array(encoded.parts["scale"])}
    if is_generic(encoded.format):
        packed.source = encoded
    if encoded.format.layout == "ordered":
        packed.gather = np.argsort(encoded.parts["order"]).astype(np.int64)
    return packed


def fill(packed: Packed, encoded: Encoded, first: int, last: int) -> None:
    """Packs the rows [first, last) of the weight that ``packed`` was started for; 16 divides ``first``."""
    name = packed.format.name
    stored = encoded.parts["data"].reshape(encoded.shape[0], -1)[first:last]
    if kernel := grouped.GROUPED.get(name.split(":")[0]):
        move_rows(packed, kernel, stored, first, packed.format.block, grouped.how(packed.format))
        return
    kernel, block, extra, _codes = packer(packed.format, packed.layout)  # the codes live until the rows are packed
    move_rows(packed, kernel, stored, first, block, extra)
    if is_generic(packed.format):
        return
    scales = _scales(encoded, first, last)
    if scales is not None:
        lanes = _lanes(packed)[first // ROWS :]
        for lane in range(min(ROWS, last - first)):
            of_lane = scales[lane::ROWS]
            lanes[: len(of_lane), :, lane] = of_lane


def _native(packed: Packed) -> tuple[Kernel, Kernel]:
    """The kernels that pack and unpack a row of a layout of its own."""
    return NATIVE[packed.layout.name if packed.layout.name in NATIVE else "codebook"]


def move_rows(packed: Packed, kernel: Kernel, stored: npt.NDArray[Any], first: int, block: int, extra: int) -> None:
    """Calls a kernel of one row, with that last argument, for the rows from ``first`` on, which are ``stored``."""
    assert stored.strides[1] == stored.itemsize == 1
    rows, target = (first, first + len(stored)), packed.pointer + packed.layout.row_header
    blocks = packed.shape[1] // block
    each_row.call(
        kernel.address, stored.ctypes.data, stored.strides[0], target, packed.group_bytes, blocks, extra, *rows
    )


def _scales(encoded: Encoded, first: int, last: int) -> Floats | None:
    """The float32 scales [rows, scales of a row] of rows that are not stored beside their codes."""
    if "scale" in encoded.parts:
        scale: Floats = encoded.parts["scale"][first:last, None]
        return scale * INVERSE if encoded.format.name == "llm_int8" else scale
    if "absmax" in encoded.parts:
        columns, block = encoded.shape[1], encoded.format.block
        return codebook4.scales(encoded, first * columns // block, last * columns // block).reshape(last - first, -1)
    return None


def _lanes(packed: Packed) -> Floats:
    """A view of those scales as they are packed: float32 [groups, scales of a row, 16]."""
    layout = packed.layout
    step = packed.group_bytes if layout.row_header else layout.block_bytes
    lanes: Floats = packed.data.view(np.float32).reshape(packed.groups, -1, step // 4)[:, :, :ROWS]
    return lanes


def read_rows(packed: Packed, ids: Iterable[int]) -> Encoded:
    """Return those rows of the weight as a weight of their own: every value is what the stored one decodes to."""
    rows = np.array(list(ids), np.int64)
    columns = packed.shape[1]
    shape = (len(rows), columns)
    if packed.source is not None:
        return Encoded(packed.format, shape, {**packed.source.parts, "data": packed.source.parts["data"][rows]})
    plain, layout = formats.get(packed.format.name.removesuffix(":nested")), packed.layout
    width = {"rows": plain.bytes((1, columns)), "row_scale": columns, "flat": columns // 2}[plain.layout]
    stored = np.empty((len(rows), width), np.uint8)
    for index, row in enumerate(rows.tolist()):
        move_rows(packed, _native(packed)[1], stored[index : index + 1], row, layout.block, layout.block // UNIT)
    if plain.layout == "rows":
        return Encoded(plain, shape, {"data": stored})
    scales = np.ascontiguousarray(_lanes(packed)[rows // ROWS, :, rows % ROWS])
    if plain.layout == "row_scale":
        kept = packed.kept.get("scale")
        scale = scales.reshape(-1) if kept is None else kept[rows]
        return Encoded(plain, shape, {"data": stored.view(np.int8), "scale": scale})
    return Encoded(plain, shape, {"data": stored.reshape(-1), "absmax": scales.reshape(-1)})


def unpack(packed: Packed) -> Encoded:
    """The weight as it was stored, bit for bit."""
    if packed.source is not None:
        return packed.source
    whole = read_rows(packed, range(packed.shape[0]))
    return Encoded(packed.format, packed.shape, {**whole.parts, **packed.kept})


def _table(format: Format) -> Bytes | None:
    """The codebook of a format as ``Packed.table``."""
    if not layout_of(format).table:
        return None
    values, factor = CODEBOOKS[format.name.split(":")[0]]
    table = np.zeros(64, np.uint8)
    table[:16] = (values.astype(np.int16) + 128).astype(np.uint8)
    table[16:20] = np.array([factor], np.float32).view(np.uint8)
    return table


def mapping_of(array: npt.NDArray[Any]) -> mmap.mmap | None:
    """Return the file mapping that a read-only array looks into, if any."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return None
        base = base.base
    base = base.obj if isinstance(base, memoryview) else base
    return base if isinstance(base, mmap.mmap) else None


def _give_back(encoded: Encoded, first: int, last: int) -> None:
    """Let go of the pages of rows [first, last) if they are a file's, which keeps them."""
    for part in encoded.parts.values():
        mapped = mapping_of(part)
        if mapped is None:
            continue
        start = np.frombuffer(mapped, np.uint8).ctypes.data
        size = part.nbytes // max(encoded.shape[0], 1)
        begin = part.ctypes.data - start + first * size
        release(mapped, begin, begin + (last - first) * size)
