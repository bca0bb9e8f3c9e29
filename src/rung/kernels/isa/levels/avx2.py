"""AVX2: Haswell to Comet Lake, Zen 1 to 3. ``vpmaddubsw`` on 32 bytes, sums in int16 as long as these hold."""

from rung.kernels.isa import x86
from rung.kernels.isa.level import Level, Target

LEVEL = Level(
    name="avx2",
    rank=40,
    targets=(Target(x86.X86_64, ("avx2", "fma", "f16c"), "haswell", x86.AVX2),),
    lanes=8,
    tile=6,
    flipped_tile=4,
    pairs=x86.pairs,
    widen=x86.widen,
    with_sign=x86.with_sign,
    shuffle=x86.shuffle,
    ahead=x86.AHEAD,
    barrier=True,
    multiplies="vpmaddubsw",
    cores=("znver2", "haswell"),
)
