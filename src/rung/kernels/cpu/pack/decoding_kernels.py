"""Blocks of nf4, fp4 and ``rung.formats.families.grouped`` to floats. Importing this imports Numba."""

from __future__ import annotations

from rung.kernels.cpu.compiled import Kernel, kernel, per_level
from rung.kernels.isa.generic import fetch_add, read_float, read_int, write_float
from rung.kernels.isa.registers import (
    load_second_f32,
    mul_f32,
    narrow_bf16,
    narrow_f16,
    splat_f32,
    store_nibbles_16,
    store_nibbles_f32,
)
from rung.kernels.isa.scalar import read_u8

_BLOCKS = 64  # blocks a thread takes at a time


@per_level
def decode_blocks(dtype: str) -> Kernel:
    """For ``parallel.run``, to f32, f16 or bf16, 16 bytes at a time, which divide a block; the counter, then addresses
    of codes, float32 scales, the pairs of float32 that the 256 bytes stand for, the result, the bytes of a block, and
    how many blocks there are."""
    f32, f16 = dtype == "f32", dtype == "f16"  # numbers: a kernel that holds an instruction is never found on disk

    @kernel(3)
    def run(words, thread, threads):
        codes, scales, pairs, out = (
            read_int(words + 8),
            read_int(words + 16),
            read_int(words + 24),
            read_int(words + 32),
        )
        size, blocks = read_int(words + 40), read_int(words + 48)
        table = load_second_f32(pairs)  # of the bytes 0 to 15
        share = (blocks + threads - 1) // threads  # the product that follows cuts its rows so, too
        while True:
            first = fetch_add(words, 1) * share
            if first >= blocks:
                break
            for block in range(first, min(first + share, blocks)):
                values = mul_f32(table, splat_f32(read_float(scales + 4 * block)))
                if f32:
                    for byte in range(size * block, size * block + size, 16):
                        store_nibbles_f32(out + 8 * byte, codes + byte, values)
                else:
                    narrow = narrow_f16(values) if f16 else narrow_bf16(values)
                    for byte in range(size * block, size * block + size, 16):
                        store_nibbles_16(out + 4 * byte, codes + byte, narrow)

    return run


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
            source, target = codes + size * block, out + 4 * columns * block
            for byte in range(source, source + columns // each):
                packed = read_u8(byte)
                for _ in range(each):
                    value = read_float(table + 4 * (packed & mask))
                    write_float(target, (value - zero) * scale)
                    packed >>= bits
                    target += 4
