"""Hold what quantizing a tensor cost, found by decoding what is to be stored."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rung import formats
from rung.formats import Encoded
from rung.formats.codec import PIECE, each
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
