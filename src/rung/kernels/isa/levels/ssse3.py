"""SSSE3: Core 2 to Westmere, Atoms since 2008. ``pmaddubsw`` on 16 bytes."""

from rung.kernels.isa import x86
from rung.kernels.isa.level import Level, Target

LEVEL = Level(
    name="ssse3",
    rank=30,
    targets=(Target(x86.X86_64, ("ssse3",), "core2", x86.SSSE3),),
    lanes=4,
    tile=8,
    pairs=x86.pairs,
    widen=x86.widen,
    with_sign=x86.with_sign,
    shuffle=x86.shuffle,
    ahead=x86.AHEAD,
    barrier=True,
    multiplies="pmaddubsw",
    cores=("core2",),
)
