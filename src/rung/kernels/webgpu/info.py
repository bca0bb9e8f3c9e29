"""The words that a step gives its kernels: the position of each row, where the block table of its sequence begins, the
rows of which logits are computed, the ids of tokens, and how many tokens the GPU has chosen since they were written."""

from __future__ import annotations

from collections.abc import Sequence

#: Rows of activations that kernels compute at most, and those of them that one workgroup of a product computes: its
#: neighbors compute the others with the same weights at the same time, which are read from memory once.
MOST_ROWS, SHARED_ROWS = 64, 16
#: Rows of logits at most, and tokens that are chosen by the device one after the other.
MOST_LOGITS, MOST_AHEAD = 16, 16
POSITION, TABLE, SELECTED, TOKEN, AHEAD, INFO = 0, 64, 128, 192, 256, 260
#: Positions up to which attention has a workgroup a head; beyond, the least positions of one, and the most workgroups.
ONE_PART, PART, MOST_PARTS = 1024, 256, 16


def part_bytes(heads: int, size: int) -> int:
    """Return the bytes that parts of attention leave, of heads of ``size`` numbers: of each row, head and part its
    sums, largest score and sum of weights."""
    return 4 * MOST_ROWS * heads * MOST_PARTS * (size + 2)


def declare(kinds: Sequence[str], writes: Sequence[int]) -> str:
    """Return the declarations of a shader's buffers, ``name: type`` each, of which some are written."""
    access = ["read_write" if number in writes else "read" for number in range(len(kinds))]
    return "\n".join(
        f"@group(0) @binding({number}) var<storage, {mode}> {kind};"
        for number, (mode, kind) in enumerate(zip(access, kinds, strict=True))
    )
