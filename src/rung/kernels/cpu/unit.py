"""The inner loop of all quantised products, unrolled by LLVM emitters: 16 rows of weights times a tile of activations.

The activations of a tile of T rows are a *panel* (see ``activations``): per unit of 32 columns T x 32 signed bytes,
then T scales, then T (or 2 T) sums. The codes of a unit are brought into 8 registers once and serve all T rows:
per row 8 ``vpdpbusd`` with broadcast memory operands, a conversion and two or three float32 operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.cgutils import alloca_once, alloca_once_value, for_range
from numba.extending import intrinsic

from rung.kernels.cpu.layouts import LAYOUTS, Layout
from rung.kernels.simd import avx512 as v
from rung.kernels.simd.vector import I64, INT, VOID, plus

Value = ir.Value


def panel_unit_bytes(tile: int, parts: int) -> int:
    """Bytes of a unit of a panel of ``tile`` rows."""
    return tile * (32 + 4 + 4 * parts)


@dataclass(frozen=True)
class Tile:
    """One kernel while it is emitted: the layout, the rows of activations, and where LLVM code goes."""

    b: ir.IRBuilder
    layout: Layout
    tile: int
    totals: list[Value]  # where the float32 totals of each row are

    def codes(self, p: Value, table: Value | None) -> list[Value]:
        """The unsigned codes of a unit: 8 vectors, four columns each."""
        b, layout = self.b, self.layout
        if layout.codes == "byte":
            return [v.load_i32.emit(b, plus(b, p, 64 * j)) for j in range(8)]
        packed = [v.load_i32.emit(b, plus(b, p, 64 * j)) for j in range(4)]
        codes = [v.mask_bytes(b, each, 15) for each in packed]
        codes += [v.mask_bytes(b, v.shift_right(b, each, 4), 15) for each in packed]
        if table is not None:
            return [v.shuffle_bytes.emit(b, table, each) for each in codes]
        if layout.codes == "six":
            high = [v.load_i32.emit(b, plus(b, p, 256 + 64 * j)) for j in range(2)]
            codes = [b.or_(codes[j], self._high_bits(high[j // 4], j % 4)) for j in range(8)]
        return codes

    def _high_bits(self, plane: Value, index: int) -> Value:
        """The two bits number ``index`` of each byte, as bits 4 and 5."""
        moved = v.shift_right(self.b, plane, 2) if index == 3 else v.shift_left(self.b, plane, 4 - 2 * index)
        return v.mask_bytes(self.b, moved, 0x30)

    def scales(self, p: Value, block: list[Value]) -> tuple[list[Value], list[Value]]:
        """The scales and minima of the parts of a unit, float32; ``block`` is what its block brings."""
        b, layout = self.b, self.layout
        if layout.unit_header == 0:
            return block, []
        if layout.scale == "f32":
            both = [v.load_f32.emit(b, plus(b, p, 64 * j)) for j in range(layout.unit_header // 64)]
            return both[: layout.parts], both[layout.parts :]
        read = v.load_i8.emit if layout.scale == "i8" else v.load_u8.emit
        both = [v.to_f32.emit(b, read(b, plus(b, p, 16 * j))) for j in range(layout.unit_header // 16)]
        scales = [b.fmul(each, block[0]) for each in both[: layout.parts]]
        return scales, [b.fmul(each, block[1]) for each in both[layout.parts :]]

    def unit(self, p: Value, x: Value, block: list[Value], table: Value | None) -> None:
        """Adds the products of a unit at ``p`` with the unit of the panel at ``x`` to the totals."""
        b, layout, tile = self.b, self.layout, self.tile
        scales, minima = self.scales(p, block)
        codes = self.codes(plus(b, p, layout.unit_header), table)
        step = 8 // layout.parts
        for row in range(tile):
            total = b.load(self.totals[row])
            scale_x = v.broadcast_f32.emit(b, plus(b, x, tile * 32 + 4 * row))
            sums = [plus(b, x, tile * 36 + 4 * (tile * part + row)) for part in range(layout.parts)]
            scaled = None
            for part in range(layout.parts):
                dot = v.broadcast_i32.emit(b, sums[part]) if layout.offset else v.zero_i32.emit(b)
                for j in range(part * step, (part + 1) * step):
                    dot = v.dot_u8_i8.emit(b, dot, codes[j], v.broadcast_i32.emit(b, plus(b, x, 32 * row + 4 * j)))
                value = v.to_f32.emit(b, dot)
                if not scales:
                    scaled = value
                elif scaled is None:
                    scaled = b.fmul(value, scales[part])
                else:
                    scaled = v.fma_f32.emit(b, value, scales[part], scaled)
            total = v.fma_f32.emit(b, scaled, scale_x, total)
            for part, minimum in enumerate(minima):
                total = v.fma_f32.emit(b, minimum, v.broadcast_f32.emit(b, sums[part]), total)
            b.store(total, self.totals[row])

    def block_scales(self, p: Value) -> list[Value]:
        """What the header of a block holds, float32: its scale and, negated, the scale of its minima."""
        b, layout = self.b, self.layout
        if layout.block_header == 0:
            return []
        if layout.scale == "f32":
            return [v.load_f32.emit(b, p)]
        scale = v.load_f16.emit(b, p)
        return [scale, b.fneg(v.load_f16.emit(b, plus(b, p, 32)))] if layout.minimum else [scale]


@contextmanager
def _walk(b: ir.IRBuilder, count: Value, *pointers: tuple[Value, int]) -> Iterator[list[Value]]:
    """A loop of ``count`` turns in which each pointer, kept in memory, moves on by its step."""
    with for_range(b, count):
        now = [b.load(place) for place, _ in pointers]
        yield now
        for (place, step), value in zip(pointers, now, strict=True):
            if step:
                b.store(plus(b, value, step), place)


def _group(
    b: ir.IRBuilder, layout: Layout, tile: int, weights: Value, table: Value, x: Value, blocks: Value
) -> list[Value]:
    """The products of 16 rows from the block at ``weights`` on with a panel: a vector for each of its rows."""
    made = Tile(b, layout, tile, [alloca_once(b, v.F32S) for _ in range(tile)])
    for place in made.totals:
        b.store(v.zero_f32.emit(b), place)
    codebook = v.broadcast_16_bytes.emit(b, table) if layout.table else None
    units = layout.block // 32
    step_x = panel_unit_bytes(tile, layout.parts)
    p, xp = alloca_once_value(b, weights), alloca_once_value(b, x)
    if units == 1:
        with _walk(b, blocks, (p, layout.block_bytes), (xp, step_x)) as (block, panel):
            made.unit(plus(b, block, layout.block_header), panel, made.block_scales(block), codebook)
    else:
        with _walk(b, blocks, (p, layout.block_bytes)) as (block,):
            scales = made.block_scales(block)
            q = alloca_once(b, I64)
            b.store(plus(b, block, layout.block_header), q)
            with _walk(b, I64(units), (q, layout.unit_bytes), (xp, step_x)) as (unit, panel):
                made.unit(unit, panel, scales, codebook)
    return [b.load(place) for place in made.totals]


@intrinsic(prefer_literal=True)
def multiply_group(typing_context, layout, tile, weights, table, x, blocks, row_scales, y, stride, rows, lanes, add):
    """Sixteen rows of a weight times a panel; all arguments but the first two are int64.

    ``layout`` (a name) and ``tile`` are constants. ``weights`` is the first of ``blocks`` blocks, ``x`` its place in
    the panel. Writes float32 [rows, lanes] to ``y`` with ``stride`` bytes between rows, for at most ``tile`` rows
    and 16 lanes; ``add`` other than 0 adds to what is there.
    """
    if not isinstance(layout, types.StringLiteral) or not isinstance(tile, types.IntegerLiteral):
        return None
    chosen, count = LAYOUTS[layout.literal_value], tile.literal_value

    def generate(context: Any, b: ir.IRBuilder, signature: Any, values: list[Value]) -> Any:
        p, codebook, panel, blocks, scales, out, step, rows, lanes, add = values[2:]
        products = _group(b, chosen, count, p, codebook, panel, blocks)
        scale = v.load_f32.emit(b, scales) if chosen.row_header else None
        if chosen.table:
            scale = v.broadcast_f32.emit(b, plus(b, codebook, 16))
        adding = b.icmp_signed("!=", add, I64(0))
        for row, product in enumerate(products):
            place = b.add(out, b.mul(step, I64(row)))
            seen = b.select(b.icmp_signed(">", rows, I64(row)), lanes, I64(0))
            before = v.load_first_f32.emit(b, place, b.select(adding, seen, I64(0)))
            value = v.fma_f32.emit(b, product, scale, before) if scale is not None else b.fadd(product, before)
            v.store_first_f32.emit(b, place, value, seen)
        return context.get_dummy_value()

    return VOID(layout, tile, *[INT] * 10), generate
