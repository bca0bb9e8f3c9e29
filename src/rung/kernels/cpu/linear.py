"""Products of packed weights with panels of activations: one kernel for each layout and tile of rows."""

from __future__ import annotations

import functools

from rung.kernels.cpu.compiled import Kernel, kernel
from rung.kernels.cpu.unit import multiply_groups

#: Rows of a panel: a call takes the smallest that holds its rows, and many rows are cut into the largest.
TILES = (1, 2, 4, 8)


@functools.cache
def multiply(layout: str, tile: int, wide: int = 1) -> Kernel:
    """The kernel of a layout and a tile that takes ``wide`` groups of 16 rows at a time.

    ``f(weights, table, x, y, stride, rows, lanes, first, last, group_bytes, from_block, to_block, row_header,
    block_bytes, panel_block, add)``: multiplies the groups of 16 rows [first, last), a multiple of ``wide``, of a
    packed weight at ``weights``, in the blocks of columns [from_block, to_block), with a panel at ``x``, and writes
    float32 [rows, lanes] to ``y`` with ``stride`` bytes between rows, where ``lanes`` is the number of rows of the
    whole weight. ``add`` other than 0 adds to what is there.
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
        for group in range(first, last, wide):
            multiply_groups(
                layout,
                tile,
                wide,
                weights + group * group_bytes,
                group_bytes,
                table,
                x + from_block * panel_block,
                row_header + from_block * block_bytes,
                to_block - from_block,
                y + 64 * group,
                stride,
                rows,
                lanes - 16 * group,
                add,
            )

    return run
