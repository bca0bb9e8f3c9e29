"""Between the file's blocks and the layouts of ``layouts``, bit for bit, for the formats with a layout of their own.

Every kernel is ``f(stored, row_bytes, packed, group_bytes, columns, first, last)``: [first, last) are rows,
``stored`` is the address of row ``first``, ``packed`` that of the whole packed weight. Codes move as words of four
columns.
"""

from __future__ import annotations

from rung.kernels.cpu.compiled import kernel
from rung.kernels.simd.scalar import read_u8, read_u16, read_u32, write_u8, write_u16, write_u32

_LOW = 0x0F0F0F0F
_TWO = 0x03030303
_FLIP = 0x80808080


@kernel(7)
def pack_q4_0(stored, row_bytes, packed, group_bytes, columns, first, last):
    """18 bytes a block: f16 scale, 16 bytes whose nibbles are columns i and i + 16."""
    for row in range(first, last):
        lane = row % 16
        source = stored + (row - first) * row_bytes
        place = packed + row // 16 * group_bytes
        for _ in range(columns // 32):
            write_u16(place + 2 * lane, read_u16(source))
            for j in range(4):
                write_u32(place + 32 + 64 * j + 4 * lane, read_u32(source + 2 + 4 * j))
            source += 18
            place += 288


@kernel(7)
def unpack_q4_0(stored, row_bytes, packed, group_bytes, columns, first, last):
    """The reverse of ``pack_q4_0``."""
    for row in range(first, last):
        lane = row % 16
        source = stored + (row - first) * row_bytes
        place = packed + row // 16 * group_bytes
        for _ in range(columns // 32):
            write_u16(source, read_u16(place + 2 * lane))
            for j in range(4):
                write_u32(source + 2 + 4 * j, read_u32(place + 32 + 64 * j + 4 * lane))
            source += 18
            place += 288


@kernel(7)
def pack_q8_0(stored, row_bytes, packed, group_bytes, columns, first, last):
    """34 bytes a block: f16 scale, 32 signed bytes, which become unsigned ones."""
    for row in range(first, last):
        lane = row % 16
        source = stored + (row - first) * row_bytes
        place = packed + row // 16 * group_bytes
        for _ in range(columns // 32):
            write_u16(place + 2 * lane, read_u16(source))
            for j in range(8):
                write_u32(place + 32 + 64 * j + 4 * lane, read_u32(source + 2 + 4 * j) ^ _FLIP)
            source += 34
            place += 544


@kernel(7)
def unpack_q8_0(stored, row_bytes, packed, group_bytes, columns, first, last):
    """The reverse of ``pack_q8_0``."""
    for row in range(first, last):
        lane = row % 16
        source = stored + (row - first) * row_bytes
        place = packed + row // 16 * group_bytes
        for _ in range(columns // 32):
            write_u16(source, read_u16(place + 2 * lane))
            for j in range(8):
                write_u32(source + 2 + 4 * j, read_u32(place + 32 + 64 * j + 4 * lane) ^ _FLIP)
            source += 34
            place += 544


@kernel(7)
def pack_q4_k(stored, row_bytes, packed, group_bytes, columns, first, last):
    """144 bytes a block: f16 scale and minimum, 12 bytes of 6-bit scales and minima, 128 bytes of nibbles."""
    for row in range(first, last):
        lane = row % 16
        source = stored + (row - first) * row_bytes
        place = packed + row // 16 * group_bytes
        for _ in range(columns // 256):
            write_u16(place + 2 * lane, read_u16(source))
            write_u16(place + 32 + 2 * lane, read_u16(source + 2))
            for u in range(8):
                unit = place + 64 + 288 * u
                if u < 4:
                    scale = read_u8(source + 4 + u) & 63
                    minimum = read_u8(source + 8 + u) & 63
                else:
                    last_bits = read_u8(source + 8 + u)
                    scale = (last_bits & 15) | (read_u8(source + u) >> 6 << 4)
                    minimum = (last_bits >> 4) | (read_u8(source + 4 + u) >> 6 << 4)
                write_u8(unit + lane, scale)
                write_u8(unit + 16 + lane, minimum)
                codes = source + 16 + 32 * (u // 2)
                shift = 4 * (u % 2)
                for j in range(4):
                    low = (read_u32(codes + 4 * j) >> shift) & _LOW
                    high = (read_u32(codes + 16 + 4 * j) >> shift) & _LOW
                    write_u32(unit + 32 + 64 * j + 4 * lane, low | (high << 4))
            source += 144
            place += 2368


@kernel(7)
def unpack_q4_k(stored, row_bytes, packed, group_bytes, columns, first, last):
    """The reverse of ``pack_q4_k``."""
    for row in range(first, last):
        lane = row % 16
        source = stored + (row - first) * row_bytes
        place = packed + row // 16 * group_bytes
        for _ in range(columns // 256):
            write_u16(source, read_u16(place + 2 * lane))
            write_u16(source + 2, read_u16(place + 32 + 2 * lane))
            for u in range(4):
                near = place + 64 + 288 * u + lane
                far = near + 4 * 288
                write_u8(source + 4 + u, read_u8(near) | (read_u8(far) >> 4 << 6))
                write_u8(source + 8 + u, read_u8(near + 16) | (read_u8(far + 16) >> 4 << 6))
                write_u8(source + 12 + u, (read_u8(far) & 15) | ((read_u8(far + 16) & 15) << 4))
                even = place + 64 + 576 * u + 32 + 4 * lane
                for j in range(4):
                    a = read_u32(even + 64 * j)
                    b = read_u32(even + 288 + 64 * j)
                    codes = source + 16 + 32 * u + 4 * j
                    write_u32(codes, (a & _LOW) | ((b & _LOW) << 4))
                    write_u32(codes + 16, ((a >> 4) & _LOW) | (((b >> 4) & _LOW) << 4))
            source += 144
            place += 2368


@kernel(7)
def pack_q6_k(stored, row_bytes, packed, group_bytes, columns, first, last):
    """210 bytes a block: low nibbles 128, high bits 64, signed scales 16, f16 scale."""
    for row in range(first, last):
        lane = row % 16
        source = stored + (row - first) * row_bytes
        place = packed + row // 16 * group_bytes
        for _ in range(columns // 256):
            write_u16(place + 2 * lane, read_u16(source + 208))
            for u in range(8):
                unit = place + 32 + 416 * u
                write_u8(unit + lane, read_u8(source + 192 + 2 * u))
                write_u8(unit + 16 + lane, read_u8(source + 193 + 2 * u))
                codes = source + 64 * (u // 4) + 32 * (u % 2)
                shift = 4 * (u % 4 // 2)
                for j in range(4):
                    low = (read_u32(codes + 4 * j) >> shift) & _LOW
                    high = (read_u32(codes + 16 + 4 * j) >> shift) & _LOW
                    write_u32(unit + 32 + 64 * j + 4 * lane, low | (high << 4))
                bits = source + 128 + 32 * (u // 4)
                for half in range(2):
                    word = 0
                    for j in range(4):
                        two = (read_u32(bits + 16 * half + 4 * j) >> (2 * (u % 4))) & _TWO
                        word |= two << (2 * j)
                    write_u32(unit + 288 + 64 * half + 4 * lane, word)
            source += 210
            place += 3360


@kernel(7)
def unpack_q6_k(stored, row_bytes, packed, group_bytes, columns, first, last):
    """The reverse of ``pack_q6_k``."""
    for row in range(first, last):
        lane = row % 16
        source = stored + (row - first) * row_bytes
        place = packed + row // 16 * group_bytes
        for _ in range(columns // 256):
            write_u16(source + 208, read_u16(place + 2 * lane))
            for u in range(8):
                unit = place + 32 + 416 * u
                write_u8(source + 192 + 2 * u, read_u8(unit + lane))
                write_u8(source + 193 + 2 * u, read_u8(unit + 16 + lane))
            for side in range(2):
                units = place + 32 + 1664 * side + 4 * lane
                for j in range(8):
                    codes = 32 + 64 * (j % 4)
                    shift = 4 * (j // 4)
                    planes = 288 + 64 * (j // 4)
                    high = 0
                    for q in range(4):
                        high |= ((read_u32(units + 416 * q + planes) >> (2 * (j % 4))) & _TWO) << (2 * q)
                    write_u32(source + 128 + 32 * side + 4 * j, high)
                    for pair in range(2):
                        low = (read_u32(units + 416 * pair + codes) >> shift) & _LOW
                        upper = (read_u32(units + 416 * (pair + 2) + codes) >> shift) & _LOW
                        write_u32(source + 64 * side + 32 * pair + 4 * j, low | (upper << 4))
            source += 210
            place += 3360


#: (pack, unpack) by the name of the layout.
NATIVE = {
    "q4_0": (pack_q4_0, unpack_q4_0),
    "q8_0": (pack_q8_0, unpack_q8_0),
    "q4_k": (pack_q4_k, unpack_q4_k),
    "q6_k": (pack_q6_k, unpack_q6_k),
}
