"""Decodes stored weights: whole blocks of nf4, fp4 and what other quantizers write by compiled kernels where Numba is,
all others by numpy."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from rung import formats
from rung.core.types import Format
from rung.formats import Encoded
from rung.formats.families.codebook4 import CodebookCodec, scales
from rung.formats.families.grouped import E4M3, GroupCodec, widen
from rung.kernels.cpu import target
from rung.kernels.cpu.compiled import Kernel, kernel
from rung.kernels.isa.avx512 import (
    load_second_f32,
    mul_f32,
    narrow_bf16,
    narrow_f16,
    splat_f32,
    store_nibbles_16,
    store_nibbles_f32,
)
from rung.kernels.isa.generic import fetch_add, read_float, read_int, write_float
from rung.kernels.isa.scalar import read_u8

Floats, Words = npt.NDArray[np.float32], npt.NDArray[np.uint16]
#: (words, threads): runs a kernel.
Run = Callable[[list[int], int], None]
_CODES = np.arange(256, dtype=np.float32)


def decode(encoded: Encoded, rows: slice | None = None, threads: int = 1) -> Floats:
    """Return what ``rung.formats.decode`` returns, bit for bit: float32 [rows, columns]."""
    family = encoded.format.family
    start, stop, _ = (rows or slice(None)).indices(encoded.shape[0])
    run = _compiled(family) if family in ("codebook4", "grouped") and start < stop else None
    made: Floats | None = None
    if run is not None:
        made = (_codebook if family == "codebook4" else _grouped)(encoded, start, stop, threads, run)
    return formats.decode(encoded, rows, threads) if made is None else made


def narrow(encoded: Encoded, dtype: str, rows: slice | None = None, threads: int = 1) -> Words | None:
    """The bits of the same in ``f16`` or ``bf16``, rounded to nearest even; None where no kernel writes them.

    Through float32 they take three times as much memory traffic.
    """
    start, stop, _ = (rows or slice(None)).indices(encoded.shape[0])
    run = _compiled(encoded.format.family, dtype) if encoded.format.family == "codebook4" else None
    return None if run is None else _codebook(encoded, start, stop, threads, run, np.uint16)


def _codebook(encoded: Encoded, start: int, stop: int, threads: int, run: Run, dtype: Any = np.float32) -> Any:
    """nf4 and fp4; None where rows do not consist of whole blocks or parts are too short."""
    columns, block = encoded.shape[1], encoded.format.block
    first, last = start * columns, stop * columns
    data = encoded.parts["data"]
    if first >= last or first % block or last % block or data.nbytes < last // 2:
        return None
    sizes = np.ascontiguousarray(scales(encoded, first // block, last // block), np.float32)
    if len(sizes) < (last - first) // block:
        return None
    out = np.empty((stop - start, columns), dtype)
    codes, pairs = np.ascontiguousarray(data)[first // 2 :], _pairs(encoded.format)
    words = [0, codes.ctypes.data, sizes.ctypes.data, pairs.ctypes.data, out.ctypes.data, block // 2, len(sizes)]
    run(words, threads)
    return out


def _grouped(encoded: Encoded, start: int, stop: int, threads: int, run: Run) -> Floats | None:
    """u2, u4, u8 and e4m3; None where zero points lie between codes, whose difference is rounded to 16 bits."""
    format, codec = encoded.format, GroupCodec(encoded.format)
    blocks = np.ascontiguousarray(encoded.parts["data"][start:stop]).reshape(-1).view(codec.layout)
    sizes = np.ascontiguousarray(widen(blocks["scale"], codec.dtype))
    coded = "zero" in (codec.layout.names or ())
    zeros = np.ascontiguousarray(widen(blocks["zero"], codec.dtype)) if coded else np.zeros_like(sizes)
    if codec.dtype != "f32" and not np.array_equal(zeros, np.rint(zeros).clip(0, 256)):
        return None
    table = _CODES if coded else E4M3
    out = np.empty((stop - start, encoded.shape[1]), np.float32)
    words = [0, blocks["codes"].ctypes.data, *(each.ctypes.data for each in (sizes, zeros, table, out))]
    words += [codec.bits, format.block, codec.layout.itemsize, len(blocks)]
    run(words, threads)
    return np.take(out, encoded.parts["order"], axis=1) if format.layout == "ordered" else out


@functools.cache
def _pairs(format: Format) -> npt.NDArray[np.uint64]:
    return CodebookCodec(format).pairs()


@functools.cache
def _compiled(family: str, dtype: str = "f32") -> Run | None:
    """Runs the kernel of a family on so many threads; None where nothing can be compiled, or not to that dtype."""
    if importlib.util.find_spec("numba") is None or not target.features():
        return None
    wide = target.levels()["isa.avx512f"]
    if dtype != "f32" and not wide:
        return None
    from rung.kernels.cpu.parallel import run

    of_codebooks = decode_blocks_avx512(dtype) if wide else decode_blocks
    kernel = of_codebooks if family == "codebook4" else decode_groups
    return lambda words, threads: run(kernel.address, words, threads)


_BLOCKS = 64  # blocks a thread takes at a time


@kernel(3)
def decode_blocks(words, thread, threads):
    """For ``parallel.run``; the counter, then addresses of codes, float32 scales, the pairs of float32 that the 256
    bytes stand for, and the result; the bytes of a block, and how many blocks there are."""
    codes, scales, pairs, out = read_int(words + 8), read_int(words + 16), read_int(words + 24), read_int(words + 32)
    size, blocks = read_int(words + 40), read_int(words + 48)
    while True:
        first = fetch_add(words, 1) * _BLOCKS
        if first >= blocks:
            break
        for block in range(first, min(first + _BLOCKS, blocks)):
            scale = read_float(scales + 4 * block)
            for byte in range(size * block, size * block + size):
                pair = pairs + 8 * read_u8(codes + byte)
                high, low = read_float(pair), read_float(pair + 4)  # both before a write: the compiler joins them
                write_float(out + 8 * byte, high * scale)
                write_float(out + 8 * byte + 4, low * scale)


@functools.cache
def decode_blocks_avx512(dtype: str) -> Kernel:
    """The same to f32, f16 or bf16, 16 bytes at a time, which divide a block."""
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
                    held = narrow_f16(values) if f16 else narrow_bf16(values)
                    for byte in range(size * block, size * block + size, 16):
                        store_nibbles_16(out + 4 * byte, codes + byte, held)

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
            source, place = codes + size * block, out + 4 * columns * block
            for byte in range(source, source + columns // each):
                packed = read_u8(byte)
                for _ in range(each):
                    value = read_float(table + 4 * (packed & mask))
                    write_float(place, (value - zero) * scale)
                    packed >>= bits
                    place += 4
