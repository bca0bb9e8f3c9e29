"""AVX-512 with VNNI: Ice Lake, Zen 4, Sapphire Rapids and later. ``vpdpbusd`` on 64 bytes."""

from rung.kernels.isa import x86
from rung.kernels.isa.level import Level, Target

LEVEL = Level(
    name="avx512_vnni",
    rank=70,
    targets=(
        Target(
            x86.X86_64,
            ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512vnni"),
            "icelake-server",
            f"{x86.AVX512},+avx512vnni",
        ),
    ),
    lanes=16,
    tile=12,
    paired_tile=6,
    signed=False,
    dot=x86.dot,
    shuffle=x86.shuffle,
    permute=x86.permute,
    ahead=x86.AHEAD,
    masks=True,
    multiplies="vpdpbusd",
    cores=("icelake-server",),
)
