"""Products of bytes and shuffles of bytes for the levels of x86, for any width of register."""

from __future__ import annotations

from llvmlite import ir

from rung.kernels.isa.emit import I16, I32, LLVM_VERSION, call, constant
from rung.kernels.isa.level import Architecture

#: Bytes of packed weights that are on their way while others are multiplied. Without prefetching, reading and
#: multiplying took turns on a Zen 5: four rows of q4_0 took 2.4 times as long from memory as from a cache. Half as many
#: bytes made 8 rows of q8_0 1.2 times as slow, half as many again changed less than 10 %.
AHEAD = 8192
_PREFIX = {4: ("ssse3.", ".128"), 8: ("avx2.", ""), 16: ("avx512.", ".512")}
_WIDEN = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}


def _lanes(x: ir.Value) -> int:
    return int(x.type.count) // 4


def pairs(b: ir.IRBuilder, codes: ir.Value, x: ir.Value) -> list[ir.Value]:
    """``vpmaddubsw``: sums of two products of an unsigned and a signed byte, in int16."""
    lanes = _lanes(codes)
    name = "avx512.pmaddubs.w.512" if lanes == 16 else "{}pmadd.ub.sw{}".format(*_PREFIX[lanes])
    return [call(b, f"llvm.x86.{name}", ir.VectorType(I16, 2 * lanes), [codes, x])]


def widen(b: ir.IRBuilder, words: list[ir.Value]) -> ir.Value:
    """``vpmaddwd`` with ones: sums of two int16, in int32."""
    kind = words[0].type
    lanes = kind.count // 2
    return call(b, f"llvm.x86.{_WIDEN[lanes]}", ir.VectorType(I32, lanes), [words[0], constant(kind, 1)])


def with_sign(b: ir.IRBuilder, x: ir.Value, codes: ir.Value) -> ir.Value:
    """``vpsignb``: x with the signs of the codes, 0 where they are 0."""
    return call(b, "llvm.x86.{}psign.b{}".format(*_PREFIX[_lanes(x)]), x.type, [x, codes])


def shuffle(b: ir.IRBuilder, table: ir.Value, index: ir.Value) -> ir.Value:
    """``vpshufb``: byte ``index & 15`` of the same 16 bytes of the table, zero where the index has its top bit set."""
    return call(b, "llvm.x86.{}pshuf.b{}".format(*_PREFIX[_lanes(index)]), index.type, [table, index])


def permute(b: ir.IRBuilder, table: ir.Value, index: ir.Value) -> ir.Value:
    """``vpermps``, ``vpermw``: values of a whole register of 16 float32 or 32 int16, by the low bits of each index."""
    name = "sf" if table.type.count == 16 else "hi"
    return call(b, f"llvm.x86.avx512.permvar.{name}.512", table.type, [table, index])


def pause(b: ir.IRBuilder) -> None:
    """``pause``, which processors before SSE2 take for nothing to do."""
    call(b, "llvm.x86.sse2.pause", ir.VoidType(), [])


def dot(b: ir.IRBuilder, sums: ir.Value, codes: ir.Value, x: ir.Value) -> ir.Value:
    """``vpdpbusd``: four products of unsigned and signed bytes, added to each int32."""
    lanes = sums.type.count
    if LLVM_VERSION < (22,):  # declares the operands as int32
        codes, x = b.bitcast(codes, sums.type), b.bitcast(x, sums.type)
    return call(b, f"llvm.x86.avx512.vpdpbusd.{32 * lanes}", sums.type, [sums, codes, x])


X86_64 = Architecture("x86_64", "x", pause, converts_halves="f16c")

#: Features of LLVM by generation, to compile for no more than that.
SSSE3 = "+64bit,+cmov,+cx8,+cx16,+fxsr,+mmx,+sahf,+sse,+sse2,+sse3,+ssse3"
AVX2 = f"{SSSE3},+sse4.1,+sse4.2,+popcnt,+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe,+xsave"
AVX512 = f"{AVX2},+avx512f,+avx512bw,+avx512dq,+avx512vl,+avx512cd"
