"""Weights that stay as their file stores them: groups of 16 rows are packed whenever they are multiplied.

A packing may take up to four times the bytes of a file (iq1_s 5 instead of 1.6 bits a weight). Where memory is short
the file's own pages are read instead, which the system may drop and read again, and each thread packs some columns of
two groups of rows into memory of its own, which stays in its caches. The kernels and their results are those of packed
weights. A token costs as many packed weights as the model has, so decoding is slower; a prompt shares them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numba
import numpy as np
import numpy.typing as npt

from rung.core.types import Format
from rung.kernels.cpu.compiled import OPTIONS, Kernel, kernel
from rung.kernels.cpu.pack.codebooks import grid_codes
from rung.kernels.cpu.pack.generic import PLAIN
from rung.kernels.cpu.pack.grids import GRIDS
from rung.kernels.cpu.pack.layouts import ROWS, UNIT, Layout, is_generic
from rung.kernels.cpu.pack.native import NATIVE
from rung.kernels.isa.generic import read_int
from rung.kernels.isa.scalar import call_address

#: Columns that are packed at once: two groups of them then take at most 40 kB.
_COLUMNS = 1024
#: Groups of rows that a thread packs at once.
AT_ONCE = 2
#: Offsets in bytes of the words of a weight: the address of its first row, bytes of a row, rows, and the kernel that
#: packs a row with its last argument.
_STORED, _ROW_BYTES, _COUNT, _MOVE, _EXTRA = range(0, 40, 8)
#: Blocks of the layout in a block of the format, bytes of the latter in the file, of the former in memory.
_BLOCKS, _STORED_BYTES, _PACKED_BYTES = range(40, 64, 8)
#: For a single row of activations: the kernel that multiplies, its codebook, blocks of the layout in a row and in what
#: is packed at once, bytes of a panel for a block.
_MULTIPLY, _TABLE, _ALL, _STEP, _PANEL = range(64, 104, 8)
_WORDS = 13


@dataclass(frozen=True, eq=False)
class Mapped:
    """Describe to kernels how a stored weight is packed: ``words``, and ``keep`` what they point to."""

    words: npt.NDArray[np.int64]
    step: int
    group_bytes: int
    keep: list[Any] = field(repr=False)

    @property
    def address(self) -> int:
        """Where the words lie."""
        return int(self.words.ctypes.data)

    @property
    def scratch(self) -> int:
        """Bytes that a thread packs into; 64 divides them."""
        return AT_ONCE * self.group_bytes

    def with_kernel(self, multiply: int, table: int, panel_block: int) -> npt.NDArray[np.int64]:
        """The words for a single row of activations: the address of the kernel of the layout, of its codebook, and the
        bytes of a panel for a block."""
        words = self.words.copy()
        words[_MULTIPLY // 8], words[_TABLE // 8], words[_PANEL // 8] = multiply, table, panel_block
        return words


def packer(format: Format, layout: Layout) -> tuple[Kernel, int, int, Any]:
    """Return the kernel that packs a row, the columns of the blocks that it counts, its last argument, and the object
    that must stay alive for it."""
    if not is_generic(format):
        block = layout.block
        return NATIVE[layout.name if layout.name in NATIVE else "codebook"][0], block, block // UNIT, None
    codes = grid_codes(format.name)  # kept: threads that ask first at the same time each get an array of their own
    move = PLAIN[format.name] if format.name in PLAIN else GRIDS[format.name]
    return move, format.block, codes.ctypes.data, codes


def describe(format: Format, layout: Layout, rows: npt.NDArray[np.uint8], columns: int) -> Mapped:
    """Return how such a weight is packed; ``rows`` are its stored bytes [rows, bytes of a row]."""
    move, block, extra, codes = packer(format, layout)
    wide = max(block, layout.block)
    step = max(_COLUMNS // wide, 1) * wide // layout.block
    words = np.zeros(_WORDS, np.int64)
    words[_STORED // 8], words[_ROW_BYTES // 8], words[_COUNT // 8] = rows.ctypes.data, rows.strides[0], len(rows)
    words[_MOVE // 8], words[_EXTRA // 8] = move.address, extra
    words[_BLOCKS // 8] = block // layout.block
    words[_STORED_BYTES // 8], words[_PACKED_BYTES // 8] = rows.shape[1] // (columns // block), layout.block_bytes
    words[_ALL // 8], words[_STEP // 8] = columns // layout.block, step
    group_bytes = -(-step * layout.block_bytes // 64) * 64
    return Mapped(words, step, group_bytes, [rows, codes])


@numba.njit(**OPTIONS)
def fill_scratch(words, group, until, block, to_block, scratch, group_bytes):
    """Pack the blocks [block, to_block) of the layout of the groups [group, until) at ``scratch``."""
    blocks, move, extra = read_int(words + _BLOCKS), read_int(words + _MOVE), read_int(words + _EXTRA)
    row_bytes, last = read_int(words + _ROW_BYTES), min(ROWS * until, read_int(words + _COUNT))
    source = read_int(words + _STORED) + block // blocks * read_int(words + _STORED_BYTES)
    for row in range(ROWS * group, last):
        target = scratch + (row // ROWS - group) * group_bytes
        call_address(move, (source + row * row_bytes, target, row % ROWS, (to_block - block) // blocks, extra))


@kernel(16)
def multiply_mapped(words, group_bytes, x, y, lanes, away, u0, first, last, u1, u2, u3, u4, u5, u6, u7):
    """The groups [first, last) times one row of activations, called as the kernels of packed weights are; the scratch
    of the thread lies ``away`` bytes behind its panel at ``x``."""
    scratch, blocks, step = x + away, read_int(words + _ALL), read_int(words + _STEP)
    packed, multiply, table = read_int(words + _PACKED_BYTES), read_int(words + _MULTIPLY), read_int(words + _TABLE)
    panel = read_int(words + _PANEL)
    for group in range(first, last):
        for block in range(0, blocks, step):
            until = min(block + step, blocks)
            fill_scratch(words, group, group + 1, block, until, scratch, group_bytes)
            base = scratch - block * packed
            result = y + 64 * group
            left, add = lanes - ROWS * group, (1 if block > 0 else 0) + (2 if until < blocks else 0)
            call_address(
                multiply, (base, table, x, result, 0, 1, left, 0, 1, group_bytes, block, until, 0, packed, panel, add)
            )
