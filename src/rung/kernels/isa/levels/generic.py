"""Any processor that LLVM compiles for: plain vector operations, no instruction by name."""

from __future__ import annotations

from llvmlite import ir

from rung.kernels.isa import arm, x86
from rung.kernels.isa.emit import I16, I32, I64, constant
from rung.kernels.isa.level import Level, Target


def pairs(b: ir.IRBuilder, codes: ir.Value, x: ir.Value) -> list[ir.Value]:
    """Products of signed bytes in int16; codes are below 128."""
    kind = ir.VectorType(I16, codes.type.count)
    return [b.mul(b.sext(codes, kind), b.sext(x, kind))]


def widen(b: ir.IRBuilder, words: list[ir.Value]) -> ir.Value:
    """Sums of four neighbors, in int32: halves of int32, then halves of int64."""
    count = words[0].type.count
    twos = b.bitcast(words[0], ir.VectorType(I32, count // 2))
    twos = b.add(
        b.ashr(b.shl(twos, constant(twos.type, 16)), constant(twos.type, 16)), b.ashr(twos, constant(twos.type, 16))
    )
    fours = b.bitcast(twos, ir.VectorType(I64, count // 4))
    kind = ir.VectorType(I32, count // 4)
    return b.add(b.trunc(fours, kind), b.trunc(b.lshr(fours, constant(fours.type, 32)), kind))


def shuffle(b: ir.IRBuilder, table: ir.Value, index: ir.Value) -> ir.Value:
    """Byte ``index`` of a table of 16, which is there once in each 16 bytes."""
    result = constant(index.type, 0)
    for k in range(16):
        entry = b.shuffle_vector(table, table, constant(ir.VectorType(I32, index.type.count), k))
        result = b.select(b.icmp_signed("==", index, constant(index.type, k)), entry, result)
    return result


LEVEL = Level(
    name="generic",
    rank=0,
    targets=(
        Target(x86.X86_64, (), "x86-64", "+64bit,+cmov,+cx8,+fxsr,+mmx,+sse,+sse2"),
        Target(arm.AARCH64, (), "generic", "+neon,+fp-armv8"),
    ),
    lanes=16,
    tile=4,
    pairs=pairs,
    widen=widen,
    products_in_pair=1,
    shuffle=shuffle,
    shuffles=False,
)
