"""Products of packed weights, of 16-bit activations, and of adapters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rung import formats
from rung.formats import Encoded
from rung.kernels.cpu.gemm.low_rank import LowRankRows
from rung.kernels.cpu.gemm.product import product
from rung.kernels.cpu.pack.layouts import FORMATS as PACKED
from rung.kernels.cpu.pack.packing import pack, unpack
from rung.ops.linear.tolerance import tolerance
from tests.emulation.checks import Check
from tests.support.weights import weight

#: Formats by name; of the codebooks one size of block.
LINEAR = tuple(
    f"{name}:64" if name in ("nf4", "fp4") else {"u2": "u2:32", "u4": "u4:32", "u8": "u8:32"}.get(name, name)
    for name in PACKED
)
_ROWS, _COLUMNS = 40, 512  # two groups of 16 rows and half of one, two blocks
#: Half a unit in the last place, as a share of the number.
_ROUNDING = {"f16": 2.0**-11, "bf16": 2.0**-8}
#: Rows of the weight, of activations, rank, and whether it is a DoRA.
_ADAPTERS = ((131, 11, 17, True), (7, 1, 1, False), (96, 12, 4, False))


def instructions() -> str:
    """Products, tables and conversions of the level: compiled here, by this processor."""
    from rung.kernels.isa import probes

    return probes.check("isa.kernels")


def linear(name: str) -> str:
    """Packing, the way back, and products with 1, 3 and 41 rows, the last to the bytes of rows on their own."""
    encoded = weight(formats.get(name), _ROWS, _COLUMNS)
    packed = pack(encoded, threads=2)
    back = unpack(packed)
    if any(not np.array_equal(array, back.parts[part]) for part, array in encoded.parts.items()):
        return "unpacked bytes are others"
    return next(filter(None, (_product(packed, encoded, name, rows) for rows in (1, 3, 41))), "")


def _product(packed: object, encoded: Encoded, name: str, rows: int) -> str:
    x = np.random.default_rng(rows).standard_normal((rows, _COLUMNS), dtype=np.float32)
    got = np.full((rows + 1, _ROWS), 7.0, np.float32)  # a row more, which must stay as it is
    multiply(packed, x, got)
    wide, dense = x.astype(np.float64), formats.decode(encoded).astype(np.float64)
    error = float(np.abs((got[:rows] - wide @ dense.T) / _unit(wide, dense)).max())
    if not error <= tolerance("numba.row", name, "f32"):
        return f"{rows} rows: an error of {error:.4f}"
    alone = np.empty((1, _ROWS), np.float32)
    multiply(packed, x[rows - 1 :], alone)
    if not np.array_equal(alone[0], got[rows - 1]):
        return f"{rows} rows: the last is another one on its own"
    return "" if np.all(got[rows] == 7.0) else f"{rows} rows: written behind the last"


def _unit(x: np.ndarray, dense: np.ndarray) -> np.ndarray:
    """Return the unit of errors, [rows, out]; see ``rung.ops.linear.tolerance``."""
    sizes: np.ndarray = np.linalg.norm(x, axis=1)[:, None] * np.linalg.norm(dense, axis=1)
    return sizes / x.shape[1] ** 0.5


def multiply(packed: Any, x: np.ndarray, y: np.ndarray) -> None:
    """Write the product of all rows of ``x`` to ``y``, float32."""
    product(packed, x.ctypes.data, x.strides[0], len(x), y.ctypes.data, y.ctypes.data, "f32")


def halves(dtype: str) -> str:
    """Products of 1 and 41 rows of activations in 16 bits, with results in 16 bits."""
    encoded = weight(formats.get("q8_0"), _ROWS, _COLUMNS)
    packed, dense = pack(encoded, threads=2), formats.decode(encoded).astype(np.float64)
    for rows in (1, 41):
        x = np.random.default_rng(rows).standard_normal((rows, _COLUMNS), dtype=np.float32)
        words = x.astype(np.float16).view(np.uint16) if dtype == "f16" else (x.view(np.uint32) >> 16).astype(np.uint16)
        got, sums = np.zeros((rows, _ROWS), np.uint16), np.empty((rows, _ROWS), np.float32)
        product(packed, words.ctypes.data, words.strides[0], rows, got.ctypes.data, sums.ctypes.data, dtype)
        wide, found = (_widened(each, dtype).astype(np.float64) for each in (words, got))
        want = wide @ dense.T
        allowed = tolerance("numba.row", "q8_0", "f32") * _unit(wide, dense) + _ROUNDING[dtype] * np.abs(want)
        worst = float((np.abs(found - want) / allowed).max())
        if not worst <= 1:
            return f"{rows} rows: {worst:.3g} times the error that is allowed"
    return ""


def _widened(words: np.ndarray, dtype: str) -> np.ndarray:
    """Return values of 16 bits as float32."""
    if dtype == "f16":
        return words.view(np.float16).astype(np.float32)
    return (words.astype(np.uint32) << 16).view(np.float32)


def adapter(kind: str) -> str:
    """The change of a LoRA and of a DoRA that ``kind`` holds, added to rows that lie apart."""
    for rows, tokens, rank, is_dora in _ADAPTERS:
        random = np.random.default_rng(rows)
        down, up = (_exact(random.standard_normal(shape, np.float32), kind) for shape in ((rank, 80), (rows, rank)))
        factor = random.standard_normal(rows, np.float32) if is_dora else None
        packed = LowRankRows.pack(down, up, factor)
        if packed.kind != kind:
            return f"packed as {packed.kind}"
        x, y = random.standard_normal((tokens, 96), np.float32), random.standard_normal((tokens, rows + 5), np.float32)
        before, behind = y[:, :rows].astype(np.float64), y[:, rows:].copy()
        want = before + x[:, :80].astype(np.float64) @ down.T.astype(np.float64) @ up.T.astype(np.float64)
        want *= 1 if factor is None else factor
        packed.add(x.ctypes.data, x.strides[0], tokens, y.ctypes.data, y.strides[0], 2)
        error = float(np.abs(y[:, :rows] - want).max() / np.abs(want).max())
        if not error <= 1e-5 or not np.array_equal(y[:, rows:], behind):
            return f"rank {rank}, {tokens} rows: an error of {error:.2g}, or written behind a row"
    return ""


def _exact(values: np.ndarray, kind: str) -> np.ndarray:
    """Return values that ``kind`` holds exactly, and no narrower one does."""
    if kind == "f16":
        return values.astype(np.float16).astype(np.float32)
    if kind == "bf16":
        return (values.view(np.uint32) & 0xFFFF0000).view(np.float32) * np.float32(2.0**-20)
    return values


def checks() -> Iterator[tuple[str, Check]]:
    """Every check by name."""
    yield "instructions", instructions
    for name in LINEAR:
        yield f"linear {name}", lambda name=name: linear(name)  # type: ignore[misc]
    for dtype in _ROUNDING:
        yield f"product of {dtype} rows", lambda dtype=dtype: halves(dtype)  # type: ignore[misc]
    for kind in ("f32", "f16", "bf16"):
        yield f"adapter in {kind}", lambda kind=kind: adapter(kind)  # type: ignore[misc]
