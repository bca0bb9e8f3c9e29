"""Encoders, decoders and error feedback, beside NumPy."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rung import formats
from rung.formats import Encoded
from rung.formats.families import grouped
from rung.formats.grids import grid
from rung.kernels.cpu.encode import encoding
from rung.kernels.cpu.encode.feedback import choose_codes
from rung.kernels.cpu.pack import decoding
from rung.run.self_check.encoders import compare
from tests.emulation.checks import Check
from tests.support.feedback import correlated, factor_of, lost, rounded_by_numpy
from tests.support.weights import weight

#: Rows and columns of what most encode: two chunks of a thread's. One of each kind encodes what the self-check does.
_ROWS, _COLUMNS = 10, 2048
_WHOLE = ("q4_0", "q8_0", "q4_k", "iq4_nl")
#: What compiled functions decode: codebooks, and what other quantizers write.
_DECODED = ("nf4:64", "fp4:512:nested", "u2:16:bf16", "u4:64", "u8:32:f32", "u4:32:ordered", "e4m3:128")
#: Grids of each kind: even levels, minima, a codebook, scales bound to others, scales in float32.
_ROUNDED = ("q4_0", "q4_1", "nf4", "q4_k", "int8")


def encoder(name: str) -> str:
    """The self-check of an encoder, of most with fewer weights."""
    if not encoding.compiles(formats.get(name)):
        return "there is no compiler"
    return compare(name) if name in _WHOLE else compare(name, _ROWS, _COLUMNS)


def decoder(name: str) -> str:
    """Decode to float32, and codebooks to 16 bits, to the bit; rows from the middle, too."""
    fmt = formats.get(name)
    if fmt.family == "grouped":
        encoded = grouped.sample(fmt, (24, 512), np.random.default_rng(1))
    else:
        encoded = weight(fmt, 24, 512)
    for rows in (slice(0, 24), slice(4, 20)):
        want = formats.decode(encoded, rows)
        if not np.array_equal(decoding.decode(encoded, rows, 2), want):
            return f"rows {rows.start} to {rows.stop} are others"
        if fmt.family == "codebook4" and (reason := _narrow(encoded, rows, want)):
            return reason
    return ""


def _narrow(encoded: Encoded, rows: slice, want: np.ndarray) -> str:
    bits = want.view(np.uint32)
    expected = {
        "f16": want.astype(np.float16).view(np.uint16),
        "bf16": ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16),
    }
    wrong = [dtype for dtype, words in expected.items() if _differs(decoding.narrow(encoded, dtype, rows, 2), words)]
    return f"rounded to {wrong[0]} they are others" if wrong else ""


def _differs(found: np.ndarray | None, want: np.ndarray) -> bool:
    return found is None or not np.array_equal(found, want)


def feedback(name: str) -> str:
    """Codes by error feedback and descent lose no more than feedback in float64 does."""
    hessian = correlated(256)
    weights = np.random.default_rng(1).standard_t(5, (5, 256)).astype(np.float32) * np.float32(0.02)
    factor = factor_of(hessian)
    with np.errstate(divide="ignore"):  # scales of zeros
        rounded = grid(formats.get(name), weights, np.reciprocal(np.square(np.diagonal(factor))).astype(np.float32))
    reference = rounded_by_numpy(weights, rounded, hessian)
    codes = choose_codes(rounded, weights, hessian, np.ascontiguousarray(factor, np.float32), 2)
    ours, theirs = lost(rounded.values(codes) - weights, hessian), lost(reference - weights, hessian)
    if not (ours <= 1.02 * theirs).all() or not ours.sum() < 0.99 * theirs.sum():
        return f"{ours.sum() / theirs.sum():.3f} times what feedback in float64 loses"
    return ""


def checks() -> Iterator[tuple[str, Check]]:
    """Every check by name."""
    for name in encoding.FORMATS:
        yield f"encode {name}", lambda name=name: encoder(name)  # type: ignore[misc]
    for name in _DECODED:
        yield f"decode {name}", lambda name=name: decoder(name)  # type: ignore[misc]
    for name in _ROUNDED:
        yield f"error feedback {name}", lambda name=name: feedback(name)  # type: ignore[misc]
