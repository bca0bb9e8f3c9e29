"""NEON with products of matrices: Neoverse V1 and N2 (Graviton 3), Apple M2, Cortex-A510 and later. ``sdot`` so far."""

from rung.kernels.isa import arm
from rung.kernels.isa.level import Level, Target

LEVEL = Level(
    name="neon_i8mm",
    rank=50,
    targets=(Target("aarch64", ("neon", "dotprod", "i8mm"), "generic", arm.I8MM),),
    lanes=4,
    groups_of_one_row=1,  # the sums of two groups are more than 32 registers hold
    dot=arm.dot,
    shuffle=arm.shuffle,
    pause=arm.pause,
    operand_of_lane=True,
)
