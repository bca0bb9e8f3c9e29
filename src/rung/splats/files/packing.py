"""Define what the compact formats share: bytes of opacities and colors, quaternions by their three smallest parts, and
the order of a curve through space."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rung.splats.cloud import Cloud, Floats

Bytes = npt.NDArray[np.uint8]
Indexes = npt.NDArray[np.int64]
#: Harmonics above the first for each degree.
REST = (0, 3, 8, 15)
#: A quarter of a byte's step: the opacities 0 and 1 have no logit, and come back as the byte that they were.
_QUARTER = 0.25 / 255
#: The parts of a quaternion without the largest, by the largest.
_OTHERS = np.array([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])


def to_bytes(values: np.ndarray) -> Bytes:
    """The nearest whole numbers, held in 0 to 255."""
    result: Bytes = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return result


def opacity_bytes(cloud: Cloud) -> Bytes:
    """[N]: 255 is opaque."""
    return to_bytes(cloud.opacities * 255)


def logits(opacities: Bytes) -> Floats:
    """[N] of bytes."""
    values = np.clip(opacities / 255, _QUARTER, 1 - _QUARTER)
    return np.log(values / (1 - values)).astype(np.float32)


def smallest_three(quats: Floats) -> tuple[Indexes, Floats]:
    """Return, of unit quaternions [N, 4] in any order of their parts, which part is the largest [N], and the other
    three [N, 3] as those of the same rotation whose largest is positive, times sqrt(2): they lie in -1 to 1."""
    largest = np.abs(quats).argmax(1)
    signs = np.sign(np.take_along_axis(quats, largest[:, None], 1))
    three = np.take_along_axis(quats, _OTHERS[largest], 1) * signs * np.sqrt(2)
    return largest, np.clip(three, -1, 1).astype(np.float32)


def whole_quats(largest: Indexes, three: np.ndarray) -> Floats:
    """[N, 4] from what ``smallest_three`` gives."""
    quats = np.empty((len(largest), 4), np.float32)
    others = three / np.sqrt(2)
    np.put_along_axis(quats, _OTHERS[largest], others.astype(np.float32), 1)
    left = np.sqrt(np.maximum(0, 1 - (others**2).sum(1, keepdims=True)))
    np.put_along_axis(quats, largest[:, None], left.astype(np.float32), 1)
    return quats


def along_curve(means: Floats) -> Indexes:
    """[N]: an order in which neighbors in space are neighbors (Morton's, 21 bits an axis)."""
    if not len(means):
        return np.zeros(0, np.int64)
    low = means.min(0).astype(np.float64)
    cells = ((means - low) / np.maximum(means.max(0) - low, 1e-30) * (2**21 - 1)).astype(np.uint64)
    codes = np.zeros(len(means), np.uint64)
    for axis in range(3):
        codes |= spread_bits(cells[:, axis]) << np.uint64(axis)
    return np.argsort(codes, kind="stable")


def spread_bits(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """21 bits, each followed by two zeros."""
    steps = ((32, 0x1F00000000FFFF), (16, 0x1F0000FF0000FF), (8, 0x100F00F00F00F00F))
    for shift, mask in (*steps, (4, 0x10C30C30C30C30C3), (2, 0x1249249249249249)):
        values = (values | values << np.uint64(shift)) & np.uint64(mask)
    return values


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
