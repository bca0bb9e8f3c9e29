"""Encoding and decoding weights: the codecs of all formats, and the functions that use them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rung.core.errors import UsageError
from rung.core.types import Format
from rung.formats import added
from rung.formats.codec import PIECE, BlockCodec, Codec, Encoded, Floats, Source, each
from rung.formats.families import codebook4, floats, grouped, iq, iq4, kquants, legacy, microscale, rowwise, ternary
from rung.formats.table import ADDED, get, next_better

#: By the name of the format; those of nf4, fp4 and of grouped ones are made of their format.
_CODECS: dict[str, Codec] = {
    codec.format.name: codec
    for family in (floats, legacy, kquants, iq4, iq, microscale, ternary, rowwise)
    for codec in family.CODECS
}


def _codec_of(fmt: Format) -> Codec:
    if fmt.name in ADDED and fmt.name not in _CODECS:
        _CODECS[fmt.name] = added.codec_of(fmt, *ADDED[fmt.name])
    codec = grouped.GroupCodec if fmt.family == "grouped" else codebook4.CodebookCodec
    return _CODECS.get(fmt.name) or codec(get(fmt.name))


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


def convert(
    encoded: Encoded, fmt: Format, name: str = "weight", threads: int = 1, importance: Floats | None = None
) -> Encoded:
    """The same weight in another format, a piece at a time: the whole of it is never held as float32.

    The result is the same for any number of ``threads``. ``importance`` float32 [columns] says how much the square of
    an error counts in each column, to the formats that weigh (``weighs``).

    Raises as ``encode`` does. A weight that has the format already is returned as it is.
    """
    if encoded.format == fmt:
        return encoded
    codec = _codec_of(encoded.format)

    def read(first: int, last: int) -> Floats:
        out = np.empty(last - first, np.float32)
        codec.decode(encoded, first, out)
        return out

    return _encode(Source(name, encoded.shape, read, threads, importance), fmt)


def weighs(fmt: Format) -> bool:
    """Return whether encoding into a format looks at the importance of columns."""
    codec = _codec_of(fmt)
    return isinstance(codec, BlockCodec) and codec.weighs


def _encode(source: Source, fmt: Format) -> Encoded:
    if not fmt.encodes:
        raise UsageError(
            f"rung reads {fmt.name} and does not write it", ways_out=["rung formats"], code="format-not-writable"
        )
    if not fmt.divides(source.shape[1]):
        raise UsageError(
            f"{fmt.name} cannot store {source.name}: its blocks of {fmt.block} do not divide rows of {source.shape[1]}",
            ways_out=[f"use {next_better(fmt, source.shape[1]).name}, the next better format that divides it"],
            code="format-does-not-suit",
        )
    return Encoded(fmt, source.shape, _codec_of(fmt).encode(source))


def decode(encoded: Encoded, rows: slice | None = None, threads: int = 1) -> Floats:
    """The weights float32 [rows, columns], or those of a slice of rows (step 1); the same for any number of threads."""
    count, columns = encoded.shape
    start, stop, step = (rows or slice(None)).indices(count)
    assert step == 1, "rows are decoded one after the other"
    out = np.empty((max(stop - start, 0), columns), np.float32)
    flat, codec = out.reshape(-1), _codec_of(encoded.format)

    def piece(first: int) -> None:
        with np.errstate(all="ignore"):
            codec.decode(encoded, start * columns + first, flat[first : first + PIECE])

    each(range(0, len(flat), PIECE), piece, threads)
    return out
