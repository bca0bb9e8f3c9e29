"""Encodes weights and measures what that lost, by compiled kernels where there are any, else by numpy.

The bytes are those of ``rung.formats``, which is what the kernels are compared with before they are believed
(``rung.run.self_check.encoders``).
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from rung import formats
from rung.core.types import Format
from rung.formats import Encoded
from rung.formats.codec import Array
from rung.formats.families import codebook4, iq4, kquants
from rung.kernels.cpu import target
from rung.kernels.cpu.pack.decoding import decode

Floats = npt.NDArray[np.float32]
#: Float64 [rows, 2].
Sums = npt.NDArray[np.float64]
_FAMILIES = {
    "blocks": ("q8_0", "q4_0", "q5_0", "int8", "llm_int8", "nf4", "fp4"),
    "minima": ("q4_1", "q5_1"),
    "iq4": ("iq4_nl",),
    "kquants": ("q4_k", "q5_k", "q6_k"),
}
#: Formats with a kernel; nf4 and fp4 have one for every size of block.
FORMATS = tuple(name for names in _FAMILIES.values() for name in names)
#: Weights that a thread takes at a time, and that are decoded at a time where they are no floats.
_CHUNK, _SLAB = 1 << 14, 1 << 22


def compiles(fmt: Format) -> bool:
    """Return whether there is a kernel for a format, and a compiler for this processor."""
    return fmt.name.split(":")[0] in FORMATS and can_compile()


@functools.cache
def can_compile() -> bool:
    """Return whether kernels can be compiled here."""
    return importlib.util.find_spec("numba") is not None and bool(target.features())


def convert(
    encoded: Encoded, fmt: Format, name: str = "weight", threads: int = 1, importance: Floats | None = None
) -> Encoded:
    """Convert as ``rung.formats.convert`` does, bit for bit, with its errors."""
    result: Encoded | None = None
    if encoded.format != fmt and compiles(fmt) and takes(encoded, fmt):
        result = _encode(encoded, fmt, threads, importance if formats.weighs(fmt) else None)
    return formats.convert(encoded, fmt, name, threads, importance) if result is None else result


def takes(encoded: Encoded, fmt: Format) -> bool:
    """Return whether rows consist of whole blocks and registers, and nothing is missing."""
    rows, columns = encoded.shape
    return rows * columns > 0 and columns % max(fmt.block, 16) == 0 and _fits(encoded)


def _fits(encoded: Encoded) -> bool:
    expected = formats.parts(encoded.format, encoded.shape)
    return all(encoded.parts[part].shape == shape for part, (shape, _) in expected.items())


def _encode(before: Encoded, fmt: Format, threads: int, importance: Floats | None) -> Encoded | None:
    """None where a weight is not finite or a scale cannot be stored: numpy says which."""
    from rung.kernels.cpu.encode.rows import UNIT, WORK

    rows, columns = before.shape
    parts: dict[str, Array] = {
        part: np.empty(shape, dtype) for part, (shape, dtype) in formats.parts(fmt, before.shape).items()
    }
    sizes = np.empty(rows * columns // fmt.block if fmt.family == "codebook4" else rows, np.float32)
    taken = max(1, _CHUNK // columns)
    whole = -(-taken * columns // UNIT) * UNIT
    room = WORK + 4 * whole
    scratch, refused, table = np.empty(threads * room, np.uint8), np.zeros(1, np.int64), _table(fmt)
    weighed = None if importance is None else np.resize(np.asarray(importance, np.float32), whole)
    for first, count, kind, floats in _slabs(before, threads):
        _run(
            _kernel(fmt),
            threads,
            *(floats, kind, count, columns, taken),
            *(parts["data"].reshape(rows, -1)[first:], sizes.reshape(rows, -1)[first:]),
            *(scratch, room, weighed, table, refused),
        )
    if refused[0]:
        return None
    if fmt.family == "codebook4":
        parts |= codebook4.nest(sizes) if fmt.nested else {"absmax": sizes}
    elif "scale" in parts:
        parts["scale"] = sizes
    return Encoded(fmt, before.shape, parts)


def errors(before: Encoded, after: Encoded, threads: int = 1) -> Sums | None:
    """Sums of squares of the weights of each row and of what has changed between two encodings, float64 [rows, 2].

    None where nothing can be compiled, or rows are not whole registers.
    """
    rows, columns = before.shape
    if not can_compile() or rows * columns == 0 or columns % 16 or not (_fits(before) and _fits(after)):
        return None
    from rung.kernels.cpu.pack import row_errors

    sums, room = np.empty((rows, 2)), 8 * columns
    scratch, sizes = np.empty(threads * room, np.uint8), after.parts.get("scale", sums)
    here = after.format.name in row_errors.FORMATS
    for first, count, kind, floats in _slabs(before, threads, _SLAB if not here else None):
        part = slice(first, first + count)
        decoded: Array = after.parts["data"][part] if here else decode(after, part, threads)
        number = row_errors.FORMATS.index(after.format.name if here else "f32")
        _run(
            row_errors.sums,
            threads,
            *(floats, kind, decoded, number, count, columns, decoded.nbytes // count),
            *(sizes[first:], scratch, room, sums[first:]),
        )
    return sums


def _slabs(weight: Encoded, threads: int, most: int | None = None) -> Iterator[tuple[int, int, int, Array]]:
    """A weight as (first row, rows, one of ``encode_rows.KINDS``, floats): in one piece where it is stored so and there
    is no ``most``, else so many weights at a time."""
    from rung.kernels.cpu.encode.rows import KINDS

    rows, columns = weight.shape
    stored = weight.format.name in KINDS
    step = max(1, (most or _SLAB) // columns) if most or not stored else rows
    for first in range(0, rows, step):
        part = slice(first, min(first + step, rows))
        count = part.stop - first
        if stored:
            yield first, count, KINDS.index(weight.format.name), np.ascontiguousarray(weight.parts["data"][part])
        else:
            yield first, count, 0, decode(weight, part, threads)


def _kernel(fmt: Format) -> Any:
    name = fmt.name.split(":")[0]
    module = next(module for module, names in _FAMILIES.items() if name in names)
    found = importlib.import_module(f"rung.kernels.cpu.encode.{module}")
    return getattr(found, "int8" if name == "llm_int8" else name)


def _run(kernel: Any, threads: int, *words: Array | int | None) -> None:
    """Runs a kernel; of arrays the address, of None 0."""
    from rung.kernels.cpu.thread_pool import run

    numbers = [each.ctypes.data if isinstance(each, np.ndarray) else each or 0 for each in words]
    run(kernel.address, [0, *numbers], threads)


@functools.cache
def _table(fmt: Format) -> Array:
    """Return the table that the kernel of a format reads: an int64, then float32."""
    values: list[float] = []
    count = 0
    if fmt.name in ("q4_k", "q5_k"):
        top, count = 15 if fmt.name == "q4_k" else 31, len(kquants.TRIALS)
        values = [each for stretch, offset in kquants.TRIALS for each in (top + stretch, offset)]
    elif fmt.name == "q6_k":
        values, count = [-(32 + shift) for shift in kquants.SHIFTS], len(kquants.SHIFTS)
    elif fmt.family == "codebook4":
        codebook = codebook4.CODEBOOKS[fmt.name.split(":")[0]]
        order = np.argsort(codebook, kind="stable")
        values, count = [*codebook4.middles(codebook[order]), *np.diff(order), order[0]], fmt.block
    elif fmt.name == "iq4_nl":
        codebook, count = iq4.CODEBOOK.astype(np.float32), len(iq4.EXTREMES)
        # whoever has reached an edge is above what lies just below it
        edges = np.nextafter(iq4.edges(), np.float32(0))
        values = [*edges, *np.diff(codebook), codebook[0], 1 / iq4.CODEBOOK[0], *iq4.BOUNDS, *iq4.EXTREMES]
    elif fmt.name == "llm_int8":
        count = 1
    return np.concatenate([np.array([count], np.int64).view(np.uint8), np.array(values, np.float32).view(np.uint8)])
