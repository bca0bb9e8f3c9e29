"""Hold what rows lose when they are stored: sums in float64 of the squares of weights, and of what decoding changes."""

from __future__ import annotations

import numba
import numpy as np

from rung.kernels.cpu.compiled import OPTIONS, kernel
from rung.kernels.cpu.encode.rows import widen
from rung.kernels.isa.codes import add_distance, join_bits, none, part, store_sum
from rung.kernels.isa.generic import fetch_add, load, load_spread, multiply, spread, store, subtract, zero
from rung.kernels.isa.registers import load_i8, load_u8, to_f32
from rung.kernels.isa.scalar import half, numbers, read_u8, read_u16, read_u32, write_u32

_NAMES = "counter before kind after format rows columns bytes sizes scratch room sums"
#: Words: the counter that rows are divided by; the address of the weights, and what they are (one of
#: ``encode_rows.KINDS``); the address of what is stored, and its format (one of ``FORMATS``); rows, columns, bytes of a
#: stored row, float32 sizes of rows; scratch, its bytes for each thread; and the sums, float64 [rows, 2].
WORDS = tuple(_NAMES.split())
(_BEFORE, _KIND, _AFTER, _FORMAT, _ROWS, _COLUMNS, _BYTES, _SIZES, _SCRATCH, _ROOM, _SUMS) = range(1, 12)
#: What is decoded here. Of what is stored in another way the decoded float32 are given.
FORMATS = ("f32", "q8_0", "q4_0", "q4_k", "q5_k", "q6_k", "int8")
#: Bits of four bytes: the low six, the low four, the two above them.
_SIX, _FOUR, _TOP = 0x3F3F3F3F, 0x0F0F0F0F, 0x30303030
_EIGHT, _THIRTY_TWO = np.float32(8.0), np.float32(32.0)


@numba.njit(**OPTIONS)
def _q8_0(block, out, columns):
    for _ in range(0, columns, 32):
        scale = spread(half(read_u16(block)))
        for j in range(2):
            store(out + 64 * j, multiply(to_f32(load_i8(block + 2 + 16 * j)), scale))
        block, out = block + 34, out + 128


@numba.njit(**OPTIONS)
def _q4_0(block, out, columns):
    for _ in range(0, columns, 32):
        scale, codes = spread(half(read_u16(block))), load_u8(block + 2)
        for j in range(2):
            code = subtract(to_f32(part(codes, 4 * j, 15)), spread(_EIGHT))
            store(out + 64 * j, multiply(code, scale))
        block, out = block + 18, out + 128


@numba.njit(**OPTIONS)
def _six_bits(packed, out):
    """Writes the 8 scales and the 8 minima of q4_k and q5_k, of 12 bytes; see ``kquants.scales_and_minima``."""
    first, second, last = read_u32(packed), read_u32(packed + 4), read_u32(packed + 8)
    write_u32(out, first & _SIX)
    write_u32(out + 4, (last & _FOUR) | (first >> 2 & _TOP))
    write_u32(out + 8, second & _SIX)
    write_u32(out + 12, (last >> 4 & _FOUR) | (second >> 2 & _TOP))


@numba.njit(**OPTIONS)
def _affine(block, out, columns, fifth):
    """q4_k, or q5_k where 32 bytes of fifth bits come before the others."""
    for _ in range(0, columns, 256):
        d, dmin = half(read_u16(block)), half(read_u16(block + 2))
        scales = out + 1024 - 64  # the last weights come last
        _six_bits(block + 4, scales)
        for group in range(8):
            by = spread(d * np.float32(read_u8(scales + group)))
            base = spread(dmin * np.float32(read_u8(scales + 8 + group)))
            for j in range(2):
                code = part(load_u8(block + 16 + fifth + 32 * (group // 2) + 16 * j), 4 * (group % 2), 15)
                if fifth:
                    code = join_bits(code, part(load_u8(block + 16 + 16 * j), group, 1), 4)
                store(out + 128 * group + 64 * j, subtract(multiply(to_f32(code), by), base))
        block, out = block + 144 + fifth, out + 1024


@numba.njit(**OPTIONS)
def _q6_k(block, out, columns):
    for _ in range(0, columns, 256):
        d = half(read_u16(block + 208))
        for group in range(16):
            first, run = 16 * (group % 2), group // 2 % 4
            low = load_u8(block + 64 * (group // 8) + 32 * (run % 2) + first)
            high = load_u8(block + 128 + 32 * (group // 8) + first)
            code = join_bits(part(low, 4 * (run // 2), 15), part(high, 2 * run, 3), 4)
            scale = read_u8(block + 192 + group)
            by = d * np.float32(scale - 256 if scale > 127 else scale)
            store(out + 64 * group, multiply(subtract(to_f32(code), spread(_THIRTY_TWO)), spread(by)))
        block, out = block + 210, out + 1024


@numba.njit(**OPTIONS)
def _int8(codes, scale, out, columns):
    by = load_spread(scale)
    for at in range(0, columns, 16):
        store(out + 4 * at, multiply(to_f32(load_i8(codes + at)), by))


@numba.njit(**OPTIONS)
def _decode(w, row, out):
    """Writes a stored row as float32, with the bits of ``rung.formats.decode``."""
    format, stored, columns = w[_FORMAT], w[_AFTER] + w[_BYTES] * row, w[_COLUMNS]
    if format == 0:
        widen(0, stored, out, columns)
    elif format == 1:
        _q8_0(stored, out, columns)
    elif format == 2:
        _q4_0(stored, out, columns)
    elif format == 3 or format == 4:
        _affine(stored, out, columns, 0 if format == 3 else 32)
    elif format == 5:
        _q6_k(stored, out, columns)
    else:
        _int8(stored, w[_SIZES] + 4 * row, out, columns)


@kernel(3)
def sums(words, thread, threads):
    """For ``parallel.run``."""
    w = numbers(words)
    exact = w[_SCRATCH] + w[_ROOM] * thread
    decoded, width = exact + 4 * w[_COLUMNS], 4 if w[_KIND] == 0 else 2
    while True:
        row = fetch_add(words, 1)
        if row >= w[_ROWS]:
            break
        widen(w[_KIND], w[_BEFORE] + width * row * w[_COLUMNS], exact, w[_COLUMNS])
        _decode(w, row, decoded)
        signal, noise = none(), none()
        for at in range(0, 4 * w[_COLUMNS], 64):
            x = load(exact + at)
            signal, noise = add_distance(signal, x, zero()), add_distance(noise, x, load(decoded + at))
        store_sum(w[_SUMS] + 16 * row, signal)
        store_sum(w[_SUMS] + 16 * row + 8, noise)
