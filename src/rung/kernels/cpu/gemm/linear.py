"""Products of packed weights with panels of activations: one kernel for each layout and tile of rows."""

from __future__ import annotations

import functools

from rung.kernels.cpu.compiled import Kernel, kernel
from rung.kernels.cpu.gemm.microkernel import multiply_groups

#: Rows of a panel: a call takes the smallest that holds its rows, and many rows are cut into the largest.
TILES = (1, 2, 4, 8)
#: Bytes of 16 rows below which one row of activations meets one group at a time: memory is then read in one piece. Two
#: pieces that short end before the prefetcher has learnt them: 128,256 rows of 768 columns took 5.5 ms instead of 3.2.
_SHORT = 1 << 14


@functools.cache
def multiply(layout: str, tile: int) -> Kernel:
    """The kernel of a layout and a tile.

    ``f(weights, table, x, y, stride, rows, lanes, first, last, group_bytes, from_block, to_block, row_header,
    block_bytes, panel_block, add)``: multiplies the groups of 16 rows [first, last) of a packed weight at
    ``weights``, in the blocks of columns [from_block, to_block), with a panel at ``x``, and writes float32
    [rows, lanes] to ``y`` with ``stride`` bytes between rows, where ``lanes`` is the number of rows of the whole
    weight. ``add`` other than 0 adds to what is there.

    Two groups are taken at a time, where rows are not short. That halves the broadcasts, and for a single row of
    activations it doubles the independent chains of additions: 15 became 23 GB/s for q4_0 in the L2 cache.
    """

    @kernel(16)
    def run(
        weights,
        table,
        x,
        y,
        stride,
        rows,
        lanes,
        first,
        last,
        group_bytes,
        from_block,
        to_block,
        row_header,
        block_bytes,
        panel_block,
        add,
    ):
        panel = x + from_block * panel_block
        place = row_header + from_block * block_bytes
        blocks = to_block - from_block
        group = first
        in_pairs = last if tile > 1 or group_bytes > _SHORT else first
        base = weights + first * group_bytes
        while group + 2 <= in_pairs:
            out, left = y + 64 * group, lanes - 16 * group
            multiply_groups(
                layout, tile, 2, base, group_bytes, table, panel, place, blocks, out, stride, rows, left, add
            )
            base += 2 * group_bytes
            group += 2
        while group < last:
            out, left = y + 64 * group, lanes - 16 * group
            multiply_groups(
                layout, tile, 1, base, group_bytes, table, panel, place, blocks, out, stride, rows, left, add
            )
            base += group_bytes
            group += 1

    return run
