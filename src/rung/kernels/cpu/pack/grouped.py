"""From the blocks of ``rung.formats.families.grouped`` to the generic layouts with minima: ``(code - zero) * scale``
becomes ``scale * code + minimum``.

Kernels of one row as in ``pack_generic``; their last argument is made by ``how``. With scales of 16 bits and whole zero
points the result is the decoded weight bit for bit. There is no way back: the stored weight is kept.
"""

from __future__ import annotations

import numba

from rung.core.types import Format
from rung.formats.families.grouped import SCALES, scale_of
from rung.kernels.cpu.compiled import OPTIONS, kernel
from rung.kernels.cpu.pack.generic import read_half
from rung.kernels.isa.scalar import as_f32, offset_unsigned, read_u8, read_u16, read_u32, write_f32, write_u32

_KINDS = tuple(SCALES)  # f32, f16, bf16
_UNIT = 32


def how(format: Format) -> int:
    """The last argument of a kernel: the units of 32 columns in a block, and the dtype of the scales."""
    return format.block // _UNIT * len(_KINDS) + _KINDS.index(scale_of(format))


@numba.njit(**OPTIONS)
def _read(address, kind):
    if kind == 0:
        return as_f32(read_u32(address))
    return read_half(address) if kind == 1 else as_f32(read_u16(address) << 16)


@numba.njit(**OPTIONS)
def _headers(stored, packed, kind, width):
    """Writes the scale of a block and what stands for its zero point, before one of its units."""
    scale = _read(stored, kind)
    write_f32(packed, scale)
    write_f32(packed + 64, -_read(stored + width, kind) * scale)


@numba.njit(**OPTIONS)
def _four_nibbles(address):
    """Two bytes of codes of 4 bits as four bytes, the first in the lowest bits."""
    x = read_u16(address)
    x = (x | (x << 8)) & 0x00FF00FF
    return (x | (x << 4)) & 0x0F0F0F0F


@numba.njit(**OPTIONS)
def _four_pairs(address):
    """A byte of codes of 2 bits as four bytes."""
    x = read_u8(address)
    x = (x | (x << 12)) & 0x000F000F
    return (x | (x << 6)) & 0x03030303


@kernel(5)
def pack_u2(stored, packed, lane, blocks, extra):
    """Scale, zero point, 8 bytes for each 32 columns."""
    units, kind = extra // 3, extra % 3
    width = 4 if kind == 0 else 2
    packed += 4 * lane
    for _ in range(blocks):
        codes = stored + 2 * width
        for _ in range(units):
            _headers(stored, packed, kind, width)
            for j in range(4):
                write_u32(packed + 128 + 64 * j, _four_pairs(codes + j) | (_four_pairs(codes + 4 + j) << 4))
            codes += 8
            packed += 384
        stored = codes


@kernel(5)
def pack_u4(stored, packed, lane, blocks, extra):
    """Scale, zero point, 16 bytes for each 32 columns."""
    units, kind = extra // 3, extra % 3
    width = 4 if kind == 0 else 2
    packed += 4 * lane
    for _ in range(blocks):
        codes = stored + 2 * width
        for _ in range(units):
            _headers(stored, packed, kind, width)
            for j in range(4):
                both = _four_nibbles(codes + 2 * j) | (_four_nibbles(codes + 8 + 2 * j) << 4)
                write_u32(packed + 128 + 64 * j, both)
            codes += 16
            packed += 384
        stored = codes


@kernel(5)
def pack_u8(stored, packed, lane, blocks, extra):
    """Scale, zero point, 32 bytes for each 32 columns."""
    units, kind = extra // 3, extra % 3
    width = 4 if kind == 0 else 2
    packed += 4 * lane
    for _ in range(blocks):
        codes = stored + 2 * width
        for _ in range(units):
            _headers(stored, packed, kind, width)
            for j in range(8):
                write_u32(packed + 128 + 64 * j, offset_unsigned(read_u32(codes + 4 * j)))
            codes += 32
            packed += 640
        stored = codes


#: The kernel of a row by kind of format.
GROUPED = {"u2": pack_u2, "u4": pack_u4, "u8": pack_u8}
