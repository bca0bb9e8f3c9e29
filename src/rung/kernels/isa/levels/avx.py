"""AVX without AVX2: Sandy and Ivy Bridge, Bulldozer, Jaguar. ``vpmaddubsw`` on 16 bytes: instructions of three
registers, which copy none. 8 rows of weights in a tile of 6: 16 registers hold most of the sums, not all codes."""

from rung.kernels.isa import x86
from rung.kernels.isa.level import Level, Target

LEVEL = Level(
    name="avx",
    rank=35,
    targets=(Target(x86.X86_64, ("avx",), "sandybridge", f"{x86.SSSE3},+sse4.1,+sse4.2,+popcnt,+avx,+xsave"),),
    lanes=4,
    tile=6,
    strip=8,
    pairs=x86.pairs,
    widen=x86.widen,
    with_sign=x86.with_sign,
    shuffle=x86.shuffle,
    ahead=x86.AHEAD,
    barrier=True,
    multiplies="vpmaddubsw",
    cores=("sandybridge", "ivybridge", "bdver1", "btver2"),
)
