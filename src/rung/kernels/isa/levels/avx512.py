"""AVX-512 without VNNI: Skylake-X, Cascade Lake's predecessors, Xeon Scalable of 2017. ``vpmaddubsw`` on 64 bytes."""

from __future__ import annotations

from llvmlite import ir

from rung.kernels.isa import x86
from rung.kernels.isa.emit import constant
from rung.kernels.isa.level import Level, Target


def with_sign(b: ir.IRBuilder, x: ir.Value, codes: ir.Value) -> ir.Value:
    """x with the signs of the codes: AVX-512 has no ``vpsignb``, a subtraction under a mask takes its place."""
    none = constant(x.type, 0)
    return b.select(b.icmp_signed("<", codes, none), b.sub(none, x), x)


LEVEL = Level(
    name="avx512",
    rank=60,
    targets=(Target(x86.X86_64, ("avx512f", "avx512bw", "avx512dq", "avx512vl"), "skylake-avx512", x86.AVX512),),
    lanes=16,
    tile=12,
    pairs=x86.pairs,
    widen=x86.widen,
    with_sign=with_sign,
    shuffle=x86.shuffle,
    permute=x86.permute,
    ahead=x86.AHEAD,
    barrier=True,
    masks=True,
    multiplies="vpmaddubsw",
    cores=("skylake-avx512",),
)
