"""Fit logistic regressions to the same bits on every processor.

Only +, -, *, / and square roots are used, each sum is added in one fixed order, and Numba neither fuses nor reorders
them, so threads, vector width and math libraries change nothing: the exponential is a polynomial below. The
loss is convex; L-BFGS (Nocedal and Wright, Numerical Optimization, algorithm 7.4) with a line search on the
directional derivative alone finds its minimum.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numba
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


_HISTORY = 8
#: A step is long enough once the directional derivative has fallen to this part of its size.
_CURVATURE = 0.5
_TRIES = 12
_LN2_HIGH, _LN2_LOW = 0.6931471803691238, 1.9082149292705877e-10
_INVERSE_LN2 = 1.4426950408889634
_SMALLEST = -700.0


@dataclass(frozen=True)
class Problem:
    """Words of rows (``there``), wanted values of labels (``targets``), what a row counts, penalties of words.

    ``together``: of the labels of a row exactly one holds (softmax), else each holds or not by itself (sigmoid).
    """

    there: Sparse
    targets: Floats
    counts: Floats
    penalties: Floats
    together: bool


def fit(problem: Problem, steps: int) -> Floats:
    """Return the weights, words by labels, after at most so many steps of L-BFGS."""
    size = (problem.there.shape[1], problem.targets.shape[1])
    return _descend(lambda at: _gradient(problem, at), np.zeros(size), steps)


def _gradient(problem: Problem, weights: Floats) -> Floats:
    there = problem.there
    scores = np.zeros((there.shape[0], weights.shape[1]))
    _multiply(there.starts, there.columns, there.values, weights, scores)
    (_subtract_softmax if problem.together else _subtract_sigmoid)(scores, problem.targets, problem.counts)
    gradient: Floats = problem.penalties[:, None] * weights
    _multiply(there.heads, there.rows, there.transposed, scores, gradient)
    return gradient


def _descend(gradient_of: Callable[[Floats], Floats], at: Floats, steps: int) -> Floats:
    gradient = gradient_of(at)
    kept: deque[tuple[Floats, Floats, float]] = deque(maxlen=_HISTORY)
    for _ in range(steps):
        direction = _direction(gradient, kept)
        length, after = _search(gradient_of, at, direction, gradient, first=not kept)
        moved, change = length * direction, after - gradient
        at, gradient = at + moved, after
        product = _dot(moved, change)
        if product <= 0:
            break
        kept.append((moved, change, product))
    return at


def _direction(gradient: Floats, kept: deque[tuple[Floats, Floats, float]]) -> Floats:
    """Return the direction of descent by the two loops of L-BFGS."""
    found = -gradient
    parts = []
    for moved, change, product in reversed(kept):
        parts.append(_dot(moved, found) / product)
        _add(found, -parts[-1], change)
    if kept:
        _, change, product = kept[-1]
        found *= product / _dot(change, change)
    for (moved, change, product), part in zip(kept, reversed(parts), strict=True):
        _add(found, part - _dot(change, found) / product, moved)
    return found


def _search(
    gradient_of: Callable[[Floats], Floats], at: Floats, direction: Floats, gradient: Floats, *, first: bool
) -> tuple[float, Floats]:
    """Return a length of step at which the derivative along the direction is small, and the gradient there."""
    slope = _dot(gradient, direction)
    low, low_slope, high, high_slope = 0.0, slope, math.inf, 0.0
    length = 1.0 / math.sqrt(-slope) if first else 1.0
    for _ in range(_TRIES):
        after = gradient_of(at + length * direction)
        found = _dot(after, direction)
        if abs(found) <= _CURVATURE * abs(slope):
            break
        if found < 0:
            low, low_slope = length, found
        else:
            high, high_slope = length, found
        if high == math.inf:
            length *= 4.0
        else:
            length = low + (high - low) * min(0.9, max(0.1, low_slope / (low_slope - high_slope)))
    return length, after


@numba.njit(parallel=True)
def _multiply(starts: Ints, columns: Ints, values: Floats, weights: Floats, total: Floats) -> None:
    """Add a sparse matrix times ``weights`` to ``total``."""
    for row in numba.prange(len(starts) - 1):
        for at in range(starts[row], starts[row + 1]):
            value, column = values[at], columns[at]
            for label in range(weights.shape[1]):
                total[row, label] += value * weights[column, label]


@numba.njit
def _exponential(x: float) -> float:
    """Return e to the power of ``x``, which is at most 0: 2 ** k times a polynomial of the rest (to 1e-16)."""
    if x < _SMALLEST:
        return 0.0
    k = math.floor(x * _INVERSE_LN2 + 0.5)
    rest = (x - k * _LN2_HIGH) - k * _LN2_LOW
    total = 1.0
    for n in range(14, 0, -1):
        total = 1.0 + total * rest / n
    return math.ldexp(total, int(k))


@numba.njit
def _softmax_row(scores: Floats) -> None:
    """Replace scores by their softmax."""
    top = scores[0]
    for label in range(1, len(scores)):
        top = max(top, scores[label])
    whole = 0.0
    for label in range(len(scores)):
        scores[label] = _exponential(scores[label] - top)
        whole += scores[label]
    for label in range(len(scores)):
        scores[label] /= whole


@numba.njit(parallel=True)
def _subtract_softmax(scores: Floats, targets: Floats, counts: Floats) -> None:
    """Replace the scores of each row by what their softmax is above the targets, times what the row counts."""
    for row in numba.prange(scores.shape[0]):
        _softmax_row(scores[row])
        for label in range(scores.shape[1]):
            scores[row, label] = counts[row] * (scores[row, label] - targets[row, label])


@numba.njit(parallel=True)
def _subtract_sigmoid(scores: Floats, targets: Floats, counts: Floats) -> None:
    """Replace each score by what its sigmoid is above the target, times what the row counts."""
    for row in numba.prange(scores.shape[0]):
        for label in range(scores.shape[1]):
            power = _exponential(-abs(scores[row, label]))
            chance = (1.0 if scores[row, label] >= 0 else power) / (1.0 + power)
            scores[row, label] = counts[row] * (chance - targets[row, label])


@numba.njit
def _dot(one: Floats, other: Floats) -> float:
    """Return the sum of products, added in their order."""
    total = 0.0
    for row in range(one.shape[0]):
        part = 0.0
        for label in range(one.shape[1]):
            part += one[row, label] * other[row, label]
        total += part
    return total


@numba.njit
def _add(total: Floats, factor: float, other: Floats) -> None:
    """Add ``factor`` times ``other`` to ``total``."""
    for row in range(total.shape[0]):
        for label in range(total.shape[1]):
            total[row, label] += factor * other[row, label]
