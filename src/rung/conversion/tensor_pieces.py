"""Encode pieces of tensors apart, which together give the bytes of the whole, and measure what encoding lost."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rung import formats
from rung.conversion.job import Job, Step
from rung.core.types import Format
from rung.formats import Encoded
from rung.formats.codec import PIECE, Floats, each
from rung.kernels.cpu.encode import encoding
from rung.kernels.cpu.encode.encoding import Sums


@dataclass(frozen=True)
class Cost:
    """SQNR of a tensor in dB, and of its worst row, the one with that number. Infinite where nothing was lost.

    ``signal`` and ``noise`` are the sums of squares.
    """

    signal: float
    noise: float
    worst_db: float
    worst_row: int

    @property
    def db(self) -> float:
        """SQNR of the tensor in dB."""
        return _db(self.signal, self.noise)

    def to_json(self) -> dict[str, Any]:
        """The fields."""
        return asdict(self)


def _db(signal: float, noise: float) -> float:
    if noise == 0:
        return float("inf")
    return float(10 * np.log10(signal / noise)) if signal > 0 else float("-inf")


def cost(before: Encoded, after: Encoded, threads: int = 1, compiled: bool = False) -> Cost:
    """Return the error between two encodings of one weight [rows, columns]; rows of zeros that stay zeros add none.

    Sums are taken in f64, a few rows at a time, with ``compiled`` by a kernel where there is one.
    """
    sums = encoding.errors(before, after, threads) if compiled else None
    signal, noise = _sums(before, after, threads) if sums is None else sums.T
    with np.errstate(divide="ignore", invalid="ignore"):
        by_row = np.where(noise > 0, 10 * np.log10(signal / noise), np.inf)
    worst = int(np.argmin(by_row))
    return Cost(float(signal.sum()), float(noise.sum()), float(by_row[worst]), worst)


def _sums(before: Encoded, after: Encoded, threads: int) -> Sums:
    rows, columns = before.shape
    sums = np.zeros((2, rows))
    signal, noise = sums
    step = max(1, PIECE // max(columns, 1))

    def piece(first: int) -> None:
        part = slice(first, min(first + step, rows))
        exact = formats.decode(before, part).astype(np.float64)
        np.einsum("ij,ij->i", exact, exact, out=signal[part])
        exact -= formats.decode(after, part)
        np.einsum("ij,ij->i", exact, exact, out=noise[part])

    each(range(0, rows, step), piece, threads)
    return sums


#: Bytes of a piece as it is stored before, at most where a tensor can be divided.
_PIECE_BYTES = 1 << 19


@dataclass(frozen=True)
class Piece:
    """Rows of tensor ``number`` from ``first`` on, and how they are to be stored. ``importance`` float32 [columns] says
    what columns count. ``is_last``: no other piece of the tensor follows."""

    number: int
    first: int
    before: Encoded
    format: Format
    name: str
    importance: Floats | None
    is_last: bool


@dataclass(frozen=True)
class Done:
    """A piece in its format, and what that lost; None where nothing was lost."""

    after: Encoded
    lost: Cost | None


#: Encodes pieces somewhere, and yields them in any order.
Elsewhere = Callable[[Iterator[Piece]], Iterator[tuple[Piece, Done]]]


def divide(job: Job, number: int, step: Step, before: Encoded) -> Iterator[Piece]:
    """Yield the pieces of a tensor; one where its format stores what is of several rows."""
    rows = before.shape[0]
    divides = before.format.layout == step.format.layout == "rows"
    height = max(1, _PIECE_BYTES * rows // max(before.nbytes, 1)) if divides else rows
    importance = job.importance.get(step.tensor.role)
    for first in range(0, rows, height):
        part = before
        if height < rows:
            data = before.parts["data"][first : first + height]
            part = Encoded(before.format, (len(data), before.shape[1]), {"data": data})
        is_last = first + height >= rows
        yield Piece(number, first, part, step.format, step.tensor.name, importance, is_last)


def encode(piece: Piece, compiled: frozenset[Format], threads: int) -> Done:
    """Return a piece in its format. Raises ``CannotEncode``."""
    convert = encoding.convert if piece.format in compiled else formats.convert
    after = convert(piece.before, piece.format, piece.name, threads, piece.importance)
    if piece.format.name in ("f32", piece.before.format.name):
        return Done(after, None)
    lost = cost(piece.before, after, threads, piece.format in compiled)
    return Done(after, lost if lost.noise else None)


class Assembly:
    """The pieces that came, of tensors that are not whole yet."""

    def __init__(self) -> None:
        self._pieces: dict[int, dict[int, tuple[Piece, Done]]] = {}

    def add(self, piece: Piece, done: Done) -> tuple[Encoded, dict[str, Any]] | None:
        """Note a piece; return the tensor and its record where it is whole with it."""
        parts = self._pieces.setdefault(piece.number, {})
        parts[piece.first] = piece, done
        listed = [parts[first] for first in sorted(parts)]
        rows = 0
        for piece, _ in listed:
            if piece.first != rows:
                return None
            rows += piece.before.shape[0]
        if not listed[-1][0].is_last:
            return None
        del self._pieces[piece.number]
        return _whole([done.after for _, done in listed]), _record(listed)


def _whole(parts: Sequence[Encoded]) -> Encoded:
    if len(parts) == 1:
        return parts[0]
    rows = sum(part.shape[0] for part in parts)
    data = np.concatenate([part.parts["data"] for part in parts])
    return Encoded(parts[0].format, (rows, parts[0].shape[1]), {"data": data})


def _record(listed: Iterable[tuple[Piece, Done]]) -> dict[str, Any]:
    """Return the record of a tensor: what its pieces lost together."""
    lost = [(piece.first, done.lost) for piece, done in listed if done.lost is not None]
    if not lost:
        return {}
    signal, noise = (math.fsum(getattr(each, name) for _, each in lost) for name in ("signal", "noise"))
    first, worst = min(lost, key=lambda each: each[1].worst_db)
    return {"cost": Cost(signal, noise, worst.worst_db, first + worst.worst_row).to_json()}
