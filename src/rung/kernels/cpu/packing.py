"""Weights in the layouts of ``layouts`` ("r16"): packing them, and the exact way back."""

from __future__ import annotations

import mmap
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rung import formats
from rung.core.types import Format
from rung.formats import Encoded
from rung.kernels.cpu import arena
from rung.kernels.cpu.groups import CODEBOOKS, codes_of
from rung.kernels.cpu.layouts import GENERIC, ROWS, Layout, layout_of
from rung.kernels.cpu.pack_codes import pack_codes, unpack_codes
from rung.kernels.cpu.pack_native import NATIVE

Bytes = npt.NDArray[np.uint8]

#: Stored bytes that are packed at once; read pages of a mapped file are given back after each such slab.
SLAB = 16 << 20


@dataclass(eq=False)
class Packed:
    """A weight of ``shape`` (rows, columns) as the kernels read it.

    ``data`` uint8, 64-byte aligned: groups of 16 rows of ``group_bytes`` each; rows that fill the last group have
    scale 0. ``table``: 16 unsigned bytes (value + 128) and, at byte 16, the float32 that a product is multiplied
    with; None without a codebook. ``kept`` holds parts for the way back that ``data`` does not. ``source`` is the
    stored weight itself, for the way back of a generic layout: a mapped file costs no memory. ``threads`` is how
    many threads multiply with it.
    """

    format: Format
    shape: tuple[int, int]
    layout: Layout
    data: Bytes = field(repr=False)
    table: Bytes | None = field(default=None, repr=False)
    kept: dict[str, npt.NDArray[Any]] = field(default_factory=dict, repr=False)
    source: Encoded | None = field(default=None, repr=False)
    threads: int = 1

    @property
    def pointer(self) -> int:
        """The address of the first group."""
        return int(self.data.ctypes.data)

    @property
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
        return self.data.nbytes + sum(part.nbytes for part in self.kept.values())


def pack(encoded: Encoded, threads: int = 1) -> Packed:
    """Packs a weight with that many threads, a slab of rows at a time.

    Pages of a read-only mapped file are given back as soon as they are packed, so that the weight does not count
    twice in the resident memory.
    """
    layout = layout_of(encoded.format)
    rows, columns = encoded.shape
    data = arena.empty(-(-rows // ROWS) * layout.group_bytes(columns))
    packed = Packed(encoded.format, encoded.shape, layout, data, _table(encoded.format), threads=threads)
    if encoded.format.nested:
        packed.kept = {name: np.array(encoded.parts[name]) for name in ("absmax", "nested_absmax", "nested_offset")}
    if encoded.format.name in GENERIC:
        packed.source = encoded
    step = max(ROWS, SLAB // max(encoded.nbytes // max(rows, 1), 1) // ROWS * ROWS)
    with ThreadPoolExecutor(threads) as pool:
        for first in range(0, rows, step):
            last = min(first + step, rows)
            list(pool.map(lambda part: _fill(packed, encoded, *part), _shares(first, last, threads)))
            _give_back(encoded, first, last)
    return packed


def _shares(first: int, last: int, threads: int) -> Iterable[tuple[int, int]]:
    """Rows [first, last) cut between groups into at most ``threads`` shares."""
    share = -(-(last - first) // (threads * ROWS)) * ROWS
    return [(start, min(start + share, last)) for start in range(first, last, share)]


def _fill(packed: Packed, encoded: Encoded, first: int, last: int) -> None:
    """Packs the rows [first, last)."""
    if packed.layout.name in NATIVE:
        stored = encoded.parts["data"][first:last]
        NATIVE[packed.layout.name][0].call(*_native_arguments(packed, stored), first, last)
        return
    step = max(1, (1 << 20) // packed.shape[1])
    for start in range(first, last, step):
        end = min(start + step, last)
        made = codes_of(encoded, start, end)
        pack_codes.call(*_code_arguments(packed, *made), start, end)


def _native_arguments(packed: Packed, stored: Bytes) -> tuple[int, ...]:
    assert stored.strides[1] == 1
    return stored.ctypes.data, stored.strides[0], packed.pointer, packed.group_bytes, packed.shape[1]


def _code_arguments(
    packed: Packed, codes: Bytes, scales: npt.NDArray[np.float32], minima: npt.NDArray[np.float32] | None
) -> tuple[int, ...]:
    layout = packed.layout
    assert codes.flags.c_contiguous
    assert scales.flags.c_contiguous
    return (
        codes.ctypes.data,
        scales.ctypes.data,
        0 if minima is None else minima.ctypes.data,
        packed.pointer,
        packed.group_bytes,
        packed.shape[1],
        packed.shape[1] if layout.row_header else layout.group,
        layout.block,
        int(layout.codes == "nibble"),
        layout.row_header,
    )


def read_rows(packed: Packed, ids: Iterable[int]) -> Encoded:
    """Those rows of the weight as a weight of their own: every value is what the stored one decodes to."""
    wanted = list(ids)
    shape = (len(wanted), packed.shape[1])
    if packed.source is not None:
        return Encoded(packed.format, shape, {"data": packed.source.parts["data"][wanted]})
    layout = packed.layout
    if layout.name in NATIVE:
        stored = np.empty((len(wanted), packed.format.bytes((1, packed.shape[1]))), np.uint8)
        for place, row in enumerate(wanted):
            NATIVE[layout.name][1].call(*_native_arguments(packed, stored[place : place + 1]), row, row + 1)
        return Encoded(packed.format, shape, {"data": stored})
    codes = np.empty(shape, np.uint8)
    scales = np.empty((len(wanted), shape[1] // (shape[1] if layout.row_header else layout.group)), np.float32)
    for place, row in enumerate(wanted):
        rows = slice(place, place + 1)
        unpack_codes.call(*_code_arguments(packed, codes[rows], scales[rows], None), row, row + 1)
    if layout.row_header:
        return Encoded(packed.format, shape, {"data": (codes ^ 0x80).view(np.int8), "scale": scales[:, 0].copy()})
    plain = formats.get(packed.format.name.removesuffix(":nested"))
    pairs = codes.reshape(-1, 2)
    return Encoded(plain, shape, {"data": (pairs[:, 0] << 4) | pairs[:, 1], "absmax": scales.reshape(-1)})


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


def _mapping(array: npt.NDArray[Any]) -> mmap.mmap | None:
    """The file mapping that a read-only array looks into, if any."""
    base: Any = array
    while isinstance(base, np.ndarray):
        if base.flags.writeable:
            return None
        base = base.base
    base = base.obj if isinstance(base, memoryview) else base
    return base if isinstance(base, mmap.mmap) else None


def _give_back(encoded: Encoded, first: int, last: int) -> None:
    """Lets go of the pages of rows [first, last) if they are a file's, which keeps them."""
    for part in encoded.parts.values():
        mapped = _mapping(part)
        if mapped is None or not hasattr(mapped, "madvise"):
            continue
        start = np.frombuffer(mapped, np.uint8).ctypes.data
        size = part.nbytes // max(encoded.shape[0], 1)
        begin = part.ctypes.data - start + first * size
        begin, end = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, begin + (last - first) * size
        if end - begin >= mmap.PAGESIZE:
            mapped.madvise(mmap.MADV_DONTNEED, begin, (end - begin) // mmap.PAGESIZE * mmap.PAGESIZE)
