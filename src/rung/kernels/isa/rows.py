"""Rows of a cache in float32, float16, bfloat16, signed bytes or nibbles, sixteen values at a time, in plain LLVM
vectors.

``kind`` is a value whose type says what the rows hold: float32 for a float, float16 for an integer, bfloat16 for a
truth value, signed bytes for None, and for an empty tuple 32 nibbles in 16 bytes, the first 16 in the low ones, which
stand for -8 to 7; for a tuple of one such bytes and 32 fifth bits behind them, which stand for 0 to 31. Lengths are
multiples of 16, strides and widths are bytes. Loops over rows are emitted, so that 16 sums stay in registers.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.core.cgutils import alloca_once_value, for_range
from numba.extending import intrinsic

from rung.kernels.isa import generic as v
from rung.kernels.isa.emit import I8, I16, I32, I64, call, constant, load, plus, splat
from rung.kernels.isa.emit import store as write
from rung.kernels.isa.products import packs_signed_bytes, remove_offset
from rung.kernels.isa.registers import i32x16
from rung.kernels.isa.vector import INT, VOID, instruction

_TRUTHS = ir.VectorType(ir.IntType(1), v.LANES)


def _width(kind: types.Type) -> int:
    if isinstance(kind, types.NoneType):
        return 1
    return 4 if isinstance(kind, types.Float) else 2


def _bytes(kind: types.Type, vectors: int) -> int:
    """Bytes of 16 ``vectors`` values."""
    if isinstance(kind, types.BaseTuple):
        return v.LANES * vectors * _bits(kind) // 8
    return v.LANES * vectors * _width(kind)


def _bits(kind: Any) -> int:
    """Bits of a code of a cache in blocks."""
    return 8 if isinstance(kind, types.NoneType) else 4 + len(kind)


def _read(b: ir.IRBuilder, address: ir.Value, kind: types.Type) -> ir.Value:
    if isinstance(kind, types.NoneType):
        return b.sitofp(b.sext(load(b, address, ir.VectorType(I8, v.LANES)), v.I32S), v.F32S)
    halves = v.load_brain if isinstance(kind, types.Boolean) else v.load_half
    return (v.load if isinstance(kind, types.Float) else halves).emit(b, address)


def _read_some(b: ir.IRBuilder, address: ir.Value, kind: types.Type, vectors: int) -> list[ir.Value]:
    """Read 16 ``vectors`` values that follow each other, of nibbles an even number."""
    if not isinstance(kind, types.BaseTuple):
        return [_read(b, plus(b, address, v.LANES * _width(kind) * j), kind) for j in range(vectors)]
    found = []
    for pair in range(vectors // 2):
        at = plus(b, address, _bytes(kind, 2) * pair)
        both = b.zext(load(b, at, ir.VectorType(I8, v.LANES)), v.I32S)
        for part, codes in enumerate((b.and_(both, constant(v.I32S, 15)), b.lshr(both, constant(v.I32S, 4)))):
            if _bits(kind) == 5:
                fifth = b.bitcast(load(b, plus(b, at, v.LANES + 2 * part), I16), _TRUTHS)
                codes = b.or_(codes, b.shl(b.zext(fifth, v.I32S), constant(v.I32S, 4)))
            else:
                codes = b.sub(codes, constant(v.I32S, 8))
            found.append(b.sitofp(codes, v.F32S))
    return found


@intrinsic
def code_bytes(typing_context, count, kind):
    """Bytes of so many codes of a cache in blocks."""

    def generate(context: Any, b: ir.IRBuilder, signature: Any, values: list[ir.Value]) -> Any:
        return b.sdiv(b.mul(values[0], I64(_bits(kind))), I64(8))

    return INT(INT, kind), generate


@intrinsic
def row_width(typing_context, kind):
    """Bytes of one value."""
    return INT(kind), lambda context, b, signature, values: I64(_width(kind))


@intrinsic
def load_row(typing_context, address, kind):
    """Read 16 values, widened to float32."""
    return v.f32x16(INT, kind), lambda context, b, signature, values: _read(b, values[0], kind)


@intrinsic
def store_row(typing_context, address, value, kind):
    """Writes 16 values, in float32 or float16."""
    if isinstance(kind, types.NoneType):
        return None
    emit = v.store.emit if isinstance(kind, types.Float) else v.store_half.emit

    def generate(context: Any, b: ir.IRBuilder, signature: Any, values: list[ir.Value]) -> Any:
        emit(b, values[0], values[1])
        return context.get_dummy_value()

    return VOID(INT, v.f32x16, kind), generate


@instruction(VOID, INT, i32x16)
def store_columns(b, address, value):
    """The lowest byte of each of 16 int32 as packed codes of a row: four of them, then the next 64 bytes further on."""
    codes = b.bitcast(b.trunc(value, ir.VectorType(I8, v.LANES)), ir.VectorType(I32, 4))
    if not packs_signed_bytes():
        codes = remove_offset(b, codes)  # what takes 128 from a byte adds it, too
    _write_columns(b, address, codes)


@instruction(VOID, INT, i32x16)
def store_nibble_columns(b, address, value):
    """The same of bytes that hold two codes each, as rows of nibbles are packed."""
    _write_columns(b, address, b.bitcast(b.trunc(value, ir.VectorType(I8, v.LANES)), ir.VectorType(I32, 4)))


@instruction(VOID, INT, i32x16, i32x16)
def store_fifth_columns(b, address, first, second):
    """The fifth bits of 32 codes of a row, as rows of five bits are packed: behind those bytes."""
    by = [8 * (lane % 4) + lane // 4 for lane in range(v.LANES)]
    fifth = [b.lshr(codes, constant(v.I32S, 4)) for codes in (first, second)]
    moved = b.shl(fifth[0], constant(v.I32S, by)), b.shl(fifth[1], constant(v.I32S, [4 + each for each in by]))
    write(b, address, call(b, "llvm.vector.reduce.or.v16i32", I32, [b.or_(*moved)]))


@instruction(VOID, INT, i32x16)
def store_fifth_bits(b, address, value):
    """The fifth bits of 16 codes, a bit for each."""
    write(b, address, b.bitcast(b.trunc(b.lshr(value, constant(v.I32S, 4)), _TRUTHS), I16))


@instruction(v.f32x16, v.f32x16, INT)
def first_lanes(b, x, count):
    """x in the first ``count`` lanes, 0 in others."""
    limit = splat(b, b.trunc(count, I32), v.LANES)
    inside = b.icmp_signed("<", constant(v.I32S, range(v.LANES)), limit)
    return b.select(inside, x, constant(v.F32S, 0.0))


def _write_columns(b: ir.IRBuilder, address: ir.Value, codes: ir.Value) -> None:
    for index in range(4):
        write(b, plus(b, address, 64 * index), b.extract_element(codes, I32(index)))


@intrinsic
def dot(typing_context, query, key, size, scale, out, kind):
    """``scale`` times the product of one query (float32) with one key, written to ``out``."""

    def generate(context: Any, b: ir.IRBuilder, signature: Any, values: list[ir.Value]) -> Any:
        query, key, size, scale, out = values[:5]
        slot = alloca_once_value(b, constant(v.F32S, 0.0))
        with for_range(b, b.sdiv(size, I64(v.LANES))) as loop:
            k = _read(b, b.add(key, b.mul(loop.index, I64(v.LANES * _width(kind)))), kind)
            q = v.load.emit(b, b.add(query, b.mul(loop.index, I64(v.BYTES))))
            b.store(v.multiply_add.emit(b, k, q, b.load(slot)), slot)
        write(b, out, b.fmul(v.total.emit(b, b.load(slot)), scale))
        return context.get_dummy_value()

    return VOID(INT, INT, INT, types.float32, INT, kind), generate


@intrinsic(prefer_literal=True)
def dots(typing_context, query, apart, key, stride, size, scale, out, row, kind, heads):
    """``scale`` times the products of ``heads`` queries with 16 / ``heads`` keys; ``heads`` is 1, 2, 4 or 16.

    Queries are float32 and lie ``apart`` bytes from each other, keys ``stride`` bytes. Writes float32 to ``out``, the
    products of each query ``row`` bytes after those of the one before.
    """
    if not isinstance(heads, types.IntegerLiteral):
        return None
    count = heads.literal_value
    keys = v.LANES // count
    signature = VOID(INT, INT, INT, INT, INT, types.float32, INT, INT, kind, heads)

    def generate(context: Any, b: ir.IRBuilder, signature: Any, values: list[ir.Value]) -> Any:
        query, apart, key, stride, size, scale, out, row = values[:8]
        sums = [alloca_once_value(b, constant(v.F32S, 0.0)) for _ in range(v.LANES)]
        with for_range(b, b.sdiv(size, I64(v.LANES))) as loop:
            at = b.add(key, b.mul(loop.index, I64(v.LANES * _width(kind))))
            rows = [_read(b, b.add(at, b.mul(stride, I64(number))), kind) for number in range(keys)]
            at = b.add(query, b.mul(loop.index, I64(v.BYTES)))
            for head in range(count):
                q = v.load.emit(b, b.add(at, b.mul(apart, I64(head))))
                for number, values_of_key in enumerate(rows):
                    slot = sums[head * keys + number]
                    b.store(v.multiply_add.emit(b, values_of_key, q, b.load(slot)), slot)
        products = v.totals.emit(b, *[b.load(slot) for slot in sums])
        products = b.fmul(products, v.spread.emit(b, scale))
        for head in range(count):
            lanes = constant(ir.VectorType(I32, keys), range(head * keys, (head + 1) * keys))
            part = b.shuffle_vector(products, ir.Constant(v.F32S, ir.Undefined), lanes)
            write(b, b.add(out, b.mul(row, I64(head))), part)
        return context.get_dummy_value()

    return signature, generate


@intrinsic(prefer_literal=True)
def mix(typing_context, value, stride, weights, row, count, out, apart, ahead, kind, heads, vectors):
    """Add ``count`` rows of values times the weights of ``heads`` queries to ``out``, for 16 ``vectors`` values of each
    row, one row after the other.

    ``heads`` times ``vectors`` is at most 16. Weights are float32, each query's ``row`` bytes after the last one's;
    ``out`` is float32, with ``apart`` bytes between the queries' results. Memory ``ahead`` bytes behind each row is
    asked for, which is read next.
    """
    if not isinstance(heads, types.IntegerLiteral) or not isinstance(vectors, types.IntegerLiteral):
        return None
    queries, wide = heads.literal_value, vectors.literal_value
    signature = VOID(INT, INT, INT, INT, INT, INT, INT, INT, kind, heads, vectors)

    def generate(context: Any, b: ir.IRBuilder, signature: Any, values: list[ir.Value]) -> Any:
        value, stride, weights, row, count, out, apart, ahead = values[:8]
        addresses = [
            plus(b, b.add(out, b.mul(apart, I64(head))), v.BYTES * j) for head in range(queries) for j in range(wide)
        ]
        sums = [alloca_once_value(b, v.load.emit(b, address)) for address in addresses]
        with for_range(b, count) as loop:
            at = b.add(value, b.mul(loop.index, stride))
            rows = _read_some(b, at, kind, wide)
            for line in range(0, _bytes(kind, wide), v.BYTES):
                v.prefetch.emit(b, plus(b, b.add(at, ahead), line))
            at = b.add(weights, b.mul(loop.index, I64(4)))
            for head in range(queries):
                weight = v.load_spread.emit(b, b.add(at, b.mul(row, I64(head))))
                for j, values_of_row in enumerate(rows):
                    address = sums[head * wide + j]
                    b.store(v.multiply_add.emit(b, values_of_row, weight, b.load(address)), address)
        for address, summed in zip(addresses, sums, strict=True):
            v.store.emit(b, address, b.load(summed))
        return context.get_dummy_value()

    return signature, generate
