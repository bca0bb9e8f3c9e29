"""NEON with products of matrices: Neoverse V1 and N2 (Graviton 3), Apple M2, Cortex-A510 and later. ``smmla`` for
prompts, ``sdot`` for single rows."""

from rung.kernels.isa import arm
from rung.kernels.isa.level import Level, Target

LEVEL = Level(
    name="neon_i8mm",
    rank=50,
    targets=(Target(arm.AARCH64, ("neon", "dotprod", "i8mm"), "generic", arm.I8MM),),
    lanes=4,
    tile=8,
    strip=4,
    groups_of_one_row=1,  # the sums of two groups are more than 32 registers hold
    dot=arm.dot,
    matrix=arm.matrix,
    shuffle=arm.shuffle,
    fence=4,
    operand_of_lane=True,
    interleave=8,
    small_offsets=True,
    shifts_bytes=True,
    multiplies="sdot|usdot|smmla",
    cores=("neoverse-n2", "neoverse-v1"),
)
