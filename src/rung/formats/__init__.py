"""How weights are stored: the registry of formats and their codecs, numpy only.

>>> get("Q4_K").bytes((4096, 4096)) == 4096 * 4096 // 256 * 144
True
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rung.core.errors import UnknownFormat, UsageError
from rung.core.registry import Registry
from rung.core.text import did_you_mean
from rung.core.types import Format
from rung.formats import codebook4, floats, iq, iq4, kquants, legacy, microscale, rowwise, ternary
from rung.formats.codec import PIECE, BlockCodec, Codec, Encoded, Floats, Source
from rung.formats.quality import sqnr

__all__ = ["FORMATS", "Encoded", "convert", "decode", "encode", "get", "gguf_type", "layout", "next_better", "sqnr"]

#: The formats by name. nf4 and fp4 stand here with their default block; ``get`` also knows the other blocks.
FORMATS: Registry[Format] = Registry("format")
_CODECS: dict[str, Codec] = {}
_GGUF: dict[int, Format] = {}


def _register(codec: Codec) -> Format:
    _CODECS[codec.format.name] = codec
    return FORMATS.register(codec.format.name, codec.format)


for _family in (floats, legacy, kquants, iq4, iq, microscale, ternary):
    for _number, _codec in _family.CODECS.items():
        _GGUF[_number] = _register(_codec)
_register(rowwise.INT8)
for _kind in codebook4.CODEBOOKS:
    for _nested in (False, True):
        _register(codebook4.codec(_kind, codebook4.BLOCKS[0], _nested))


def get(name: str) -> Format:
    """The format of that name: ``q4_k``, ``NF4`` (the same as ``nf4:64``), ``fp4:128``, ``nf4:64:nested``.

    Raises ``UnknownFormat``, with the names that look alike.
    """
    wanted = name.strip().lower()
    kind, *options = wanted.split(":")
    if wanted in FORMATS:
        return FORMATS[wanted]
    if kind not in codebook4.CODEBOOKS:
        known = list(dict.fromkeys(key.split(":")[0] for key in FORMATS))
        raise UnknownFormat(f"there is no format {name!r}.{did_you_mean(kind, known)}", ways_out=["rung formats"])
    nested = "nested" in options
    blocks = [option for option in options if option != "nested"] or [str(codebook4.BLOCKS[0])]
    if len(blocks) != 1 or len(options) - nested > 1 or blocks[0] not in map(str, codebook4.BLOCKS):
        choices = ", ".join(map(str, codebook4.BLOCKS))
        raise UnknownFormat(
            f"there is no format {name!r}: write {kind}, {kind}:BLOCK, {kind}:nested or {kind}:BLOCK:nested",
            [f"BLOCK is one of {choices}"],
            ["rung formats"],
        )
    codec = codebook4.codec(kind, int(blocks[0]), nested)
    _CODECS.setdefault(codec.format.name, codec)
    return codec.format


def gguf_type(number: int) -> Format | None:
    """The format of a GGUF tensor type, or None when rung cannot decode it."""
    return _GGUF.get(number)


def _codec_of(fmt: Format) -> Codec:
    return _CODECS[get(fmt.name).name]


def layout(fmt: Format) -> np.dtype[Any] | None:
    """The fields of one block (``d``, ``qs`` ...) of a format in blocks; None for floats and other layouts."""
    codec = _codec_of(fmt)
    return codec.layout if isinstance(codec, BlockCodec) and codec.layout.names else None


def encode(array: npt.ArrayLike, fmt: Format, name: str = "weight", threads: int = 1) -> Encoded:
    """Stores weights float [rows, columns] in a format; ``name`` is the tensor's, for messages.

    The result is the same for any number of ``threads``.

    Raises ``CannotEncode`` at NaN, Inf and values whose scale the format cannot hold, ``UsageError`` for a format
    without an encoder, a shape that is not [rows, columns], or rows that the block does not divide.
    """
    weights = np.asarray(array)
    if weights.ndim != 2:
        raise UsageError(f"{name} has the shape {list(weights.shape)}; a weight is [rows, columns]")
    columns = weights.shape[1]

    def read(first: int, last: int) -> Floats:
        start, end = first // columns, -(-last // columns)
        flat = weights[start:end].reshape(-1)[first - start * columns : last - start * columns]
        return np.ascontiguousarray(flat, np.float32)

    return _encode(Source(name, (len(weights), columns), read, threads), fmt)


def convert(encoded: Encoded, fmt: Format, name: str = "weight", threads: int = 1) -> Encoded:
    """The same weight in another format, a piece at a time: the whole of it is never held as float32.

    The result is the same for any number of ``threads``.

    Raises as ``encode`` does. A weight that has the format already is returned as it is.
    """
    if encoded.format == fmt:
        return encoded
    codec = _codec_of(encoded.format)

    def read(first: int, last: int) -> Floats:
        out = np.empty(last - first, np.float32)
        codec.decode(encoded, first, out)
        return out

    return _encode(Source(name, encoded.shape, read, threads), fmt)


def _encode(source: Source, fmt: Format) -> Encoded:
    if not fmt.encodes:
        raise UsageError(f"rung reads {fmt.name} and does not write it", ways_out=["rung formats"])
    if not fmt.divides(source.shape[1]):
        raise UsageError(
            f"{fmt.name} cannot store {source.name}: its blocks of {fmt.block} do not divide rows of {source.shape[1]}",
            ways_out=[f"use {next_better(fmt, source.shape[1]).name}, the next better format that divides it"],
        )
    return Encoded(fmt, source.shape, _codec_of(fmt).encode(source))


def decode(encoded: Encoded, rows: slice | None = None) -> Floats:
    """The weights float32 [rows, columns], or those of a slice of rows (step 1)."""
    count, columns = encoded.shape
    start, stop, step = (rows or slice(None)).indices(count)
    assert step == 1, "rows are decoded one after the other"
    out = np.empty((max(stop - start, 0), columns), np.float32)
    flat, codec = out.reshape(-1), _codec_of(encoded.format)
    with np.errstate(all="ignore"):
        for first in range(0, len(flat), PIECE):
            codec.decode(encoded, start * columns + first, flat[first : first + PIECE])
    return out


def next_better(fmt: Format, columns: int) -> Format:
    """``fmt`` if its blocks divide a row of that many weights, else the smallest GGUF format that does and is no worse.

    No worse is a ``floor_db`` at least as high, among the formats with an encoder; bf16 and f16 divide every row.
    """
    if fmt.divides(columns):
        return fmt
    better = [f for f in _GGUF.values() if f.encodes and f.divides(columns) and f.floor_db >= fmt.floor_db]
    return min(better, key=lambda f: (f.bits, -f.floor_db))
