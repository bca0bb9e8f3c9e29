"""From the IQ formats below 4 bits to the generic layouts: kernels as in ``pack_generic``, with a grid of codes.

``table`` is the address of a grid of ``codebooks.grid_codes``: 4 or 8 bytes an entry, each the code of a value. The
codebook is symmetric about its middle, so that a code with all four bits turned over is the value with the other sign.
"""

from __future__ import annotations

import numba
import numpy as np

from rung.kernels.cpu.compiled import OPTIONS, kernel
from rung.kernels.cpu.pack.generic import read_half, spread_bits
from rung.kernels.isa.scalar import half, read_u8, read_u16, read_u32, write_f32, write_u32

_ONE = 0x01010101


@numba.njit(**OPTIONS)
def _signed(entry, signs):
    """Four codes at ``entry``, turned over where the lowest four bits of ``signs`` are set."""
    return read_u32(entry) ^ (spread_bits(signs) * 15)


@numba.njit(**OPTIONS)
def _even(index):
    """The byte of signs of a 7-bit index: the eighth makes the number of set bits even."""
    index &= 127
    parity = index ^ (index >> 4)
    parity ^= parity >> 2
    parity ^= parity >> 1
    return index | ((parity & 1) << 7)


@numba.njit(**OPTIONS)
def _eights(to, first, first_signs, second, second_signs):
    """Two entries of 8 columns, 16 columns apart."""
    for half_entry in range(2):
        low = _signed(first + 4 * half_entry, first_signs >> (4 * half_entry))
        high = _signed(second + 4 * half_entry, second_signs >> (4 * half_entry))
        write_u32(to + 64 * half_entry, low | (high << 4))


@kernel(5)
def pack_iq2_xxs(stored, packed, lane, blocks, table):
    """66 bytes a block: f16 scale, then for each 32 columns four indices and a word of signs and scale."""
    packed += 4 * lane
    for _ in range(blocks):
        d = read_half(stored)
        for u in range(8):
            at = stored + 2 + 8 * u
            word = read_u32(at + 4)
            write_f32(packed, d * (np.float32(0.5) + np.float32(word >> 28)) * np.float32(0.25))
            for e in range(2):
                first, second = table + 8 * read_u8(at + e), table + 8 * read_u8(at + e + 2)
                signs = _even(word >> (7 * e)), _even(word >> (7 * e + 14))
                _eights(packed + 64 + 128 * e, first, signs[0], second, signs[1])
            packed += 320
        stored += 66


@numba.njit(**OPTIONS)
def _quarters(packed, d, fours):
    """The two scales of a unit: d * (0.5 + nibble) / 4."""
    write_f32(packed, d * (np.float32(0.5) + np.float32(fours & 15)) * np.float32(0.25))
    write_f32(packed + 64, d * (np.float32(0.5) + np.float32(fours >> 4)) * np.float32(0.25))


@kernel(5)
def pack_iq2_xs(stored, packed, lane, blocks, table):
    """74 bytes a block: f16 scale, 32 words of 9 bits of index and 7 of signs, 16 scales of 4 bits."""
    packed += 4 * lane
    for _ in range(blocks):
        d = read_half(stored)
        for u in range(8):
            _quarters(packed, d, read_u8(stored + 66 + u))
            for e in range(2):
                at = stored + 2 + 8 * u + 2 * e
                first, second = read_u16(at), read_u16(at + 4)
                entries = table + 8 * (first & 511), table + 8 * (second & 511)
                _eights(packed + 128 + 128 * e, entries[0], _even(first >> 9), entries[1], _even(second >> 9))
            packed += 384
        stored += 74


@numba.njit(**OPTIONS)
def _iq2_s_entry(stored, table, entry):
    """Where the entry of 8 columns of a block of IQ2_S is."""
    high = read_u8(stored + 66 + entry // 4) >> (2 * (entry % 4)) & 3
    return table + 8 * (read_u8(stored + 2 + entry) | (high << 8))


@kernel(5)
def pack_iq2_s(stored, packed, lane, blocks, table):
    """82 bytes a block: f16 scale, low bits of indices 32, signs 32, high bits 8, 16 scales of 4 bits."""
    packed += 4 * lane
    for _ in range(blocks):
        d = read_half(stored)
        for u in range(8):
            _quarters(packed, d, read_u8(stored + 74 + u))
            for e in range(4 * u, 4 * u + 2):
                first, second = _iq2_s_entry(stored, table, e), _iq2_s_entry(stored, table, e + 2)
                signs = read_u8(stored + 34 + e), read_u8(stored + 36 + e)
                _eights(packed + 128 + 128 * (e - 4 * u), first, signs[0], second, signs[1])
            packed += 384
        stored += 82


@kernel(5)
def pack_iq3_xxs(stored, packed, lane, blocks, table):
    """98 bytes a block: f16 scale, 64 indices, and a word of signs and scale for each 32 columns."""
    packed += 4 * lane
    for _ in range(blocks):
        d = read_half(stored)
        for u in range(8):
            word, at = read_u32(stored + 66 + 4 * u), stored + 2 + 8 * u
            write_f32(packed, d * (np.float32(0.5) + np.float32(word >> 28)) * np.float32(0.5))
            for j in range(4):
                signs = _even(word >> (7 * (j // 2))), _even(word >> (14 + 7 * (j // 2)))
                low = _signed(table + 4 * read_u8(at + j), signs[0] >> (4 * (j % 2)))
                high = _signed(table + 4 * read_u8(at + j + 4), signs[1] >> (4 * (j % 2)))
                write_u32(packed + 64 + 64 * j, low | (high << 4))
            packed += 320
        stored += 98


@kernel(5)
def pack_iq3_s(stored, packed, lane, blocks, table):
    """110 bytes a block: f16 scale, low bits of indices 64, high bits 8, signs 32, 8 scales of 4 bits."""
    packed += 4 * lane
    for _ in range(blocks):
        d = read_half(stored)
        for u in range(8):
            odd = 1 + 2 * (read_u8(stored + 106 + u // 2) >> (4 * (u % 2)) & 15)
            write_f32(packed, d * np.float32(odd))
            at, high, signs = stored + 2 + 8 * u, read_u8(stored + 66 + u) << 8, stored + 74 + 4 * u
            for j in range(4):
                first = table + 4 * (read_u8(at + j) | (high >> j & 256))
                second = table + 4 * (read_u8(at + j + 4) | (high >> (j + 4) & 256))
                shift = 4 * (j % 2)
                low = _signed(first, read_u8(signs + j // 2) >> shift)
                write_u32(packed + 64 + 64 * j, low | (_signed(second, read_u8(signs + 2 + j // 2) >> shift) << 4))
            packed += 320
        stored += 110


@numba.njit(**OPTIONS)
def _shifted(to, first, first_up, second, second_up):
    """Two entries of IQ1 of 8 columns, 16 columns apart; a delta of +1/8 makes each code one more."""
    for half_entry in range(2):
        low = read_u32(first + 4 * half_entry) + first_up * _ONE
        high = read_u32(second + 4 * half_entry) + second_up * _ONE
        write_u32(to + 64 * half_entry, low | (high << 4))


@kernel(5)
def pack_iq1_s(stored, packed, lane, blocks, table):
    """50 bytes a block: f16 scale, low bits of indices 32, and a word of high bits, scale and delta for each 32."""
    packed += 4 * lane
    for _ in range(blocks):
        d = read_half(stored)
        for u in range(8):
            word, at = read_u16(stored + 34 + 2 * u), stored + 2 + 4 * u
            write_f32(packed, d * np.float32(2 * (word >> 12 & 7) + 1) / np.float32(8))
            up = 1 - (word >> 15)
            for e in range(2):
                first = read_u8(at + e) | (word >> (3 * e) & 7) << 8
                second = read_u8(at + e + 2) | (word >> (3 * e + 6) & 7) << 8
                _shifted(packed + 64 + 128 * e, table + 8 * first, up, table + 8 * second, up)
            packed += 320
        stored += 50


@kernel(5)
def pack_iq1_m(stored, packed, lane, blocks, table):
    """56 bytes a block: low bits of indices 32, nibbles of high bits and delta 16, words of scales 8.

    The top four bits of those words are the f16 scale of the block.
    """
    packed += 4 * lane
    for _ in range(blocks):
        bits = 0
        for word in range(4):
            bits |= read_u16(stored + 48 + 2 * word) >> 12 << (4 * word)
        d = half(bits)
        for u in range(8):
            scales = read_u16(stored + 48 + 2 * (u // 2)) >> (6 * (u % 2))
            for part in range(2):
                odd = 2 * (scales >> (3 * part) & 7) + 1
                write_f32(packed + 64 * part, d * np.float32(odd) / np.float32(8))
            for e in range(2):
                at = 4 * u + e
                near, far = read_u8(stored + 32 + at // 2) >> (4 * e), read_u8(stored + 33 + at // 2) >> (4 * e)
                first = read_u8(stored + at) | (near & 7) << 8
                second = read_u8(stored + at + 2) | (far & 7) << 8
                ups = 1 - (near >> 3 & 1), 1 - (far >> 3 & 1)
                _shifted(packed + 128 + 128 * e, table + 8 * first, ups[0], table + 8 * second, ups[1])
            packed += 384
        stored += 56


#: The kernel of a row by format.
GRIDS = {
    "iq2_xxs": pack_iq2_xxs,
    "iq2_xs": pack_iq2_xs,
    "iq2_s": pack_iq2_s,
    "iq3_xxs": pack_iq3_xxs,
    "iq3_s": pack_iq3_s,
    "iq1_s": pack_iq1_s,
    "iq1_m": pack_iq1_m,
}
