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

Floats, Words = npt.NDArray[np.float32], npt.NDArray[np.uint16]
#: (words, threads): runs a kernel.
Run = Callable[[list[int], int], None]
_CODES = np.arange(256, dtype=np.float32)


def decode(encoded: Encoded, rows: slice | None = None, threads: int = 1) -> Floats:
    """Decode as ``rung.formats.decode`` does, bit for bit: float32 [rows, columns]."""
    family = encoded.format.family
    start, stop, _ = (rows or slice(None)).indices(encoded.shape[0])
    run = compiled_kernel(family) if family in ("codebook4", "grouped") and start < stop else None
    result: Floats | None = None
    if run is not None:
        result = (_codebook if family == "codebook4" else _grouped)(encoded, start, stop, threads, run)
    return formats.decode(encoded, rows, threads) if result is None else result


def narrow(encoded: Encoded, dtype: str, rows: slice | None = None, threads: int = 1) -> Words | None:
    """The bits of the same in ``f16`` or ``bf16``, rounded to nearest even; None where no kernel writes them.

    Through float32 they take three times as much memory traffic.
    """
    start, stop, _ = (rows or slice(None)).indices(encoded.shape[0])
    run = compiled_kernel(encoded.format.family, dtype) if encoded.format.family == "codebook4" else None
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
def compiled_kernel(family: str, dtype: str = "f32") -> Run | None:
    """Return the function that runs the kernel of a family; None where nothing can be compiled."""
    if importlib.util.find_spec("numba") is None or not target.features():
        return None
    from rung.kernels.cpu.pack.decoding_kernels import decode_blocks, decode_groups
    from rung.kernels.cpu.thread_pool import run

    return lambda words, threads: run(
        (decode_blocks(dtype) if family == "codebook4" else decode_groups).address, words, threads
    )
