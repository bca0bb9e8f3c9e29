"""Encode and decode weights: the codecs of all formats, those of plug-ins, and the functions that use them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rung.core.errors import UnknownFormat, UsageError
from rung.core.plugins import Plugin, Refused
from rung.core.types import Format, resolve
from rung.formats.codec import PIECE, BlockCodec, Codec, Encoded, Floats, Source, each
from rung.formats.families import codebook4, floats, grouped, iq, iq4, kquants, legacy, microscale, rowwise, ternary
from rung.formats.table import ADDED, FORMATS, get, next_better, parts

_SEED = 20_261_124


def codec_of(fmt: Format, plugin: Plugin, name: str) -> Codec:
    """Load the codec of a plug-in and check it on small Gaussian weights.

    Raises ``UnknownFormat`` where it raises or is not what its format says; the format is left out from then on.
    """
    try:
        codec = resolve(name)
        _check(fmt, codec)
    except (Exception, SystemExit) as error:
        reason = str(error) if isinstance(error, Refused) else f"its codec raised {type(error).__name__}: {error}"
        plugin.leave_out(reason)
        FORMATS.drop(fmt.name)
        facts = [f"the plug-in {plugin.name} of {plugin.distribution} is left out: {reason}"]
        raise UnknownFormat(f"There is no format {fmt.name!r} any more.", facts, ["rung formats"]) from error
    result: Codec = codec
    return result


def _check(fmt: Format, codec: object) -> None:
    """Raise ``Refused`` where a codec does not do what its format says."""
    if not isinstance(codec, Codec):
        raise Refused(f"its codec is a {type(codec).__name__}, not a rung.formats.codec.Codec")
    shape = (3, fmt.block * -(-256 // fmt.block))
    weights = np.random.default_rng(_SEED).standard_normal(shape, dtype=np.float32)
    flat = weights.reshape(-1)
    expected = parts(fmt, shape)
    if fmt.encodes:
        found = codec.encode(Source("check", shape, lambda first, last: flat[first:last].copy()))
        actual = {name: (part.shape, str(part.dtype)) for name, part in found.items()}
        if actual != expected:
            raise Refused(f"{fmt.name} says that it stores {expected}, and its codec stores {actual}")
    else:
        found = {name: np.zeros(size, dtype) for name, (size, dtype) in expected.items()}
    encoded = Encoded(fmt, shape, found)
    out, piece = np.full(flat.shape, np.nan, np.float32), np.full(2 * fmt.block, np.nan, np.float32)
    codec.decode(encoded, 0, out)
    codec.decode(encoded, fmt.block, piece)
    if not np.isfinite(out).all():
        raise Refused(f"{fmt.name} decodes to values that are no finite numbers")
    if not np.array_equal(piece, out[fmt.block : 3 * fmt.block]):
        raise Refused(f"{fmt.name} decodes a piece to other values than the whole")
    if fmt.encodes:
        error = float(np.square(out.astype(np.float64) - flat).mean())
        reached = 10 * np.log10(float(np.square(flat.astype(np.float64)).mean()) / max(error, 1e-30))
        if reached < fmt.floor_db:
            raise Refused(f"{fmt.name} promises {fmt.floor_db:g} dB, and reaches {reached:.1f}")


#: By the name of the format; those of nf4, fp4 and of grouped ones are made of their format.
_CODECS: dict[str, Codec] = {
    codec.format.name: codec
    for family in (floats, legacy, kquants, iq4, iq, microscale, ternary, rowwise)
    for codec in family.CODECS
}


def _codec_of(fmt: Format) -> Codec:
    if fmt.name in ADDED and fmt.name not in _CODECS:
        _CODECS[fmt.name] = codec_of(fmt, *ADDED[fmt.name])
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
