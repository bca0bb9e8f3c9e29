"""Define what all formats share: encoded weights, weights read a piece at a time, and how far off they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rung.core.errors import CannotEncode
from rung.core.shield import Workers
from rung.core.types import Format

Floats = npt.NDArray[np.float32]
#: uint8; numpy's stubs type ``uint8 & 15`` as any integer.
Codes = npt.NDArray[np.integer[Any]]
#: A part of an encoded weight, or blocks of some layout.
Array = npt.NDArray[Any]

#: Weights that are worked on at once: their float32 copy and a few temporaries stay in a core's L2 cache.
PIECE = 1 << 16
_DAMAGED = "hf download MODEL --force-download: the file is damaged here or was published so"
_TOO_LARGE = "rung run MODEL --format int8   # its scales are float32; those of bf16 and nf4 reach as far"
#: Sixteen steps of float16 where it is coarsest. Scales below this are rounded up, so that no code is clipped.
COARSE = np.float32(2.0**-20)


@dataclass(frozen=True, eq=False)
class Encoded:
    """A weight of ``shape`` (rows, columns) as its format stores it.

    Parts of formats in rows (GGUF types and floats): ``data`` uint8 [rows, bytes of a row], may be read-only.
    int8: ``data`` int8 [rows, columns] and ``scale`` float32 [rows]. nf4 and fp4: ``data`` uint8 [(weights + 1) // 2],
    the first weight of a pair in the high nibble, and ``absmax`` float32 [blocks]; nested: ``absmax`` uint8 [blocks],
    ``nested_absmax`` float32 [ceil(blocks / 256)], ``nested_offset`` float32 [1].
    """

    format: Format
    shape: tuple[int, int]
    parts: dict[str, Array] = field(repr=False)

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return sum(part.nbytes for part in self.parts.values())


def each(starts: range, work: Callable[[int], None], threads: int) -> None:
    """Calls ``work`` with every start, in that many threads; raises what the first one that fails raises."""
    if threads == 1 or len(starts) < 2:
        for first in starts:
            work(first)
        return
    with Workers(threads) as pool:
        pool.map(work, starts)


class BadBlock(Exception):
    """Block ``index`` of a piece cannot be stored, because of ``cause``."""

    def __init__(self, index: int, cause: str) -> None:
        super().__init__(cause)
        self.index = index
        self.cause = cause


@dataclass(frozen=True)
class Source:
    """Weights of ``shape`` (rows, columns) that are read a piece at a time.

    ``read(first, last)`` returns the weights [first, last) of the flattened tensor, float32, from any thread.
    ``importance`` [columns]: how much the square of an error counts there; None: everywhere alike.
    """

    name: str
    shape: tuple[int, int]
    read: Callable[[int, int], Floats]
    threads: int = 1
    importance: Floats | None = None

    def importance_of(self, first: int, count: int) -> Floats:
        """The importance of ``count`` weights of the flattened tensor."""
        assert self.importance is not None
        return np.resize(np.roll(self.importance, -(first % self.shape[1])), count)

    @property
    def size(self) -> int:
        """Number of weights."""
        return self.shape[0] * self.shape[1]

    def each(self, step: int, work: Callable[[int, Floats], None]) -> None:
        """Calls ``work`` with the first index and the weights of each ``step`` weights, in ``threads`` threads.

        Raises ``CannotEncode`` for the first piece with NaN or Inf, or for which ``work`` raises it.
        """

        def one(first: int) -> None:
            with np.errstate(all="ignore"):
                work(first, self._piece(first, min(first + step, self.size)))

        each(range(0, self.size, step), one, self.threads)

    def _piece(self, first: int, last: int) -> Floats:
        piece = self.read(first, last)
        if not (np.isfinite(piece.min()) and np.isfinite(piece.max())):
            index = int(np.argmin(np.isfinite(piece)))
            value = "NaN" if np.isnan(piece[index]) else "Inf"
            raise self.refusal(first + index, f"holds {value}", _DAMAGED)
        return piece

    def refusal(self, index: int, cause: str, way_out: str) -> CannotEncode:
        """The error that says why the weight ``index`` of the flattened tensor, or its block, cannot be stored."""
        row, column = divmod(index, self.shape[1])
        return CannotEncode(f"Row {row} of {self.name} {cause}", [f"first met at column {column}"], [way_out])


class Codec(ABC):
    """Encodes and decodes one format. ``encode`` raises ``CannotEncode``; ``decode`` takes any bytes."""

    format: Format

    @abstractmethod
    def encode(self, source: Source) -> dict[str, Array]:
        """The parts of the encoded weights."""

    @abstractmethod
    def decode(self, encoded: Encoded, first: int, out: Floats) -> None:
        """Writes the weights from ``first`` on of the flattened tensor to ``out`` [n]."""


@dataclass(frozen=True)
class BlockCodec(Codec):
    """A format whose rows are divided into blocks of a fixed layout.

    ``unpack(blocks, out)`` decodes blocks [n] of dtype ``layout`` to float32 [n, format.block].
    ``pack(weights, blocks)`` does the reverse for finite weights and raises ``BadBlock``.
    ``piece`` is the number of weights that ``pack`` takes at once. One that ``weighs`` takes their importance
    [n, format.block] as a third argument.
    """

    format: Format
    layout: np.dtype[Any]
    unpack: Callable[[Array, Floats], None]
    pack: Callable[..., None] | None = None
    piece: int = PIECE
    weighs: bool = False

    def __post_init__(self) -> None:
        assert self.layout.itemsize == self.format.block_bytes, f"a block of {self.format.name} has another size"
        assert (self.pack is not None) == self.format.encodes, f"{self.format.name} is said to have another encoder"

    def encode(self, source: Source) -> dict[str, Array]:
        """The parts of the encoded weights: ``data`` uint8 [rows, bytes of a row]."""
        pack_blocks = self.pack
        assert pack_blocks is not None
        assert self.format.divides(source.shape[1])
        block = self.format.block
        blocks = np.zeros(source.size // block, self.layout)

        def pack(first: int, piece: Floats) -> None:
            start, count = first // block, len(piece) // block
            more: tuple[Floats, ...] = ()
            if self.weighs and source.importance is not None:
                more = (source.importance_of(first, len(piece)).reshape(count, block),)
            try:
                pack_blocks(piece.reshape(count, block), blocks[start : start + count], *more)
            except BadBlock as bad:
                raise source.refusal(first + bad.index * block, bad.cause, _TOO_LARGE) from None

        source.each(self.piece, pack)
        return {"data": blocks.view(np.uint8).reshape(source.shape[0], source.shape[1] // block * self.layout.itemsize)}

    def decode(self, encoded: Encoded, first: int, out: Floats) -> None:
        """Writes the weights from ``first`` on of the flattened tensor to ``out`` [n]."""
        block = self.format.block
        start, end = first // block, -(-(first + len(out)) // block)
        data = encoded.parts["data"].reshape(-1)[start * self.layout.itemsize : end * self.layout.itemsize]
        blocks = data.view(self.layout)
        if (end - start) * block == len(out):
            self.unpack(blocks, out.reshape(-1, block))
            return
        whole = np.empty((end - start, block), np.float32)
        self.unpack(blocks, whole)
        out[:] = whole.reshape(-1)[first - start * block :][: len(out)]


def columns(weights: Floats, group: int) -> Floats:
    """Groups of ``group`` weights from [n, b] in columns: [group, (b / group) n], the groups j of all rows together.

    Reductions over a group and factors of groups then run over long contiguous rows: 10 times as fast in numpy.
    Always a copy: who packs works in it, and a single group would be a view of the caller's weights.
    """
    count, length = weights.shape
    turned = weights.reshape(count, length // group, group).transpose(2, 1, 0)
    return np.array(turned, np.float32, order="C").reshape(group, -1)


def column_sums(values: Floats) -> Floats:
    """Return the sums [b] of values [n, b], added row after row as compiled encoders add.

    NumPy adds the values of a single column in another order, and ``einsum`` rounds once less on processors that fuse a
    product and a sum.
    """
    total: Floats = values[0].copy()
    for row in values[1:]:
        total += row
    return total


def peaks(low: Floats, high: Floats) -> Floats:
    """The largest magnitudes of groups with the given minima and maxima; never a negative zero."""
    return np.abs(np.maximum(high, -low))


def _of(value: np.float32) -> str:
    return f" of {value:.4g}," if np.isfinite(value) else ""


def half(scale: Floats) -> tuple[npt.NDArray[np.float16], Floats]:
    """The scales [n] as float16 and the factors float32 [n] to multiply weights with to get codes.

    A normal float16 is rounded to nearest, and its factor is the inverse of the unrounded scale, as llama.cpp does.
    Below 2^-14 float16 loses precision: there the scale is rounded away from zero, so that no code is clipped,
    and the factor fits the stored scale. Raises ``BadBlock`` when a scale is above 65504.
    """
    stored = scale.astype(np.float16)
    size = np.abs(scale)
    if not size.max(initial=0.0) < 65520.0:
        index = int(np.argmax(~(size < 65520.0)))
        raise BadBlock(index, f"needs a scale{_of(scale[index])} above the 65504 of float16")
    inverse = np.where(scale == 0, np.float32(0), np.float32(1) / scale)
    small = np.flatnonzero((size < 2.0**-14) & (scale != 0))
    if len(small):
        steps = np.ceil(size[small] * np.float32(2.0**24))
        rounded = np.copysign(steps * np.float32(2.0**-24), scale[small])
        stored[small] = rounded
        inverse[small] = np.float32(1) / rounded
    return stored, inverse


def sqnr(reference: npt.ArrayLike, approximation: npt.ArrayLike) -> float:
    """Signal to quantization noise ratio in dB: 10 log10(sum(r^2) / sum((r - a)^2)), computed in float64.

    Infinite when both are equal, also when both are zero; minus infinite when only the reference is zero.
    """
    exact = np.asarray(reference, np.float64).reshape(-1)
    noise = exact - np.asarray(approximation, np.float64).reshape(-1)
    # Scaled before squaring: 1e-200 squared is zero.
    peak = float(np.max(np.abs(exact), initial=0.0))
    error = float(np.max(np.abs(noise), initial=0.0))
    if error == 0.0:
        return float("inf")
    if peak == 0.0:
        return float("-inf")
    signal = np.sum(np.square(exact / peak))
    return float(10 * np.log10(signal / np.sum(np.square(noise / error))) + 20 * np.log10(peak / error))
