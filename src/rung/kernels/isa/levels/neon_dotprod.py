"""NEON with products: Cortex-A76 (Raspberry Pi 5), Neoverse N1 (Graviton 2), Apple M1. ``sdot`` on 16 bytes."""

from rung.kernels.isa import arm
from rung.kernels.isa.level import Level, Target

LEVEL = Level(
    name="neon_dotprod",
    rank=40,
    targets=(Target(arm.AARCH64, ("neon", "dotprod"), "generic", arm.DOTPROD),),
    lanes=4,
    tile=8,
    strip=4,
    groups_of_one_row=1,  # the sums of two groups are more than 32 registers hold
    dot=arm.dot,
    shuffle=arm.shuffle,
    fence=4,
    operand_of_lane=True,
    interleave=4,
    small_offsets=True,
    shifts_bytes=True,
    multiplies="sdot",
    cores=("cortex-a76", "apple-m1"),
)
