"""Number words and lay rows of them out as a sparse matrix, by rows and by columns."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Sparse:
    """A sparse matrix of float64, held twice so that each product adds in one order on any number of threads.

    Row r has ``columns[starts[r]:starts[r + 1]]``, with ``values`` likewise; column c has
    ``rows[heads[c]:heads[c + 1]]``, with ``transposed`` likewise.
    """

    starts: Ints
    columns: Ints
    values: Floats
    heads: Ints
    rows: Ints
    transposed: Floats

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns."""
        return len(self.starts) - 1, len(self.heads) - 1


def sparse(rows: Sequence[Sequence[tuple[int, float]]], width: int) -> Sparse:
    """Return the matrix of rows of (column, value), columns rising."""
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    columns = np.array([column for row in rows for column, _ in row], dtype=np.int64)
    values = np.array([value for row in rows for _, value in row], dtype=np.float64)
    order = np.argsort(columns, kind="stable")
    column_of_entry = np.repeat(np.arange(len(rows), dtype=np.int64), lengths)[order]
    counts = np.bincount(columns, minlength=width)
    return Sparse(_starts(lengths), columns, values, _starts(counts), column_of_entry, values[order])


def _starts(lengths: Ints) -> Ints:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


def places_of(rows: Iterable[Collection[str]], least: int) -> Mapping[str, int]:
    """Number the words that at least so many rows have, in their order."""
    counts = Counter(word for words in rows for word in words)
    return {
        word: column for column, word in enumerate(sorted(word for word, count in counts.items() if count >= least))
    }
