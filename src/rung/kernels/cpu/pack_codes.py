"""Between codes (a byte a weight) with float32 scales and the layouts that hold them so: int8, nf4, fp4, generic.

``f(codes, scales, minima, packed, group_bytes, columns, group, block, nibbles, row_header, first, last)``: codes
uint8 [last - first, columns] (already above zero), scales and minima float32 [last - first, columns / group] of the
rows [first, last), minima at address 0 when there are none; ``group`` is ``columns`` for row scales.
"""

from __future__ import annotations

from rung.kernels.cpu.compiled import kernel
from rung.kernels.simd.scalar import read_u32, write_u32

_LOW = 0x0F0F0F0F


@kernel(12)
def pack_codes(codes, scales, minima, packed, group_bytes, columns, group, block, nibbles, row_header, first, last):
    """Writes rows; see the module."""
    parts = 2 if group == 16 else 1
    code_bytes = 256 if nibbles else 512
    inner = 0 if group > 32 else 64 * parts * (2 if minima else 1)
    outer = 64 if group > 32 and not row_header else 0
    words = 4 * (columns // group)
    for row in range(first, last):
        lane = 4 * (row % 16)
        source = codes + (row - first) * columns
        scale = scales + (row - first) * words
        minimum = minima + (row - first) * words
        place = packed + row // 16 * group_bytes
        if row_header:
            write_u32(place + lane, read_u32(scale))
            place += row_header
        for _ in range(columns // block):
            if outer:
                write_u32(place + lane, read_u32(scale))
                scale += 4
                place += outer
            for _ in range(block // 32):
                if inner:
                    for part in range(parts):
                        write_u32(place + 64 * part + lane, read_u32(scale))
                        scale += 4
                        if minima:
                            write_u32(place + 64 * (parts + part) + lane, read_u32(minimum))
                            minimum += 4
                    place += inner
                if nibbles:
                    for j in range(4):
                        word = read_u32(source + 4 * j) | (read_u32(source + 16 + 4 * j) << 4)
                        write_u32(place + 64 * j + lane, word)
                else:
                    for j in range(8):
                        write_u32(place + 64 * j + lane, read_u32(source + 4 * j))
                source += 32
                place += code_bytes


@kernel(12)
def unpack_codes(codes, scales, minima, packed, group_bytes, columns, group, block, nibbles, row_header, first, last):
    """Reads rows back; see the module."""
    parts = 2 if group == 16 else 1
    code_bytes = 256 if nibbles else 512
    inner = 0 if group > 32 else 64 * parts * (2 if minima else 1)
    outer = 64 if group > 32 and not row_header else 0
    words = 4 * (columns // group)
    for row in range(first, last):
        lane = 4 * (row % 16)
        source = codes + (row - first) * columns
        scale = scales + (row - first) * words
        minimum = minima + (row - first) * words
        place = packed + row // 16 * group_bytes
        if row_header:
            write_u32(scale, read_u32(place + lane))
            place += row_header
        for _ in range(columns // block):
            if outer:
                write_u32(scale, read_u32(place + lane))
                scale += 4
                place += outer
            for _ in range(block // 32):
                if inner:
                    for part in range(parts):
                        write_u32(scale, read_u32(place + 64 * part + lane))
                        scale += 4
                        if minima:
                            write_u32(minimum, read_u32(place + 64 * (parts + part) + lane))
                            minimum += 4
                    place += inner
                if nibbles:
                    for j in range(4):
                        word = read_u32(place + 64 * j + lane)
                        write_u32(source + 4 * j, word & _LOW)
                        write_u32(source + 16 + 4 * j, (word >> 4) & _LOW)
                else:
                    for j in range(8):
                        write_u32(source + 4 * j, read_u32(place + 64 * j + lane))
                source += 32
                place += code_bytes
