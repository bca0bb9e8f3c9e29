"""Packed weight times activations, whole: quantizes the activations, then multiplies on all threads.

Work is handed out in chunks of groups of rows, so that a thread the system has taken away costs little. A chunk of
the weight meets some rows of activations and some columns at a time (of most levels 256 and 2048): the panels then stay
in the L2 cache of a core (0.7 MB) while the chunk passes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numba
import numpy as np
import numpy.typing as npt

from rung.kernels.cpu import target
from rung.kernels.cpu.compiled import OPTIONS, Kernel, kernel, per_level
from rung.kernels.cpu.decode.elementwise import copy
from rung.kernels.cpu.gemm.microkernel import flip_block, multiply_groups, panel_unit_bytes
from rung.kernels.cpu.pack.layouts import LAYOUTS, UNIT, Layout
from rung.kernels.cpu.pack.packing import Packed, fill_scratch
from rung.kernels.cpu.thread_pool import Program, run, run_program
from rung.kernels.isa.generic import fetch_add, rows_of_a_pass, write_int
from rung.kernels.isa.registers import (
    add_i32,
    largest_magnitude,
    load_bf16,
    load_f16,
    load_f32,
    load_first_f32,
    mul_f32,
    splat_f32,
    store_activations,
    store_first_bf16,
    store_first_f16,
    sum_i32,
    to_i32,
)
from rung.kernels.isa.scalar import call_address, read_i64, write_f32, write_u32

_SMALLEST = np.float32(2.0**-100)


@per_level
def quantize(dtype: str) -> Kernel:
    """The kernel for activations in f32, f16 or bf16.

    ``f(x, stride, rows, panel, tile, parts, offset, first, last, at)`` quantizes columns [32 first, 32 last) of
    ``rows`` rows into the rows from ``at`` on of a panel of ``tile`` rows. ``x`` is the address of the first row,
    ``stride`` the bytes between rows, ``panel`` the panel's. Other rows of the panel stay as they are. A row with NaN
    or Inf in a unit makes that unit NaN.
    """
    f32, f16 = dtype == "f32", dtype == "f16"  # numbers: a kernel that holds an instruction is never found on disk
    size = 4 if f32 else 2

    @kernel(10)
    def run(x, stride, rows, panel, tile, parts, offset, first, last, at):
        step = tile * (36 + 4 * parts)
        for unit in range(first, last):
            codes = panel + unit * step
            scales = codes + 32 * tile
            sums = scales + 4 * tile
            for row in range(at, at + rows):
                scale = np.float32(0)
                inverse = splat_f32(np.float32(0))
                source = x + 32 * size * unit + (row - at) * stride
                if f32:
                    u, v = load_f32(source), load_f32(source + 64)
                elif f16:
                    u, v = load_f16(source), load_f16(source + 32)
                else:
                    u, v = load_bf16(source), load_bf16(source + 32)
                largest = largest_magnitude(u, v)
                if not largest < _SMALLEST:
                    scale = largest / np.float32(127)
                    inverse = splat_f32(np.float32(127) / largest)
                a, b = to_i32(mul_f32(u, inverse)), to_i32(mul_f32(v, inverse))
                store_activations(codes, tile, row, 0, a)
                store_activations(codes, tile, row, 1, b)
                write_f32(scales + 4 * row, scale)
                if parts == 1:
                    low, high = sum_i32(add_i32(a, b)), 0
                else:
                    low, high = sum_i32(a), sum_i32(b)
                if offset:
                    write_u32(sums + 4 * row, -offset * low)
                    if parts == 2:
                        write_u32(sums + 4 * (tile + row), -offset * high)
                else:
                    write_f32(sums + 4 * row, scale * np.float32(low))
                    if parts == 2:
                        write_f32(sums + 4 * (tile + row), scale * np.float32(high))

    return run


@kernel(10)
def keep(x, stride, rows, panel, tile, parts, offset, first, last, at):
    """Copies columns [16 first, 16 last) of one row of float32 to a panel; called as those of ``quantize`` are."""
    copy(panel + 64 * first, x + 64 * first, 16 * (last - first))


def tile_of(rows: int, flips: bool = False) -> int:
    """Rows of a panel: the power of two that holds so many, and the level's largest for many rows.

    ``flips``: codes are turned into magnitudes and flips first.
    """
    level = target.level()
    most = level.flipped_tile if flips and level.flipped_tile else level.tile
    return min(most, 1 << (rows - 1).bit_length())


@per_level
def multiply(layout: str, tile: int) -> Kernel:
    """The kernel of a layout and a tile.

    ``f(weights, table, x, y, stride, rows, lanes, first, last, group_bytes, from_block, to_block, row_header,
    block_bytes, panel_block, add)``: multiplies the groups of 16 rows [first, last) of a packed weight at
    ``weights``, in the blocks of columns [from_block, to_block), with a panel at ``x``, and writes float32
    [rows, lanes] to ``y`` with ``stride`` bytes between rows, where ``lanes`` is the number of rows of the whole
    weight. ``add`` is that of ``multiply_groups``.

    A single row of activations meets two groups at a time, where registers hold both and rows of weights are not short
    (``Level.short_rows``): two short pieces of memory end before the prefetcher has learnt them, and with rows of 18 kB
    31 became 36 GB/s (AVX2, two threads). Two groups double the independent chains of additions, 15 became 23 GB/s for
    q4_0 in the L2 cache. A few rows of activations meet one group. With two, half the broadcasts are saved, but memory
    is read in two places: from there 2 and 4 rows then took 1.2 to 1.5 times as long (Zen 5;
    `benchmarks/linear_kernels.py --alone`). Many rows, for which a pair of groups stays in the caches, meet both where
    broadcasts are what limits (``Level.paired_tile``).
    """

    level = target.level()
    pairs = level.groups_of_one_row == 2 if tile == 1 else tile == level.paired_tile
    ahead, short = level.ahead, level.short_rows if tile == 1 else 0

    @kernel(16)
    def run(
        weights,
        table,
        x,
        y,
        stride,
        rows,
        lanes,
        first,
        last,
        group_bytes,
        from_block,
        to_block,
        row_header,
        block_bytes,
        panel_block,
        add,
    ):
        panel = x + from_block * panel_block
        block = row_header + from_block * block_bytes
        blocks = to_block - from_block
        group = first
        base = weights + first * group_bytes
        if pairs:
            while group_bytes > short and group + 2 <= last:
                out, left = y + 64 * group, lanes - 16 * group
                multiply_groups(
                    layout, tile, 2, ahead, base, group_bytes, table, panel, block, blocks, out, stride, rows, left, add
                )
                base += 2 * group_bytes
                group += 2
        while group < last:
            out, left = y + 64 * group, lanes - 16 * group
            multiply_groups(
                layout, tile, 1, ahead, base, group_bytes, table, panel, block, blocks, out, stride, rows, left, add
            )
            base += group_bytes
            group += 1

    return run


#: Rows of activations that are quantized and multiplied at once: bounds the workspace to 1.3 x 512 x columns bytes.
MOST_ROWS = 512
_CHUNKS_A_THREAD = 6
_FEW_UNITS = 1024  # fewer units than this are quantized before other threads have woken up

_scratch = threading.local()
#: A step of a program: the address of a function, and its words.
Step = tuple[int, npt.NDArray[np.int64]]


@kernel(3)
def _quantize_panels(words, thread, threads):
    """Words: counter, kernel, x, stride, rows, panels, panel bytes, tile, parts, offset, units."""
    stride, rows, tile = read_i64(words + 24), read_i64(words + 32), read_i64(words + 56)
    while True:
        panel = fetch_add(words, 1)
        row = panel * tile
        if row >= rows:
            break
        call_address(
            read_i64(words + 8),
            (
                read_i64(words + 16) + row * stride,
                stride,
                min(tile, rows - row),
                read_i64(words + 40) + panel * read_i64(words + 48),
                tile,
                read_i64(words + 64),
                read_i64(words + 72),
                0,
                read_i64(words + 80),
                0,
            ),
        )


@per_level
def flip(layout: str) -> Kernel:
    """The kernel that writes blocks [from_block, to_block) of groups [first, last) in the flipped form of a layout.

    ``f(weights, table, first, last, group_bytes, from_block, to_block, block_bytes, row_header, to, flipped_bytes)``:
    groups begin at ``to``, with their row header; ``flipped_bytes`` are those of a block.
    """

    @kernel(11)
    def run(weights, table, first, last, group_bytes, from_block, to_block, block_bytes, row_header, to, flipped_bytes):
        for group in range(first, last):
            source = weights + group * group_bytes
            for at in range(0, row_header, 8):
                write_int(to + at, read_i64(source + at))
            source += row_header + from_block * block_bytes
            to += row_header
            for _ in range(from_block, to_block):
                flip_block(layout, table, source, to)
                source += block_bytes
                to += flipped_bytes

    return run


@numba.njit(**OPTIONS)
def _narrow(y, narrowed, halves, rows, lanes, first, last):
    """The columns [first, last) of float32 [rows, lanes] to float16 or bfloat16; reads no other."""
    for row in range(rows):
        for lane in range(first, last, 16):
            at, count = row * lanes + lane, last - lane
            values = load_first_f32(y + 4 * at, count)
            if halves:
                store_first_f16(narrowed + 2 * at, values, count)
            else:
                store_first_bf16(narrowed + 2 * at, values, count)


@kernel(3)
def _multiply_chunks(words, thread, threads):
    """Words: counter, kernel, whether there are many rows, then those named below. ``narrowed``: where float16, or
    bfloat16 where not ``halves``, are made of the float32 at ``y``; 0 for nowhere. ``mapped``: the words of a weight
    that is packed here, into ``scratch_bytes`` of each thread; 0 for one that is."""
    multiply_panel, many = read_i64(words + 8), read_i64(words + 16)
    weights, table, panels, y, stride = (
        read_i64(words + 24),
        read_i64(words + 32),
        read_i64(words + 40),
        read_i64(words + 48),
        read_i64(words + 56),
    )
    rows, lanes, groups, group_bytes = (
        read_i64(words + 64),
        read_i64(words + 72),
        read_i64(words + 80),
        read_i64(words + 88),
    )
    blocks, row_header, block_bytes, panel_block = (
        read_i64(words + 96),
        read_i64(words + 104),
        read_i64(words + 112),
        read_i64(words + 120),
    )
    panel_bytes, tile, chunk, columns_step, narrowed, halves = (
        read_i64(words + 128),
        read_i64(words + 136),
        read_i64(words + 144),
        read_i64(words + 152),
        read_i64(words + 160),
        read_i64(words + 168),
    )
    mapped, scratch_bytes = read_i64(words + 176), read_i64(words + 192)
    scratch = read_i64(words + 184) + thread * scratch_bytes
    flip_groups, flipped_bytes, flipped_room = read_i64(words + 200), read_i64(words + 216), read_i64(words + 224)
    flipped = read_i64(words + 208) + thread * flipped_room
    count, passed = -(-rows // tile), -(-rows_of_a_pass() // tile)
    while True:
        first = fetch_add(words, 1) * chunk
        if first >= groups:
            break
        last = min(first + chunk, groups)
        for start in range(0, count, passed):
            for block in range(0, blocks, columns_step):
                to_block = min(block + columns_step, blocks)
                group = first
                while group < last:
                    until = min(group + 2, last) if many else last
                    if mapped != 0:
                        fill_scratch(mapped, group, until, block, to_block, scratch, group_bytes)
                        weights = scratch - group * group_bytes - block * block_bytes
                    if flip_groups != 0:
                        call_address(
                            flip_groups,
                            (
                                weights,
                                table,
                                group,
                                until,
                                group_bytes,
                                block,
                                to_block,
                                block_bytes,
                                row_header,
                                flipped,
                                flipped_bytes,
                            ),
                        )
                    add = (1 if block > 0 else 0) + (2 if to_block < blocks else 0)
                    for panel in range(start, min(start + passed, count)):
                        row = panel * tile
                        if flip_groups != 0:
                            arguments = (
                                flipped,
                                table,
                                panels + panel * panel_bytes + block * panel_block,
                                y + row * stride + 64 * group,
                                stride,
                                min(tile, rows - row),
                                lanes - 16 * group,
                                0,
                                until - group,
                                row_header + (to_block - block) * flipped_bytes,
                                0,
                                to_block - block,
                                row_header,
                                flipped_bytes,
                                panel_block,
                                add,
                            )
                        else:
                            arguments = (
                                weights,
                                table,
                                panels + panel * panel_bytes,
                                y + row * stride,
                                stride,
                                min(tile, rows - row),
                                lanes,
                                group,
                                until,
                                group_bytes,
                                block,
                                to_block,
                                row_header,
                                block_bytes,
                                panel_block,
                                add,
                            )
                        call_address(multiply_panel, arguments)
                    group = until
        if narrowed:
            _narrow(y, narrowed, halves, rows, lanes, 16 * first, min(16 * last, lanes))


def _workspace(size: int) -> int:
    """The address of at least ``size`` bytes that this thread may use until it asks again; 64 divides it."""
    buffer: np.ndarray | None = getattr(_scratch, "buffer", None)
    if buffer is None or buffer.size < size + 64:
        buffer = _scratch.buffer = np.empty(size + 64, np.uint8)
    address = int(buffer.ctypes.data)
    return address + -address % 64


def product(weight: Packed, x: int, stride: int, rows: int, y: int, sums: int, dtype: str) -> None:
    """Writes [rows, out] to the address ``y``: activations [rows, in] at ``x`` times the weight, both in ``dtype``.

    ``stride`` are the bytes between rows of ``x``; rows of ``y`` follow each other. ``sums``: where float32
    [min(rows, MOST_ROWS), out] have room; ``y`` itself where that is the dtype.
    """
    panels = _workspace(panel_room(weight, rows))
    for first, count in _parts(rows):
        at = y + (4 if dtype == "f32" else 2) * weight.shape[0] * first
        fill, multiply_all = _steps(
            weight, x + first * stride, stride, count, at, at if dtype == "f32" else sums, dtype, panels
        )
        panel = _Panels.of(weight, count)
        if panel.count == 1 and count * panel.units < _FEW_UNITS:
            offset, parts = weight.layout.activations
            arguments = x + first * stride, stride, count, panels, panel.tile, parts, offset, 0, panel.units, 0
            quantize(dtype).call(*arguments)
            run(multiply_all[0], multiply_all[1].tolist(), weight.threads)
        else:
            run_program(Program.of([fill, multiply_all]), weight.threads)


def product_steps(weight: Packed, x: int, stride: int, rows: int, y: int, panels: int) -> list[Step]:
    """Return the same in float32 as steps of a program; ``panel_room`` bytes at ``panels`` are theirs meanwhile."""
    found: list[Step] = []
    for first, count in _parts(rows):
        at = y + 4 * weight.shape[0] * first
        found += _steps(weight, x + first * stride, stride, count, at, at, "f32", panels)
    return found


def panel_room(weight: Packed, rows: int) -> int:
    """Return the bytes of panels, and of what threads pack or flip, for a product of so many rows."""
    return max((_Panels.of(weight, count).bytes for _, count in _parts(rows)), default=0)


def _parts(rows: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the number of the rows that are quantized and multiplied at once."""
    most = target.level().tile
    step = MOST_ROWS if rows > most else most
    for first in range(0, rows, step):
        yield first, min(step, rows - first)


def _flips(layout: Layout, rows: int) -> bool:
    """Return whether codes are turned into magnitudes and flips first, which many rows of activations share."""
    level = target.level()
    return rows >= level.flipped_from and layout.bytewide and level.with_sign is not None


@dataclass(frozen=True)
class _Panels:
    """Panels of a product of some rows: rows of a tile, their units and bytes, and how many there are.

    ``step`` are the blocks of columns that are multiplied at once, ``flipped`` the layout that those are brought to
    first, with ``room`` bytes of each thread for it; ``scratch`` are the bytes of all threads for mapped weights.
    """

    tile: int
    units: int
    each: int
    count: int
    step: int
    flipped: Layout | None
    room: int
    scratch: int
    threads: int

    @property
    def bytes(self) -> int:
        """Return the bytes of everything."""
        return self.count * self.each + self.scratch + self.threads * self.room

    @classmethod
    def of(cls, weight: Packed, rows: int) -> _Panels:
        """Return those of a weight."""
        layout, columns = weight.layout, weight.shape[1]
        flips = _flips(layout, rows)
        level = target.level()
        pairs = level.paired_tile and rows > level.tile and layout.parts == 1
        tile, units = level.paired_tile if pairs else tile_of(rows, flips), columns // UNIT
        each = -(-units * panel_unit_bytes(tile, layout.activations[1]) // 64) * 64
        step = max(1, level.columns_of_a_pass // layout.block) if rows > tile else columns // layout.block
        if weight.mapped:
            step = weight.mapped.step
        flipped = LAYOUTS[f"{layout.name}_flipped"] if flips else None
        room = 2 * (layout.row_header + step * flipped.block_bytes) if flipped else 0
        scratch = weight.threads * weight.mapped.scratch if weight.mapped else 0
        return cls(tile, units, each, -(-rows // tile), step, flipped, room, scratch, weight.threads)


def _steps(
    weight: Packed, x: int, stride: int, rows: int, y: int, sums: int, dtype: str, panels: int
) -> tuple[Step, Step]:
    """Return the steps that quantize rows and multiply them; see ``product``."""
    packed, layout, mapped = _Panels.of(weight, rows), weight.layout, weight.mapped
    (out, columns), (offset, parts) = weight.shape, layout.activations
    words = [0, quantize(dtype).address, x, stride, rows, panels, packed.each, packed.tile, parts, offset, packed.units]
    fill = _quantize_panels.address, np.array(words, np.int64)
    behind, flipped, many = panels + packed.count * packed.each, packed.flipped, rows > packed.tile
    chunk = max(1, -(-weight.groups // (weight.threads * _CHUNKS_A_THREAD)))
    if many:  # pairs of groups, as they are multiplied: of few groups, so that no thread has a third more than others
        chunk = min(target.level().most_groups, chunk + chunk % 2)
    words = [
        0,
        multiply(flipped.name if flipped else layout.name, packed.tile).address,
        int(many or mapped is not None),
        *(weight.pointer, weight.table_pointer, panels, sums, 4 * out),
        *(rows, out, weight.groups, weight.group_bytes if mapped is None else mapped.group_bytes),
        *(columns // layout.block, layout.row_header, layout.block_bytes),
        layout.block // UNIT * panel_unit_bytes(packed.tile, parts),
        *(packed.each, packed.tile, chunk, packed.step, 0 if dtype == "f32" else y, int(dtype == "f16")),
        *((0, 0, 0) if mapped is None else (mapped.address, behind, mapped.scratch)),
        *((flip(layout.name).address, behind + packed.scratch) if flipped else (0, 0)),
        *((flipped.block_bytes, packed.room) if flipped else (0, 0)),
    ]
    return fill, (_multiply_chunks.address, np.array(words, np.int64))
