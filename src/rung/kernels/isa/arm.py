"""Instructions of ARM processors by name, for 16 bytes: NEON, the products of ``dotprod`` and of ``i8mm``."""

from __future__ import annotations

from llvmlite import ir

from rung.kernels.isa.emit import I8, I16, I32, call, constant
from rung.kernels.isa.level import Architecture

_BYTES, _WORDS, _INTS = ir.VectorType(I8, 16), ir.VectorType(I16, 8), ir.VectorType(I32, 4)


def pairs(b: ir.IRBuilder, codes: ir.Value, x: ir.Value) -> list[ir.Value]:
    """``smull`` and ``smull2``, with an addition ``smlal`` and ``smlal2``: products of signed bytes, in int16."""
    products = []
    for at in (0, 8):
        half = constant(ir.VectorType(I32, 8), range(at, at + 8))
        u, v = (b.sext(b.shuffle_vector(each, each, half), _WORDS) for each in (codes, x))
        products.append(b.mul(u, v))
    return products


def widen(b: ir.IRBuilder, words: list[ir.Value]) -> ir.Value:
    """``saddlp`` of both and ``addp``: sums of four neighbors, in int32."""
    pairs = [call(b, "llvm.aarch64.neon.saddlp.v4i32.v8i16", _INTS, [word]) for word in words]
    return call(b, "llvm.aarch64.neon.addp.v4i32", _INTS, pairs)


def shuffle(b: ir.IRBuilder, table: ir.Value, index: ir.Value) -> ir.Value:
    """``tbl``: a byte of the 16 of the table, zero where the index is larger."""
    return call(b, "llvm.aarch64.neon.tbl1.v16i8", _BYTES, [table, index])


def dot(b: ir.IRBuilder, sums: ir.Value, codes: ir.Value, x: ir.Value) -> ir.Value:
    """``sdot``: four products of signed bytes, added to each int32; four bytes of x may be those of one lane."""
    return call(b, "llvm.aarch64.neon.sdot.v4i32.v16i8", _INTS, [sums, codes, x])


def matrix(b: ir.IRBuilder, sums: ir.Value, codes: ir.Value, x: ir.Value) -> ir.Value:
    """``smmla``: products of two rows of eight signed bytes with two others, added to int32: 2 x 2, row after row."""
    return call(b, "llvm.aarch64.neon.smmla.v4i32.v16i8", _INTS, [sums, codes, x])


def pause(b: ir.IRBuilder) -> None:
    """``yield``: a hint that the thread waits."""
    call(b, "llvm.aarch64.hint", ir.VoidType(), [I32(1)])


AARCH64 = Architecture("aarch64", "w", pause, signed_bytes=True)

#: Features of LLVM by generation, to compile for no more than that.
NEON = "+neon,+fp-armv8"
DOTPROD = f"{NEON},+lse,+rdm,+fullfp16,+dotprod"
I8MM = f"{DOTPROD},+i8mm"
