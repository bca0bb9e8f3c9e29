"""Between the stored blocks and the layouts of ``layouts``, bit for bit, for the formats with a layout of their own.

Every kernel is ``f(stored, place, lane, blocks, units)`` for one row of weights: the address of its first block, the
address behind the row header of its group of 16 rows, its number in that group, how many blocks it has, and how many
units of 32 columns a block has. Codes move as words of four columns. float32 scales are written by ``packing``.
"""

from __future__ import annotations

import numba

from rung.kernels.cpu.compiled import OPTIONS, kernel
from rung.kernels.isa.scalar import (
    call_address,
    offset_signed,
    read_u8,
    read_u16,
    read_u32,
    write_u8,
    write_u16,
    write_u32,
)

_LOW = 0x0F0F0F0F
_TWO = 0x03030303


@kernel(9)
def each_row(move, stored, row_bytes, packed, group_bytes, blocks, extra, first, last):
    """Calls ``move``, the address of a kernel of one row, for the rows [first, last); ``extra`` is its last argument.

    ``stored`` is the address of row ``first``, ``packed`` that behind the row header of the first group of all.
    """
    for row in range(first, last):
        source, group = stored + (row - first) * row_bytes, packed + row // 16 * group_bytes
        call_address(move, (source, group, row % 16, blocks, extra))


@kernel(5)
def pack_q4_0(stored, packed, lane, blocks, units):
    """18 bytes a block: f16 scale, 16 bytes whose nibbles are columns i and i + 16."""
    for _ in range(blocks):
        write_u16(packed + 2 * lane, read_u16(stored))
        for j in range(4):
            write_u32(packed + 32 + 64 * j + 4 * lane, read_u32(stored + 2 + 4 * j))
        stored += 18
        packed += 288


@kernel(5)
def unpack_q4_0(stored, packed, lane, blocks, units):
    """The reverse of ``pack_q4_0``."""
    for _ in range(blocks):
        write_u16(stored, read_u16(packed + 2 * lane))
        for j in range(4):
            write_u32(stored + 2 + 4 * j, read_u32(packed + 32 + 64 * j + 4 * lane))
        stored += 18
        packed += 288


@kernel(5)
def pack_q8_0(stored, packed, lane, blocks, units):
    """34 bytes a block: f16 scale, 32 signed bytes, which become unsigned ones where packed bytes are."""
    for _ in range(blocks):
        write_u16(packed + 2 * lane, read_u16(stored))
        for j in range(8):
            write_u32(packed + 32 + 64 * j + 4 * lane, offset_signed(read_u32(stored + 2 + 4 * j)))
        stored += 34
        packed += 544


@kernel(5)
def unpack_q8_0(stored, packed, lane, blocks, units):
    """The reverse of ``pack_q8_0``."""
    for _ in range(blocks):
        write_u16(stored, read_u16(packed + 2 * lane))
        for j in range(8):
            write_u32(stored + 2 + 4 * j, offset_signed(read_u32(packed + 32 + 64 * j + 4 * lane)))
        stored += 34
        packed += 544


@kernel(5)
def pack_int8(stored, packed, lane, blocks, units):
    """32 signed bytes a block, which become unsigned ones where packed bytes are; scales are apart."""
    for _ in range(blocks):
        for j in range(8):
            write_u32(packed + 64 * j + 4 * lane, offset_signed(read_u32(stored + 4 * j)))
        stored += 32
        packed += 512


@kernel(5)
def unpack_int8(stored, packed, lane, blocks, units):
    """The reverse of ``pack_int8``."""
    for _ in range(blocks):
        for j in range(8):
            write_u32(stored + 4 * j, offset_signed(read_u32(packed + 64 * j + 4 * lane)))
        stored += 32
        packed += 512


@numba.njit(**OPTIONS)
def _codes_of(pairs):
    """Four codes of two bytes, each with its first code in the high nibble, as four bytes."""
    return (pairs >> 4 & 15) | (pairs & 15) << 8 | (pairs >> 12 & 15) << 16 | (pairs >> 8 & 15) << 24


@numba.njit(**OPTIONS)
def _pairs_of(codes):
    """The reverse of ``_codes_of``."""
    return (codes & 15) << 4 | (codes >> 8 & 15) | (codes >> 16 & 15) << 12 | (codes >> 24 & 15) << 8


@kernel(5)
def pack_codebook(stored, packed, lane, blocks, units):
    """Nibbles of columns 2 i (high) and 2 i + 1; ``units`` of 32 a block, before which is room for its scale."""
    for _ in range(blocks):
        packed += 64
        for _ in range(units):
            for j in range(4):
                low, high = _codes_of(read_u16(stored + 2 * j)), _codes_of(read_u16(stored + 8 + 2 * j))
                write_u32(packed + 64 * j + 4 * lane, low | (high << 4))
            stored += 16
            packed += 256


@kernel(5)
def unpack_codebook(stored, packed, lane, blocks, units):
    """The reverse of ``pack_codebook``."""
    for _ in range(blocks):
        packed += 64
        for _ in range(units):
            for j in range(4):
                word = read_u32(packed + 64 * j + 4 * lane)
                write_u16(stored + 2 * j, _pairs_of(word))
                write_u16(stored + 8 + 2 * j, _pairs_of(word >> 4))
            stored += 16
            packed += 256


@numba.njit(**OPTIONS)
def scale_of(scales, unit):
    """The 6-bit scale of a unit of Q4_K or Q5_K, of the 12 bytes at ``scales``."""
    if unit < 4:
        return read_u8(scales + unit) & 63
    return (read_u8(scales + 4 + unit) & 15) | (read_u8(scales + unit - 4) >> 6 << 4)


@numba.njit(**OPTIONS)
def minimum_of(scales, unit):
    """The 6-bit minimum of a unit of Q4_K or Q5_K, of the 12 bytes at ``scales``."""
    if unit < 4:
        return read_u8(scales + 4 + unit) & 63
    return (read_u8(scales + 4 + unit) >> 4) | (read_u8(scales + unit) >> 6 << 4)


@kernel(5)
def pack_q4_k(stored, packed, lane, blocks, units):
    """144 bytes a block: f16 scale and minimum, 12 bytes of 6-bit scales and minima, 128 bytes of nibbles."""
    for _ in range(blocks):
        write_u16(packed + 2 * lane, read_u16(stored))
        write_u16(packed + 32 + 2 * lane, read_u16(stored + 2))
        for u in range(8):
            unit = packed + 64 + 288 * u
            write_u8(unit + lane, scale_of(stored + 4, u))
            write_u8(unit + 16 + lane, minimum_of(stored + 4, u))
            codes = stored + 16 + 32 * (u // 2)
            shift = 4 * (u % 2)
            for j in range(4):
                low = (read_u32(codes + 4 * j) >> shift) & _LOW
                high = (read_u32(codes + 16 + 4 * j) >> shift) & _LOW
                write_u32(unit + 32 + 64 * j + 4 * lane, low | (high << 4))
        stored += 144
        packed += 2368


@kernel(5)
def unpack_q4_k(stored, packed, lane, blocks, units):
    """The reverse of ``pack_q4_k``."""
    for _ in range(blocks):
        write_u16(stored, read_u16(packed + 2 * lane))
        write_u16(stored + 2, read_u16(packed + 32 + 2 * lane))
        for u in range(4):
            near = packed + 64 + 288 * u + lane
            far = near + 4 * 288
            write_u8(stored + 4 + u, read_u8(near) | (read_u8(far) >> 4 << 6))
            write_u8(stored + 8 + u, read_u8(near + 16) | (read_u8(far + 16) >> 4 << 6))
            write_u8(stored + 12 + u, (read_u8(far) & 15) | ((read_u8(far + 16) & 15) << 4))
            even = packed + 64 + 576 * u + 32 + 4 * lane
            for j in range(4):
                a = read_u32(even + 64 * j)
                b = read_u32(even + 288 + 64 * j)
                codes = stored + 16 + 32 * u + 4 * j
                write_u32(codes, (a & _LOW) | ((b & _LOW) << 4))
                write_u32(codes + 16, ((a >> 4) & _LOW) | (((b >> 4) & _LOW) << 4))
        stored += 144
        packed += 2368


@kernel(5)
def pack_q6_k(stored, packed, lane, blocks, units):
    """210 bytes a block: low nibbles 128, high bits 64, signed scales 16, f16 scale."""
    for _ in range(blocks):
        write_u16(packed + 2 * lane, read_u16(stored + 208))
        for u in range(8):
            unit = packed + 32 + 416 * u
            write_u8(unit + lane, read_u8(stored + 192 + 2 * u))
            write_u8(unit + 16 + lane, read_u8(stored + 193 + 2 * u))
            codes = stored + 64 * (u // 4) + 32 * (u % 2)
            shift = 4 * (u % 4 // 2)
            for j in range(4):
                low = (read_u32(codes + 4 * j) >> shift) & _LOW
                high = (read_u32(codes + 16 + 4 * j) >> shift) & _LOW
                write_u32(unit + 32 + 64 * j + 4 * lane, low | (high << 4))
            bits = stored + 128 + 32 * (u // 4)
            for half in range(2):
                word = 0
                for j in range(4):
                    two = (read_u32(bits + 16 * half + 4 * j) >> (2 * (u % 4))) & _TWO
                    word |= two << (2 * j)
                write_u32(unit + 288 + 64 * half + 4 * lane, word)
        stored += 210
        packed += 3360


@kernel(5)
def unpack_q6_k(stored, packed, lane, blocks, units):
    """The reverse of ``pack_q6_k``."""
    for _ in range(blocks):
        write_u16(stored + 208, read_u16(packed + 2 * lane))
        for u in range(8):
            unit = packed + 32 + 416 * u
            write_u8(stored + 192 + 2 * u, read_u8(unit + lane))
            write_u8(stored + 193 + 2 * u, read_u8(unit + 16 + lane))
        for side in range(2):
            units = packed + 32 + 1664 * side + 4 * lane
            for j in range(8):
                codes = 32 + 64 * (j % 4)
                shift = 4 * (j // 4)
                planes = 288 + 64 * (j // 4)
                high = 0
                for q in range(4):
                    high |= ((read_u32(units + 416 * q + planes) >> (2 * (j % 4))) & _TWO) << (2 * q)
                write_u32(stored + 128 + 32 * side + 4 * j, high)
                for pair in range(2):
                    low = (read_u32(units + 416 * pair + codes) >> shift) & _LOW
                    upper = (read_u32(units + 416 * (pair + 2) + codes) >> shift) & _LOW
                    write_u32(stored + 64 * side + 32 * pair + 4 * j, low | (upper << 4))
        stored += 210
        packed += 3360


#: (pack, unpack) of a row by the name of the layout; nf4 and fp4 of any block are ``codebook``.
NATIVE = {
    "q4_0": (pack_q4_0, unpack_q4_0),
    "q8_0": (pack_q8_0, unpack_q8_0),
    "q4_k": (pack_q4_k, unpack_q4_k),
    "q6_k": (pack_q6_k, unpack_q6_k),
    "int8": (pack_int8, unpack_int8),
    "codebook": (pack_codebook, unpack_codebook),
}
