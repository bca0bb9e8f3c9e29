"""Codecs of plug-ins: loaded when a weight is first met in their format, and held to what the format says."""

from __future__ import annotations

import numpy as np

from rung.core.errors import UnknownFormat
from rung.core.plugins import Plugin, Refused
from rung.core.types import Format, resolve
from rung.formats.codec import Codec, Encoded, Source
from rung.formats.table import FORMATS, parts

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
