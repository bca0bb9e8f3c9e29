"""From stored blocks to the generic layouts of ``layouts``: codes of 4 or 8 bits with float32 scales and minima.

Kernels of one row as in ``pack_native``; their last argument is the address of a grid, see ``pack_grids``. The products
of scales are those of ``rung.formats``, rounded alike, so that ``scale * code + minimum`` is the decoded weight bit for
bit. There is no way back: the stored weight is kept.
"""

from __future__ import annotations

import numba
import numpy as np

from rung.kernels.cpu.compiled import OPTIONS, kernel
from rung.kernels.cpu.pack.native import minimum_of, scale_of
from rung.kernels.isa.scalar import (
    as_f32,
    half,
    offset_unsigned,
    read_u8,
    read_u16,
    read_u32,
    write_f32,
    write_u8,
    write_u16,
    write_u32,
)

_LOW = 0x0F0F0F0F
_TWO = 0x03030303
_ONE = 0x01010101


@numba.njit(**OPTIONS)
def spread_bits(bits):
    """The lowest four bits as four bytes, 0 or 1."""
    return ((bits & 15) * 0x00204081) & _ONE


@numba.njit(**OPTIONS)
def read_half(address):
    """The float16 at an address, float32."""
    return half(read_u16(address))


@numba.njit(**OPTIONS)
def copy_words(to, source, count):
    """Words of four columns of a row, to where the row has them."""
    for j in range(count):
        write_u32(to + 64 * j, read_u32(source + 4 * j))


@kernel(5)
def pack_q4_1(stored, packed, lane, blocks, table):
    """20 bytes a block: f16 scale and minimum, 16 bytes whose nibbles are columns i and i + 16."""
    packed += 4 * lane
    for _ in range(blocks):
        write_f32(packed, read_half(stored))
        write_f32(packed + 64, read_half(stored + 2))
        copy_words(packed + 128, stored + 4, 4)
        stored += 20
        packed += 384


@numba.njit(**OPTIONS)
def _fifths(to, bits, codes, above):
    """32 codes of 5 bits: a word of fifth bits, 16 bytes of nibbles; ``above`` is added to each word."""
    high = read_u32(bits)
    for j in range(4):
        nibbles = read_u32(codes + 4 * j)
        first = ((nibbles & _LOW) | (spread_bits(high >> (4 * j)) << 4)) + above
        second = ((nibbles >> 4 & _LOW) | (spread_bits(high >> (16 + 4 * j)) << 4)) + above
        write_u32(to + 64 * j, offset_unsigned(first))
        write_u32(to + 64 * (j + 4), offset_unsigned(second))


@kernel(5)
def pack_q5_0(stored, packed, lane, blocks, table):
    """22 bytes a block: f16 scale, fifth bits 4, nibbles 16; codes are 16 above the weights' own, packed 128 above or
    signed."""
    packed += 4 * lane
    for _ in range(blocks):
        write_f32(packed, read_half(stored))
        _fifths(packed + 64, stored + 2, stored + 6, 0x70707070)
        stored += 22
        packed += 576


@kernel(5)
def pack_q5_1(stored, packed, lane, blocks, table):
    """24 bytes a block: f16 scale and minimum, fifth bits 4, nibbles 16."""
    packed += 4 * lane
    for _ in range(blocks):
        write_f32(packed, read_half(stored))
        write_f32(packed + 64, read_half(stored + 2))
        _fifths(packed + 128, stored + 4, stored + 8, 0)
        stored += 24
        packed += 640


@kernel(5)
def pack_q5_k(stored, packed, lane, blocks, table):
    """176 bytes a block: f16 scale and minimum, 12 bytes of scales and minima, fifth bits 32, nibbles 128."""
    for _ in range(blocks):
        write_u16(packed + 2 * lane, read_u16(stored))
        write_u16(packed + 32 + 2 * lane, read_u16(stored + 2))
        unit = packed + 64
        for u in range(8):
            write_u8(unit + lane, scale_of(stored + 4, u))
            write_u8(unit + 16 + lane, minimum_of(stored + 4, u))
            codes = stored + 48 + 32 * (u // 2)
            for j in range(8):
                fifth = (read_u32(stored + 16 + 4 * j) >> u) & _ONE
                code = (read_u32(codes + 4 * j) >> (4 * (u % 2)) & _LOW) | (fifth << 4)
                write_u32(unit + 32 + 64 * j + 4 * lane, code)
            unit += 544
        stored += 176
        packed = unit


@numba.njit(**OPTIONS)
def _twos(codes, unit, j):
    """Codes of 2 bits of columns 4 j ... 4 j + 3 of a unit, as bytes; four units share 32 bytes."""
    return (read_u32(codes + 32 * (unit // 4) + 4 * j) >> (2 * (unit % 4))) & _TWO


@kernel(5)
def pack_q2_k(stored, packed, lane, blocks, table):
    """84 bytes a block: 16 scales (low nibble) and minima (high), codes of 2 bits 64, f16 scale and minimum."""
    for _ in range(blocks):
        write_u16(packed + 2 * lane, read_u16(stored + 80))
        write_u16(packed + 32 + 2 * lane, read_u16(stored + 82))
        unit = packed + 64
        for u in range(8):
            for part in range(2):
                both = read_u8(stored + 2 * u + part)
                write_u8(unit + 16 * part + lane, both & 15)
                write_u8(unit + 32 + 16 * part + lane, both >> 4)
            for j in range(4):
                code = _twos(stored + 16, u, j) | (_twos(stored + 16, u, j + 4) << 4)
                write_u32(unit + 64 + 64 * j + 4 * lane, code)
            unit += 320
        stored += 84
        packed = unit


@kernel(5)
def pack_q3_k(stored, packed, lane, blocks, table):
    """110 bytes a block: third bits 32, codes of 2 bits 64, 12 bytes of 6-bit scales, f16 scale."""
    packed += 4 * lane
    for _ in range(blocks):
        d = read_half(stored + 108)
        for u in range(8):
            for part in range(2):
                group = 2 * u + part
                low = read_u8(stored + 96 + group % 8) >> (4 * (group // 8)) & 15
                high = read_u8(stored + 104 + group % 4) >> (2 * (group // 4)) & 3
                write_f32(packed + 64 * part, d * np.float32((low | high << 4) - 32))
            for j in range(4):
                third, later = read_u32(stored + 4 * j) >> u & _ONE, read_u32(stored + 16 + 4 * j) >> u & _ONE
                first = _twos(stored + 32, u, j) | (third << 2)
                second = _twos(stored + 32, u, j + 4) | (later << 2)
                write_u32(packed + 128 + 64 * j, first | (second << 4))
            packed += 384
        stored += 110


@kernel(5)
def pack_iq4_nl(stored, packed, lane, blocks, table):
    """18 bytes a block: f16 scale, 16 bytes whose nibbles are columns i and i + 16."""
    packed += 4 * lane
    for _ in range(blocks):
        write_f32(packed, read_half(stored))
        copy_words(packed + 64, stored + 2, 4)
        stored += 18
        packed += 320


@kernel(5)
def pack_iq4_xs(stored, packed, lane, blocks, table):
    """136 bytes a block: f16 scale, high bits of 6-bit scales 2, their low nibbles 4, nibbles 128."""
    packed += 4 * lane
    for _ in range(blocks):
        d = read_half(stored)
        for u in range(8):
            low = read_u8(stored + 4 + u // 2) >> (4 * (u % 2)) & 15
            high = read_u16(stored + 2) >> (2 * u) & 3
            write_f32(packed, d * np.float32((low | high << 4) - 32))
            copy_words(packed + 64, stored + 8 + 16 * u, 4)
            packed += 320
        stored += 136


@kernel(5)
def pack_mxfp4(stored, packed, lane, blocks, table):
    """17 bytes a block: an exponent, 16 bytes whose nibbles are columns i and i + 16. Scales are 2^(exponent - 128)."""
    packed += 4 * lane
    for _ in range(blocks):
        exponent = read_u8(stored)
        bits = 0x00200000 << exponent if exponent < 2 else (exponent - 1) << 23
        write_u32(packed, bits)
        copy_words(packed + 64, stored + 1, 4)
        stored += 17
        packed += 320


@numba.njit(**OPTIONS)
def _half_e4m3(byte):
    """Half the value of an unsigned e4m3, its top bit ignored; 0x7f stands for zero."""
    exponent, mantissa = byte >> 3 & 15, byte & 7
    if byte == 127:  # 0xff is 480, as in the reference decoder
        return np.float32(0)
    if exponent == 0:
        return np.float32(mantissa) * np.float32(2.0**-10)
    return np.float32(8 + mantissa) * as_f32((exponent + 116) << 23)


@kernel(5)
def pack_nvfp4(stored, packed, lane, blocks, table):
    """36 bytes a block of 64: four e4m3 scales, then 8 bytes for each 16 columns, whose nibbles are i and i + 8."""
    packed += 4 * lane
    for _ in range(blocks):
        for u in range(2):
            for part in range(2):
                write_f32(packed + 64 * part, _half_e4m3(read_u8(stored + 2 * u + part)))
            for j in range(2):
                first, second = read_u32(stored + 4 + 16 * u + 4 * j), read_u32(stored + 12 + 16 * u + 4 * j)
                write_u32(packed + 128 + 64 * j, (first & _LOW) | ((second & _LOW) << 4))
                write_u32(packed + 256 + 64 * j, (first >> 4 & _LOW) | (second >> 4 & _LOW) << 4)
            packed += 384
        stored += 36


@kernel(5)
def pack_tq2_0(stored, packed, lane, blocks, table):
    """66 bytes a block: codes of 2 bits 64, f16 scale."""
    packed += 4 * lane
    for _ in range(blocks):
        for u in range(8):
            write_f32(packed, read_half(stored + 64))
            for j in range(4):
                write_u32(packed + 64 + 64 * j, _twos(stored, u, j) | (_twos(stored, u, j + 4) << 4))
            packed += 320
        stored += 66


@numba.njit(**OPTIONS)
def _digit(fractions, power):
    """Return, of four bytes that are fractions in base 3, the digit that ``power`` brings to the front."""
    even = (((fractions & 0x00FF00FF) * power & 0x00FF00FF) * 3 >> 8) & 0x00030003
    odd = (((fractions >> 8 & 0x00FF00FF) * power & 0x00FF00FF) * 3 >> 8) & 0x00030003
    return even | (odd << 8)


@numba.njit(**OPTIONS)
def _ternary(stored, word):
    """Codes of columns 4 word ... of a block of TQ1_0: digits of 32 bytes, then of 16, then of 4."""
    if word < 40:
        source, digit = stored + 4 * (word % 8), word // 8
    elif word < 60:
        source, digit = stored + 32 + 4 * (word % 4), (word - 40) // 4
    else:
        source, digit = stored + 48, word - 60
    power = 1
    for _ in range(digit):
        power *= 3
    return _digit(read_u32(source), power)


@kernel(5)
def pack_tq1_0(stored, packed, lane, blocks, table):
    """54 bytes a block: five ternary digits a byte 48, four 4, f16 scale."""
    packed += 4 * lane
    for _ in range(blocks):
        for u in range(8):
            write_f32(packed, read_half(stored + 52))
            for j in range(4):
                write_u32(packed + 64 + 64 * j, _ternary(stored, 8 * u + j) | (_ternary(stored, 8 * u + j + 4) << 4))
            packed += 320
        stored += 54


#: The kernel of a row by format; those with a grid are in ``pack_grids``.
PLAIN = {
    "q4_1": pack_q4_1,
    "q5_0": pack_q5_0,
    "q5_1": pack_q5_1,
    "q2_k": pack_q2_k,
    "q3_k": pack_q3_k,
    "q5_k": pack_q5_k,
    "iq4_nl": pack_iq4_nl,
    "iq4_xs": pack_iq4_xs,
    "mxfp4": pack_mxfp4,
    "nvfp4": pack_nvfp4,
    "tq1_0": pack_tq1_0,
    "tq2_0": pack_tq2_0,
}
