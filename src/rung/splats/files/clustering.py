"""Codebooks: few numbers, or few rows of numbers, near many (k-means, Lloyd 1982). The same input gives the same."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rung.splats.cloud import Floats
from rung.splats.files.packing import Bytes

Labels = npt.NDArray[np.int64]
_CODES, _BINS, _ROUNDS = 256, 256, 20
#: Rows that the first step of a palette learns from, and the points compared at once.
_SAMPLE, _BLOCK, _AT_ONCE = 1 << 16, 1 << 13, 1 << 24


def codebook(values: Floats) -> tuple[Floats, Bytes]:
    """256 numbers in rising order, and for each of the values, of any shape, the index of the nearest."""
    ordered = np.sort(values, axis=None).astype(np.float64)
    codes = np.unique(ordered)
    if len(codes) <= _CODES:
        codes = np.concatenate([codes, np.repeat(codes[-1:] if len(codes) else [0.0], _CODES - len(codes))])
    else:
        codes = _lloyd(ordered)
    edges = (codes[1:] + codes[:-1]) / 2
    return codes.astype(np.float32), np.searchsorted(edges, values).astype(np.uint8)


def _lloyd(ordered: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """From the density of the best codebook of many codes: the third root of the values' (Panter and Dite, 1951)."""
    counts, bins = np.histogram(ordered, _BINS)
    reach = np.concatenate([[0], np.cumsum(np.cbrt(counts))])
    codes = np.interp((np.arange(_CODES) + 0.5) / _CODES * reach[-1], reach, bins)
    sums = np.concatenate([[0], np.cumsum(ordered)])
    for _ in range(_ROUNDS):
        ends = np.searchsorted(ordered, (codes[1:] + codes[:-1]) / 2)
        ends = np.concatenate([[0], ends, [len(ordered)]])
        number = np.diff(ends)
        codes = np.where(number > 0, np.diff(sums[ends]) / np.maximum(number, 1), codes)
    result: npt.NDArray[np.float64] = codes
    return result


def palette(points: Floats, rows: int) -> tuple[Floats, Labels]:
    """At most ``rows`` rows [rows, d] for points [N, d], N > 0, and for each point the index of its row.

    Of more than a few thousand points in two steps, which cost a root of what one would: neighborhoods, then the rows
    of each, more where there is more to tell apart.
    """
    rng = np.random.default_rng(0)
    if len(points) * rows <= _AT_ONCE:
        return _kmeans(points, rows, rng)
    coarse = int(np.ceil(rows**0.5))
    sample = points[rng.permutation(len(points))[:_SAMPLE]]
    centers, _ = _kmeans(sample, coarse, rng)
    labels = _nearest(points, centers)
    spread = np.bincount(labels, np.linalg.norm(points - centers[labels], axis=1), minlength=len(centers))
    shares = 1 + np.floor(spread / max(spread.sum(), 1e-30) * (rows - len(centers))).astype(np.int64)
    order = np.argsort(labels, kind="stable")
    ends = np.cumsum(np.bincount(labels, minlength=len(centers)))
    table, found, number = [], np.empty(len(points), np.int64), 0
    for members, share in zip(np.split(order, ends[:-1]), shares, strict=True):
        if len(members):
            found_centers, own = _kmeans(points[members], int(share), rng)
            table.append(found_centers)
            found[members] = own + number
            number += len(found_centers)
    return np.concatenate(table), found


def _kmeans(points: Floats, number: int, rng: np.random.Generator, rounds: int = 5) -> tuple[Floats, Labels]:
    """At most ``number`` centers [number, d] and the nearest of each point."""
    if number >= len(points):
        return points, np.arange(len(points))
    centers = points[rng.permutation(len(points))[:number]]
    for _ in range(rounds):
        labels = _nearest(points, centers)
        order, counts = np.argsort(labels, kind="stable"), np.bincount(labels, minlength=number)
        used = counts > 0
        begins = (np.cumsum(counts) - counts)[used]
        centers = centers.copy()
        centers[used] = np.add.reduceat(points[order], begins, axis=0) / counts[used, None]
    return centers, _nearest(points, centers)


def _nearest(points: Floats, centers: Floats) -> Labels:
    half = (centers**2).sum(1) / 2
    parts = [(half - points[first : first + _BLOCK] @ centers.T).argmin(1) for first in range(0, len(points), _BLOCK)]
    return np.concatenate(parts)
