"""AVX-VNNI: Alder Lake and later without AVX-512. ``vpdpbusd`` on 32 bytes."""

from rung.kernels.isa import x86
from rung.kernels.isa.level import Level, Target

LEVEL = Level(
    name="avx_vnni",
    rank=50,
    targets=(  # the instruction has two encodings: VEX, and EVEX where AVX-512 is
        Target(x86.X86_64, ("avx2", "fma", "f16c", "avxvnni"), "haswell", f"{x86.AVX2},+avxvnni"),
        Target(x86.X86_64, ("avx2", "fma", "f16c", "avx512vl", "avx512vnni"), "haswell", f"{x86.AVX512},+avx512vnni"),
    ),
    lanes=8,
    signed=False,
    dot=x86.dot,
    shuffle=x86.shuffle,
    ahead=x86.AHEAD,
    multiplies="vpdpbusd",
    cores=("alderlake",),
)
