"""NEON: every 64-bit ARM, Cortex-A53 to A73 (Raspberry Pi 3 and 4). ``smlal`` on 16 bytes, in int16 as long as these
hold."""

from rung.kernels.isa import arm
from rung.kernels.isa.level import Level, Target

LEVEL = Level(
    name="neon",
    rank=30,
    targets=(Target(arm.AARCH64, ("neon",), "generic", arm.NEON),),
    lanes=4,
    tile=2,
    strip=8,
    groups_of_one_row=1,  # the sums of two groups are more than 32 registers hold
    pairs=arm.pairs,
    widen=arm.widen,
    products_in_pair=1,
    shuffle=arm.shuffle,
    fence=2,
    operand_of_lane=True,
    small_offsets=True,
    shifts_bytes=True,
    multiplies="smlal",
    cores=("cortex-a72",),
)
