"""The inner loop of all quantized products, unrolled by LLVM emitters: groups of 16 rows times a tile of activations.

The activations of a tile of T rows are a *panel* (see ``activations``): per unit of 32 columns T x 32 signed bytes,
then T scales, then T (or 2 T) sums. Per unit, row and group: sums of 32 products (``isa.products``),
a conversion and two or three float32 operations. Codes are unpacked once for the rows of a tile, and a broadcast of
activations serves all groups that are multiplied at a time: tiles are as large as the level's registers hold sums for.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.cgutils import alloca_once, alloca_once_value, for_range
from numba.extending import intrinsic

from rung.kernels.cpu import target
from rung.kernels.cpu.pack.layouts import LAYOUTS, Layout
from rung.kernels.isa import registers as v
from rung.kernels.isa.emit import (
    F16,
    F32,
    I8,
    I32,
    I64,
    constant,
    fence,
    load,
    opaque,
    plus,
    prefetch,
    splat,
    store,
    widen,
)
from rung.kernels.isa.products import (
    Codes,
    FlippedCodes,
    PairSum,
    Sum,
    broadcast,
    every_other,
    in_turns,
    join,
    packs_signed_bytes,
    pairs_of_rows,
    remove_offset,
    split,
    store_flipped,
)
from rung.kernels.isa.vector import INT, VOID

Value = ir.Value


def panel_unit_bytes(tile: int, parts: int) -> int:
    """Bytes of a unit of a panel of ``tile`` rows."""
    return tile * (32 + 4 + 4 * parts)


@dataclass(frozen=True)
class Tile:
    """One kernel while it is emitted: a strip of ``lanes`` rows of weights, of each of some groups of 16 rows, times
    ``tile`` rows of activations; weights are prefetched ``ahead`` bytes before."""

    b: ir.IRBuilder
    layout: Layout
    tile: int
    ahead: int
    totals: list[list[Value]]  # where the float32 totals are: [groups][tile // together]
    lanes: int = v.LANES
    first: int = 0  # of the strip's rows in their group

    @property
    def together(self) -> int:
        """Rows of activations whose totals lie in one vector, in turns: two where the level multiplies matrices.

        Not with minima, or two scales a unit: repeating all these takes more than bringing the rows apart.
        """
        return 2 if self.has_matrix and self.layout.parts == 1 and not self.layout.minimum else 1

    @property
    def has_matrix(self) -> bool:
        """Return whether matrices are multiplied: two rows of activations at a time."""
        return self.tile > 1 and target.level().matrix is not None

    def each(self, of_weights: list[Value]) -> list[Value]:
        """Repeat what rows of weights have for the rows of activations that lie together."""
        if self.together == 1:
            return of_weights
        order = constant(ir.VectorType(I32, 2 * self.lanes), [lane // 2 for lane in range(2 * self.lanes)])
        return [self.b.shuffle_vector(value, value, order) for value in of_weights]

    def read(self, address: Value, offset: int, element: ir.Type) -> Value:
        """Load what the rows of the strip have ``offset`` bytes behind an address, an element each."""
        at = offset + self.first * {I8: 1, F16: 2}.get(element, 4)
        return load(self.b, plus(self.b, address, at), ir.VectorType(element, self.lanes))

    def code(self, p: Value, index: int, codebook: Value | None) -> Value:
        """Vector ``index`` of the unsigned codes of the unit at ``p``: four columns of the rows of the strip."""
        b, layout, header = self.b, self.layout, self.layout.unit_header
        if layout.codes == "byte":
            return self.read(p, header + 64 * index, I32)
        code = self._nibbles(self.read(p, header + 64 * (index % 4), I32), index, codebook)
        if layout.codes == "five":
            plane, by = self.read(p, header + 256, I32), 4 - index
            moved = v.shift_left(b, plane, by) if by > 0 else v.shift_right(b, plane, -by) if by < 0 else plane
            return b.or_(code, v.mask_bytes(b, moved, 0x10))
        if layout.codes == "six":
            plane, pair = self.read(p, header + 256 + 64 * (index // 4), I32), index % 4
            moved = v.shift_right(b, plane, 2) if pair == 3 else v.shift_left(b, plane, 4 - 2 * pair)
            return b.or_(code, v.mask_bytes(b, moved, 0x30))
        return code

    def _nibbles(self, packed: Value, index: int, codebook: Value | None) -> Value:
        code = v.high_nibbles(self.b, packed) if index >= 4 else v.mask_bytes(self.b, packed, 15)
        return code if codebook is None else v.shuffle_bytes.emit(self.b, codebook, code)

    def pairs(self, p: Value, index: int, codebook: Value | None) -> list[Value]:
        """Vectors ``index`` and ``index + 1`` as pairs of rows with eight columns each."""
        b = self.b
        if self.layout.codes != "nibble":
            return pairs_of_rows(b, self.code(p, index, codebook), self.code(p, index + 1, codebook))
        at = self.layout.unit_header + 64 * (index % 4)
        packed = pairs_of_rows(b, self.read(p, at, I32), self.read(p, at + 64, I32))
        return [self._nibbles(each, index, codebook) for each in packed]

    def codes(self, p: Value, index: int, codebook: Value | None) -> Codes:
        """The same, ready for products."""
        layout = self.layout
        if layout.codes == "flipped":
            at = layout.unit_header + 64 * layout.parts + 128 * index + 4 * self.first
            return FlippedCodes(self.b, plus(self.b, p, at), self.lanes)
        signed = layout.table or packs_signed_bytes()
        return Codes(self.b, self.code(p, index, codebook), layout.bytewide, signed)

    def scales(self, p: Value, block: list[Value]) -> tuple[list[Value], list[Value]]:
        """The scales and minima of the parts of a unit, float32; ``block`` is what its block brings."""
        b, layout = self.b, self.layout
        if layout.unit_header == 0:
            return block[: layout.parts], block[layout.parts :]
        if layout.scale == "f32":
            both = [self.read(p, 64 * j, F32) for j in range(layout.unit_header // 64)]
            return both[: layout.parts], both[layout.parts :]
        stored = [self.read(p, 16 * j, I8) for j in range(layout.unit_header // 16)]
        both = [v.to_f32.emit(b, v.widen_bytes(b, each, signed=layout.scale == "i8")) for each in stored]
        scales = [b.fmul(each, block[0]) for each in both[: layout.parts]]
        return scales, [b.fmul(each, block[1]) for each in both[layout.parts :]]

    def unit(self, places: list[Value], x: Value, blocks: list[list[Value]], codebook: Value | None) -> None:
        """Adds the products of one unit of each group with the unit of the panel at ``x`` to the totals."""
        b, layout, tile = self.b, self.layout, self.tile
        headers = [self.scales(p, block) for p, block in zip(places, blocks, strict=True)]
        if layout.minimum and layout.bytewide and target.level().signed:  # 128 is taken from every code
            by = constant(ir.VectorType(F32, self.lanes), 128.0)
            headers = [
                (scales, [v.fma_f32.emit(b, scale, by, each) for scale, each in zip(scales, minima, strict=True)])
                for scales, minima in headers
            ]
        headers = [(self.each(scales), minima) for scales, minima in headers]
        for part in range(layout.parts):
            sums = tile * (36 + 4 * part)
            dots = self._dots(places, x, part, codebook)
            for index, row in enumerate(range(0, tile, self.together)):
                scale_x = self._of_rows(x, tile * 32, row, F32, self.together)
                for group, (scales, minima) in enumerate(headers):
                    pointer = self.totals[group][index]
                    value = v.to_f32.emit(b, dots[group][index])
                    if scales:
                        value = b.fmul(value, scales[part])
                    total = v.fma_f32.emit(b, value, scale_x, b.load(pointer))
                    if minima:
                        total = v.fma_f32.emit(b, minima[part], self._of_rows(x, sums, row, F32, 1), total)
                    b.store(total, pointer)
            if target.level().fence and part + 1 < layout.parts:
                self._fence_totals()

    def _fence_totals(self) -> None:
        """Compute one part of a unit before the next is loaded.

        Codes of both lie in the same bytes: one row of activations loads them twice, since all 16 rows of weights are
        more than registers hold.
        """
        b = self.b
        for pointer in itertools.chain(*self.totals):
            registers = split(b, b.load(pointer), target.level().lanes)
            b.store(join(b, [fence(b, each, reload=self.tile == 1) for each in registers]), pointer)

    def _of_rows(self, x: Value, offset: int, row: int, element: ir.Type, count: int) -> Value:
        """Broadcast what ``count`` rows of activations have ``offset`` bytes behind the unit of the panel at ``x``."""
        b, wide = self.b, min(self.tile, 4)
        if not target.level().operand_of_lane or wide == 1:
            return splat(b, load(b, plus(b, x, offset + 4 * row), element), self.lanes)
        several = load(b, plus(b, x, offset + 4 * (row - row % wide)), ir.VectorType(element, wide))
        order = [row % wide + each for each in range(count)] * self.lanes
        return b.shuffle_vector(several, several, constant(ir.VectorType(I32, len(order)), order))

    def _dots(self, places: list[Value], x: Value, part: int, codebook: Value | None) -> list[list[Value]]:
        """The integer products [groups][tile // together] of a part of a unit."""
        b, layout, tile, level = self.b, self.layout, self.tile, target.level()
        sums = tile * (36 + 4 * part)
        offset = layout.offset and not (layout.bytewide and level.signed)
        step = 2 if self.has_matrix else 1
        first = [self._of_rows(x, sums, row, I32, step) if offset else None for row in range(0, tile, step)]
        if self.has_matrix:
            return [self._matrix_dots(pointer, x, part, first, codebook) for pointer in places]
        dots: list[list[Sum]] = []
        for pointer in places:
            if layout.codes == "flipped":
                first = [self.read(pointer, layout.unit_header + 64 * part, I32)] * tile
            dots.append([Sum(b, start, layout.largest_code) for start in first])
        order = (0, 4, 1, 5, 2, 6, 3, 7) if layout.parts == 1 else range(4 * part, 4 * part + 4)
        for position, index in enumerate(order):
            if level.fence and layout.parts == 1 and position and position % level.fence == 0:
                for each in itertools.chain(*dots):
                    each.fence()
            codes = [self.codes(p, index, codebook) for p in places]
            for row in range(tile):
                four = broadcast(b, x, level.activation_offset(tile, row, 4 * index))
                for group, code in enumerate(codes):
                    dots[group][row].add(code, four)
        return [[each.total() for each in group] for group in dots]

    def _matrix_dots(
        self, p: Value, x: Value, part: int, first: list[Value | None], codebook: Value | None
    ) -> list[Value]:
        """The same of one group where the level multiplies matrices: pairs of rows, eight columns at a time."""
        b, layout, level = self.b, self.layout, target.level()
        sums = [PairSum(b, start, self.lanes) for start in first]
        order = (0, 4, 2, 6) if layout.parts == 1 else (4 * part, 4 * part + 2)
        for index in order:
            pairs = self.pairs(p, index, codebook)
            for pair, each in enumerate(sums):
                each.add(pairs, plus(b, x, level.activation_offset(self.tile, 2 * pair, 4 * index)))
        totals = [each.total() for each in sums]
        return totals if self.together == 2 else [row for both in totals for row in every_other(b, both)]

    def block_scales(self, p: Value) -> list[Value]:
        """Return the header of a block as float32: its scale and, negated, the scale of its minima."""
        b, layout = self.b, self.layout
        if layout.block_header == 0:
            return []
        if layout.scale == "f32":
            return [self.read(p, 0, F32)]
        scale = widen(b, self.read(p, 0, F16))
        return [scale, b.fneg(widen(b, self.read(p, 32, F16)))] if layout.minimum else [scale]


@contextmanager
def _walk(b: ir.IRBuilder, count: Value, *pointers: tuple[Value, int]) -> Iterator[list[Value]]:
    """A loop of ``count`` turns in which each pointer, kept in memory, moves on by its step."""
    with for_range(b, count):
        now = [b.load(pointer) for pointer, _ in pointers]
        if target.level().small_offsets:
            now = [opaque(b, value) for value in now]
        yield now
        for (pointer, step), value in zip(pointers, now, strict=True):
            if step:
                b.store(plus(b, value, step), pointer)


def _fetch(tile: Tile, places: list[Value], size: int) -> None:
    """Ask for the memory that comes after ``size`` bytes at each address: ``ahead`` bytes in all.

    It comes while products are computed.
    """
    if tile.ahead == 0 or tile.first > 0 or tile.layout.codes == "flipped":
        return
    ahead = tile.ahead // len(places)
    for address, at in itertools.product(places, range(0, size, 64)):
        prefetch(tile.b, plus(tile.b, address, ahead + at))


def _products(tile: Tile, weights: list[Value], codebook: Value | None, x: Value, blocks: Value) -> None:
    """Adds the products of ``blocks`` blocks of each group with a panel to the totals of ``made``."""
    b, layout = tile.b, tile.layout
    step_x = panel_unit_bytes(tile.tile, layout.parts)
    apart = [b.sub(each, weights[0]) for each in weights]  # one pointer moves, the other groups are beside it
    p, xp = alloca_once_value(b, weights[0]), alloca_once_value(b, x)

    def in_groups(pointer: Value) -> list[Value]:
        return [pointer, *(b.add(pointer, distance) for distance in apart[1:])]

    if layout.block == 32:
        with _walk(b, blocks, (p, layout.block_bytes), (xp, step_x)) as (block, panel):
            places = in_groups(block)
            _fetch(tile, places, layout.block_bytes)
            scales = [tile.block_scales(pointer) for pointer in places]
            tile.unit([plus(b, pointer, layout.block_header) for pointer in places], panel, scales, codebook)
        return
    with _walk(b, blocks, (p, layout.block_bytes)) as (block,):
        scales = [tile.block_scales(pointer) for pointer in in_groups(block)]
        q = alloca_once(b, I64)
        b.store(plus(b, block, layout.block_header), q)
        with _walk(b, I64(layout.block // 32), (q, layout.unit_bytes), (xp, step_x)) as (unit, panel):
            places = in_groups(unit)
            _fetch(tile, places, layout.unit_bytes)
            tile.unit(places, panel, scales, codebook)


def _strips(b: ir.IRBuilder, layout: Layout, tile: int, groups: int, ahead: int) -> list[Tile]:
    """The strips that make up groups of 16 rows, whose totals are zero."""
    level = target.level()
    lanes = v.LANES if tile == 1 else level.strip
    strips = [Tile(b, layout, tile, ahead, [], lanes, first) for first in range(0, v.LANES, lanes)]
    together = strips[0].together
    zero = constant(ir.VectorType(F32, together * lanes), 0.0)
    for strip in strips:
        strip.totals.extend([alloca_once(b, zero.type) for _ in range(tile // together)] for _ in range(groups))
        for total in itertools.chain(*strip.totals):
            b.store(zero, total)
    return strips


def _load_totals(b: ir.IRBuilder, strips: list[Tile], results: list[list[Value]], addresses: list[list[Value]]) -> None:
    """Begin with the sums that are in memory at ``results``, so many at each address: both [groups][tile]."""
    together = strips[0].together
    for group, row in itertools.product(range(len(results)), range(0, len(results[0]), together)):
        before = [
            v.load_first_f32.emit(b, results[group][at], addresses[group][at]) for at in range(row, row + together)
        ]
        joined = in_turns(b, *before) if together == 2 else before[0]
        for strip, total in zip(strips, split(b, joined, together * strips[0].lanes), strict=True):
            b.store(total, strip.totals[group][row // together])


def _total(b: ir.IRBuilder, strips: list[Tile], group: int, row: int) -> Value:
    """Return the sums of a row of activations with a group of 16 rows of weights."""
    together = strips[0].together
    whole = join(b, [b.load(strip.totals[group][row // together]) for strip in strips])
    return whole if together == 1 else every_other(b, whole)[row % 2]


@intrinsic(prefer_literal=True)
def multiply_groups(
    typing_context,
    layout,
    tile,
    groups,
    ahead,
    weights,
    group_bytes,
    table,
    x,
    start,
    blocks,
    y,
    stride,
    rows,
    lanes,
    add,
):
    """Sixteen or more rows of a weight times a panel; all arguments but the first four are int64.

    ``layout`` (a name), ``tile``, ``groups`` and ``ahead``, the bytes of weights that are prefetched, are constants.
    ``weights`` is the first group, ``start`` the byte in each at which the first of ``blocks`` blocks lies, ``x`` the
    unit of the panel there. Writes float32 [rows, lanes] to ``y`` with ``stride`` bytes between rows, for at most
    ``tile`` rows and 16 lanes a group. ``add`` is 0, or the sum of 1 to go on with the sums that are there, and 2 to
    leave sums that more blocks will be added to: whether blocks come at once or in parts, they are added in the same
    order.
    """
    if not isinstance(layout, types.StringLiteral):
        return None
    chosen, count, wide = LAYOUTS[layout.literal_value], tile.literal_value, groups.literal_value
    size = ahead.literal_value

    def generate(context: Any, b: ir.IRBuilder, signature: Any, values: list[Value]) -> Any:
        first, group_bytes, table, panel, start, blocks, y, stride, rows, lanes, add = values[4:]
        bases = [b.add(first, b.mul(group_bytes, I64(group))) for group in range(wide)]
        goes_on = b.icmp_signed("!=", b.and_(add, I64(1)), I64(0))
        whole = b.icmp_signed("==", b.and_(add, I64(2)), I64(0))
        results = [
            [b.add(plus(b, y, 64 * group), b.mul(stride, I64(row))) for row in range(count)] for group in range(wide)
        ]
        addresses = [
            [
                b.select(b.icmp_signed(">", rows, I64(row)), b.sub(lanes, I64(16 * group)), I64(0))
                for row in range(count)
            ]
            for group in range(wide)
        ]
        strips = _strips(b, chosen, count, wide, size)
        with b.if_then(goes_on):
            _load_totals(b, strips, results, addresses)
        codebook = v.broadcast_16_bytes.emit(b, table) if chosen.table else None
        if codebook is not None and target.level().signed:
            codebook = remove_offset(b, codebook)
        for strip in strips:
            _products(strip, [b.add(base, start) for base in bases], codebook, panel, blocks)
        for group, base in enumerate(bases):
            scale = _last_scale(b, chosen, base, table)
            if scale is not None:
                scale = b.select(whole, scale, constant(v.F32S, 1.0))
            for row in range(count):
                total = _total(b, strips, group, row)
                value = total if scale is None else b.fmul(total, scale)
                v.store_first_f32.emit(b, results[group][row], value, addresses[group][row])
        return context.get_dummy_value()

    return VOID(layout, tile, groups, ahead, *[INT] * 11), generate


@intrinsic(prefer_literal=True)
def flip_block(typing_context, layout, table, source, to):
    """Writes a block of 16 rows in the flipped form of its layout (a name) from ``source`` to ``to``."""
    if not isinstance(layout, types.StringLiteral):
        return None
    chosen, flipped = LAYOUTS[layout.literal_value], LAYOUTS[f"{layout.literal_value}_flipped"]

    def generate(context: Any, b: ir.IRBuilder, signature: Any, values: list[Value]) -> Any:
        _, table, source, to = values
        tile = Tile(b, chosen, 1, 0, [])
        codebook = remove_offset(b, v.broadcast_16_bytes.emit(b, table)) if chosen.table else None
        _copy(b, source, to, chosen.block_header)
        with for_range(b, I64(chosen.block // 32)) as loop:
            unit = b.add(plus(b, source, chosen.block_header), b.mul(loop.index, I64(chosen.unit_bytes)))
            out = b.add(plus(b, to, chosen.block_header), b.mul(loop.index, I64(flipped.unit_bytes)))
            _copy(b, unit, out, chosen.unit_header)
            out = plus(b, out, chosen.unit_header)
            for part in range(chosen.parts):
                lost = Sum(b, None, 1)
                for index in range(8) if chosen.parts == 1 else range(4 * part, 4 * part + 4):
                    address = plus(b, out, 64 * chosen.parts + 128 * index)
                    store_flipped(b, address, tile.codes(unit, index, codebook))
                    lost.add_negative(FlippedCodes(b, address))
                store(b, plus(b, out, 64 * part), b.neg(lost.total()))
        return context.get_dummy_value()

    return VOID(layout, *[INT] * 3), generate


def _copy(b: ir.IRBuilder, source: Value, to: Value, count: int) -> None:
    for at in range(0, count, 16):
        store(b, plus(b, to, at), load(b, plus(b, source, at), ir.VectorType(I32, 4)))


def _last_scale(b: ir.IRBuilder, layout: Layout, base: Value, table: Value) -> Value | None:
    """Return the last factor of the products of a group: row scales, or the factor of a codebook."""
    if layout.row_header:
        return v.load_f32.emit(b, base)
    return v.broadcast_f32.emit(b, plus(b, table, 16)) if layout.table else None
