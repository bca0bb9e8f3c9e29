"""Blocks of ``rung.formats.grouped`` to float32."""

from __future__ import annotations

from rung.kernels.cpu.compiled import kernel
from rung.kernels.isa.generic import fetch_add, read_float, read_int, write_float
from rung.kernels.isa.scalar import read_u8

_BLOCKS = 64  # blocks a thread takes at a time


@kernel(3)
def decode_groups(words, thread, threads):
    """For ``parallel.run``; the counter, then addresses of the codes of the first block, of float32 scales, zero
    points, the 256 values that codes stand for, and the result; bits of a code, columns of a block, its bytes, and how
    many blocks there are. Writes (value - zero) * scale."""
    codes, scales, zeros, table = read_int(words + 8), read_int(words + 16), read_int(words + 24), read_int(words + 32)
    out, bits, columns = read_int(words + 40), read_int(words + 48), read_int(words + 56)
    size, blocks = read_int(words + 64), read_int(words + 72)
    each, mask = 8 // bits, (1 << bits) - 1
    while True:
        first = fetch_add(words, 1) * _BLOCKS
        if first >= blocks:
            break
        for block in range(first, min(first + _BLOCKS, blocks)):
            scale, zero = read_float(scales + 4 * block), read_float(zeros + 4 * block)
            source, place = codes + size * block, out + 4 * columns * block
            for byte in range(source, source + columns // each):
                packed = read_u8(byte)
                for _ in range(each):
                    value = read_float(table + 4 * (packed & mask))
                    write_float(place, (value - zero) * scale)
                    packed >>= bits
                    place += 4
