"""Registers of 16 float32 or 16 int32 (64 bytes), which LLVM cuts into what the processor has.

Addresses are integers, no alignment is asked for. Integers in a register have no sign of their own: the instruction
decides.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core.cgutils import alloca_once_value, for_range

from rung.kernels.cpu import target
from rung.kernels.isa import products
from rung.kernels.isa.emit import (
    F16,
    F32,
    I8,
    I16,
    I32,
    I64,
    LLVM_VERSION,
    call,
    constant,
    load,
    narrow,
    opaque,
    pointer,
    splat,
    store,
    widen,
)
from rung.kernels.isa.vector import FLOAT, INT, VOID, VectorType, instruction

LANES = 16

F32S, I32S = ir.VectorType(F32, LANES), ir.VectorType(I32, LANES)
BYTES64, WORDS16, WORDS32 = ir.VectorType(I8, 64), ir.VectorType(I16, LANES), ir.VectorType(I16, 32)

#: The two register types of compiled functions.
f32x16, i32x16 = VectorType(F32, LANES), VectorType(I32, LANES)


# ---- memory


@instruction(f32x16, INT)
def load_f32(b, address):
    """16 float32."""
    return load(b, address, F32S)


@instruction(f32x16, INT)
def load_f16(b, address):
    """16 float16, widened to float32."""
    return widen(b, load(b, address, ir.VectorType(F16, LANES)))


@instruction(f32x16, INT)
def load_bf16(b, address):
    """16 bfloat16, widened to float32."""
    words = b.zext(load(b, address, ir.VectorType(I16, LANES)), I32S)
    return b.bitcast(b.shl(words, constant(I32S, 16)), F32S)


@instruction(f32x16, INT)
def load_e4m3(b, address):
    """16 floats of 1 sign, 4 exponent and 3 mantissa bits without infinities (OFP8), widened to float32.

    Their bits are those of float16 numbers 256 times smaller, which a conversion widens without the penalty that other
    instructions pay for subnormal ones.
    """
    codes = b.zext(load(b, address, ir.VectorType(I8, LANES)), WORDS16)
    low = b.and_(codes, constant(WORDS16, 0x7F))
    sign = b.shl(b.and_(codes, constant(WORDS16, 0x80)), constant(WORDS16, 8))
    half = b.bitcast(b.or_(sign, b.shl(low, constant(WORDS16, 7))), ir.VectorType(F16, LANES))
    value = b.fmul(widen(b, half), constant(F32S, 256.0))
    return b.select(b.icmp_signed("==", low, constant(WORDS16, 0x7F)), constant(F32S, float("nan")), value)


@instruction(f32x16, INT)
def load_second_f32(b, address):
    """The second of each of 16 pairs of float32."""
    both = load(b, address, ir.VectorType(F32, 2 * LANES))
    return b.shuffle_vector(both, both, constant(I32S, range(1, 2 * LANES, 2)))


@instruction(i32x16, INT)
def load_i32(b, address):
    """64 bytes."""
    return load(b, address, I32S)


@instruction(i32x16, INT)
def load_u8(b, address):
    """16 unsigned bytes, widened to int32."""
    return b.zext(load(b, address, ir.VectorType(I8, LANES)), I32S)


@instruction(i32x16, INT)
def load_i8(b, address):
    """16 signed bytes, widened to int32."""
    return b.sext(load(b, address, ir.VectorType(I8, LANES)), I32S)


def _first(b, count):
    """A mask of the first ``count`` lanes (int64, below 0 counts as none)."""
    kind = ir.VectorType(I64, LANES)
    return b.icmp_signed("<", constant(kind, range(LANES)), splat(b, count, LANES))


@instruction(f32x16, INT, INT)
def load_first_f32(b, address, count):
    """The first ``count`` of 16 float32, zeros after them; reads nothing beyond."""
    if not target.level().masks:
        return _load_in_order(b, address, count)
    source, mask = pointer(b, address, F32S), _first(b, count)
    return call(b, "llvm.masked.load.v16f32.p0", F32S, _masked(source, mask, constant(F32S, 0.0)))


def _load_in_order(b, address, count):
    """All at once where 16 are there, else one after the other."""
    slot = alloca_once_value(b, constant(F32S, 0.0))
    with b.if_else(b.icmp_signed(">=", count, I64(LANES))) as (whole, some):
        with whole:
            b.store(load(b, address, F32S), slot)
        with some, for_range(b, b.select(b.icmp_signed(">", count, I64(0)), count, I64(0))) as loop:
            value = load(b, b.add(address, b.mul(loop.index, I64(4))), F32)
            b.store(b.insert_element(b.load(slot), value, b.trunc(loop.index, I32)), slot)
    return b.load(slot)


def _store_in_order(b, address, value, count):
    """All at once where 16 are asked for, else one after the other."""
    size = 4 if value.type.element == F32 else 2
    with b.if_else(b.icmp_signed(">=", count, I64(LANES))) as (whole, some):
        with whole:
            store(b, address, value)
        with some, for_range(b, b.select(b.icmp_signed(">", count, I64(0)), count, I64(0))) as loop:
            one = b.extract_element(value, b.trunc(loop.index, I32))
            store(b, b.add(address, b.mul(loop.index, I64(size))), one)


def _masked(source, mask, rest):
    """Arguments of a masked load: LLVM 22 made the alignment an attribute."""
    return [source, mask, rest] if LLVM_VERSION >= (22,) else [source, I32(4), mask, rest]


@instruction(VOID, INT, f32x16, INT)
def store_first_f32(b, address, value, count):
    """The first ``count`` of 16 float32; touches nothing beyond."""
    if not target.level().masks:
        _store_in_order(b, address, value, count)
        return
    target_pointer, mask = pointer(b, address, F32S), _first(b, count)
    arguments = [value, target_pointer, mask] if LLVM_VERSION >= (22,) else [value, target_pointer, I32(4), mask]
    call(b, "llvm.masked.store.v16f32.p0", ir.VoidType(), arguments)


@instruction(VOID, INT, f32x16, INT)
def store_first_f16(b, address, value, count):
    """The first ``count`` of 16 float32 as float16, to nearest even; touches nothing beyond."""
    _store_first_words(b, address, _f16(b, value), count)


@instruction(VOID, INT, f32x16, INT)
def store_first_bf16(b, address, value, count):
    """The first ``count`` of 16 float32 as bfloat16, to nearest even; touches nothing beyond."""
    _store_first_words(b, address, _bf16(b, value), count)


def _store_first_words(b, address, words, count):
    if not target.level().masks:
        _store_in_order(b, address, words, count)
        return
    target_pointer, mask = pointer(b, address, WORDS16), _first(b, count)
    arguments = [words, target_pointer, mask] if LLVM_VERSION >= (22,) else [words, target_pointer, I32(2), mask]
    call(b, "llvm.masked.store.v16i16.p0", ir.VoidType(), arguments)


@instruction(VOID, INT, i32x16)
def store_low_bytes(b, address, value):
    """The lowest byte of each of 16 int32: 16 bytes."""
    store(b, address, b.trunc(value, ir.VectorType(I8, LANES)))


@instruction(VOID, INT, INT, INT, INT, i32x16)
def store_activations(b, codes, tile, row, half, value):
    """The lowest byte of each of 16 int32 as the first or second half of a row of a unit of a panel of ``tile`` rows:
    pieces of ``Level.interleave`` columns, see ``Level.activation_offset``."""
    wide, narrow = target.level().interleave, b.trunc(value, ir.VectorType(I8, LANES))
    if wide > LANES:
        store(b, b.add(codes, b.add(b.mul(row, I64(32)), b.mul(half, I64(LANES)))), narrow)
        return
    address = b.add(codes, b.add(b.mul(row, I64(wide)), b.mul(b.mul(half, tile), I64(LANES))))
    step = b.mul(tile, I64(wide))
    for piece in products.split(b, b.bitcast(narrow, ir.VectorType(I32, LANES // 4)), wide // 4):
        store(b, address, piece)
        address = b.add(address, step)


# ---- the same value in every lane


@instruction(f32x16, INT)
def broadcast_f32(b, address):
    """One float32 from memory in every lane."""
    return splat(b, load(b, address, F32), LANES)


@instruction(i32x16, INT)
def broadcast_i32(b, address):
    """Four bytes from memory in every lane."""
    return splat(b, load(b, address, I32), LANES)


@instruction(i32x16, INT)
def broadcast_16_bytes(b, address):
    """16 bytes from memory in each quarter: a table of ``shuffle_bytes``."""
    quarter = ir.VectorType(I32, 4)
    lanes = constant(I32S, list(range(4)) * 4)
    return b.shuffle_vector(load(b, address, quarter), ir.Constant(quarter, ir.Undefined), lanes)


@instruction(f32x16, FLOAT)
def splat_f32(b, value):
    """``value`` in every lane."""
    return splat(b, value, LANES)


@instruction(f32x16)
def zero_f32(b):
    """Zeros."""
    return constant(F32S, 0.0)


@instruction(i32x16)
def zero_i32(b):
    """Zeros."""
    return constant(I32S, 0)


# ---- float32 arithmetic


@instruction(f32x16, f32x16, f32x16)
def mul_f32(b, x, y):
    """x * y"""
    return b.fmul(x, y)


@instruction(f32x16, f32x16, f32x16, f32x16)
def fma_f32(b, x, y, z):
    """x * y + z, rounded once where the processor can."""
    return call(b, f"llvm.fmuladd.v{x.type.count}f32", x.type, [x, y, z])


@instruction(i32x16, f32x16)
def to_i32(b, x):
    """The nearest int32, ties to even."""
    return b.fptosi(call(b, "llvm.rint.v16f32", F32S, [x]), I32S)


@instruction(f32x16, i32x16)
def to_f32(b, x):
    """int32 as float32."""
    return b.sitofp(x, ir.VectorType(F32, x.type.count))


@instruction(FLOAT, f32x16)
def sum_f32(b, x):
    """The sum of the lanes, added pairwise."""
    return call(b, "llvm.vector.reduce.fadd.v16f32", F32, [F32(-0.0), x], ("reassoc",))


@instruction(FLOAT, f32x16, f32x16)
def largest_magnitude(b, x, y):
    """The largest |lane| of both; NaN and Inf count as larger than all."""
    bits = [b.and_(b.bitcast(each, I32S), constant(I32S, 0x7FFFFFFF)) for each in (x, y)]
    larger = b.select(b.icmp_signed(">", *bits), *bits)
    return b.bitcast(call(b, "llvm.vector.reduce.smax.v16i32", I32, [larger]), F32)


@instruction(INT, i32x16)
def sum_i32(b, x):
    """The sum of the lanes."""
    return b.sext(call(b, "llvm.vector.reduce.add.v16i32", I32, [x]), I64)


# ---- integers


@instruction(i32x16, i32x16, i32x16)
def add_i32(b, x, y):
    """x + y"""
    return b.add(x, y)


def shift_right(b, x, bits):
    """Emitter: each int32 moved right by a constant, zeros from the left."""
    return b.lshr(x, constant(x.type, bits)) if bits else x


def shift_left(b, x, bits):
    """Emitter: each int32 moved left by a constant."""
    return b.shl(x, constant(x.type, bits)) if bits else x


def mask_bytes(b, x, mask):
    """Emitter: each byte of ``x`` & ``mask``."""
    return b.and_(x, constant(x.type, mask * 0x01010101))


def widen_bytes(b, x, signed):
    """Emitter: bytes as int32. On ARM by way of int16: LLVM would look them up, with a register of indices for each
    quarter."""
    extend, count = b.sext if signed else b.zext, x.type.count
    if not target.level().shifts_bytes:
        return extend(x, ir.VectorType(I32, count))
    registers = products.split(b, extend(x, ir.VectorType(I16, count)), min(count, 8))
    return products.join(b, [extend(opaque(b, each), ir.VectorType(I32, each.type.count)) for each in registers])


def high_nibbles(b, x):
    """Emitter: the high four bits of each byte of ``x`` as bytes."""
    if not target.level().shifts_bytes:
        return mask_bytes(b, shift_right(b, x, 4), 15)
    kind = ir.VectorType(I8, 4 * x.type.count)
    return b.bitcast(b.lshr(b.bitcast(x, kind), constant(kind, 4)), x.type)


@instruction(i32x16, i32x16, i32x16)
def shuffle_bytes(b, table, index):
    """Byte ``index & 15`` of the same quarter of ``table``, zero where the index has its top bit set."""
    return products.shuffle(b, table, index)


@instruction(VOID, INT, INT, f32x16)
def store_nibbles_f32(b, address, codes, values):
    """32 float32 of the 16 bytes at ``codes``: which of ``values`` their high and low four bits name."""
    products.store_looked_up(b, address, load(b, codes, ir.VectorType(I8, LANES)), values)


@instruction(VOID, INT, INT, i32x16)
def store_nibbles_16(b, address, codes, values):
    """The same of values of 16 bits, which are there twice."""
    products.store_looked_up(b, address, load(b, codes, ir.VectorType(I8, LANES)), b.bitcast(values, WORDS32))


def _twice(b, words):
    """Emitter: 16 values of 16 bits, two times."""
    order = constant(ir.VectorType(I32, 2 * LANES), [lane % LANES for lane in range(2 * LANES)])
    return b.bitcast(b.shuffle_vector(words, words, order), I32S)


@instruction(i32x16, f32x16)
def narrow_f16(b, values):
    """16 float16, to nearest even, two times."""
    return _twice(b, _f16(b, values))


def _f16(b, values):
    return b.bitcast(narrow(b, values), WORDS16)


@instruction(i32x16, f32x16)
def narrow_bf16(b, values):
    """16 bfloat16, to nearest even, two times."""
    return _twice(b, _bf16(b, values))


def _bf16(b, values):
    bits = b.bitcast(values, I32S)
    odd = b.and_(b.lshr(bits, constant(I32S, 16)), constant(I32S, 1))
    rounded = b.lshr(b.add(b.add(bits, constant(I32S, 0x7FFF)), odd), constant(I32S, 16))
    chosen = b.select(b.fcmp_unordered("uno", values, values), constant(I32S, 0x7FC0), rounded)
    return b.trunc(chosen, WORDS16)
