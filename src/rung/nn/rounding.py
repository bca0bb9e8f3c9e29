"""Round a weight so that its errors cancel in what it meets: error feedback, then descent over codes and scales."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import torch

from rung.core.errors import CannotEncode
from rung.core.types import Format
from rung.formats import Encoded
from rung.formats.codec import Array, BadBlock, Floats
from rung.formats.grids import Grid, grid
from rung.kernels.cpu.encode import feedback
from rung.kernels.cpu.thread_pool import run

#: The part of the mean of the diagonal that is added to it: statistics of few tokens have no inverse, dead channels no
#: entry.
DAMPING = 0.01
#: Sweeps of descent; a third one gains less than 1 %.
_SWEEPS = 2
#: Weights that are rounded at once, for their copies.
_SLAB = 1 << 22
_TINY = 1e-20


class Metric:
    """A matrix H [columns, columns] in which the errors of rows are measured, with its factor for error feedback."""

    def __init__(self, hessian: Floats) -> None:
        self.hessian = damped(hessian)

    @functools.cached_property
    def factor(self) -> Floats:
        """Return the upper Cholesky factor U of the inverse, ``inv(H) = U.T U``.

        With rows and columns turned round, ``H = R R.T`` has an upper R, whose inverse is U.
        """
        turned = torch.from_numpy(self.hessian[::-1, ::-1].astype(np.float64))
        lower = torch.linalg.cholesky(turned)
        identity = torch.eye(len(lower), dtype=torch.float64)
        inverse = torch.linalg.solve_triangular(lower, identity, upper=False).numpy()
        found: Floats = np.ascontiguousarray(inverse[::-1, ::-1], np.float32)
        return found

    @property
    def importance(self) -> Floats:
        """Return the cost of an error in each column, once later columns make up for it as well as they can."""
        found: Floats = np.square(np.diagonal(self.factor), dtype=np.float32)
        return np.reciprocal(found)


def damped(hessian: Floats) -> Floats:
    """Return H with a mean of its diagonal of 1, and with ``DAMPING`` on it. Nothing at all becomes the identity."""
    mean = float(np.diagonal(hessian).mean())
    size = len(hessian)
    if not mean > _TINY:
        return np.eye(size, dtype=np.float32)
    found: Floats = hessian / np.float32(mean)
    found[np.arange(size), np.arange(size)] += np.float32(DAMPING)
    return found


def round_weight(weights: Floats, fmt: Format, metric: Metric, threads: int, name: str = "weight") -> Encoded:
    """Return weights f32 [rows, columns] in a format, rounded to lower ``d H d`` of each row's change d.

    Raises ``CannotEncode`` for NaN, Inf, and scales that the format cannot hold.
    """
    rows, columns = weights.shape
    step = rows if fmt.nested else max(1, _SLAB // columns)  # nested scales are stored as offsets from their mean
    parts: list[dict[str, Array]] = []
    for first in range(0, rows, step):
        piece = np.ascontiguousarray(weights[first : first + step], np.float32)
        if not np.isfinite(piece).all():
            bad = np.argwhere(~np.isfinite(piece))[0]
            raise CannotEncode(f"Row {first + bad[0]} of {name} holds NaN or Inf", [f"first met at column {bad[1]}"])
        try:
            with np.errstate(all="ignore"):  # scales of zeros, and those that are refused
                found = grid(fmt, piece, metric.importance, name)
        except BadBlock as bad_block:
            raise CannotEncode(f"{name} {bad_block.cause}", ways_out=["--keep TENSOR=int8"]) from None
        codes = choose_codes(found, piece, metric, threads)
        parts.append(found.join(codes).parts)
    return Encoded(fmt, (rows, columns), {part: np.concatenate([each[part] for each in parts]) for part in parts[0]})


def choose_codes(found: Grid, weights: Floats, metric: Metric, threads: int) -> npt.NDArray[np.uint8]:
    """Return the codes [rows, columns] of weights; free scales of the grid are changed in place."""
    codes = np.zeros(weights.shape, np.uint8)
    work = weights.copy()
    _call(feedback.spread_errors.address, work, metric.factor, found, codes, threads)
    for _ in range(_SWEEPS):
        work = np.ascontiguousarray((found.values(codes) - weights) @ metric.hessian, np.float32)
        _call(feedback.descend.address, work, metric.hessian, found, codes, threads)
    return codes


def _call(function: int, work: Floats, matrix: Floats, found: Grid, codes: npt.NDArray[np.uint8], threads: int) -> None:
    rows, columns = work.shape
    levels = np.ascontiguousarray(found.levels, np.float32)
    regular = bool((np.diff(levels) == 1).all())
    room = feedback.room(found.group)
    scratch = np.empty(threads * room, np.uint8)
    arrays = (work, matrix, found.scales, found.minima, codes, levels)
    assert all(each.flags.c_contiguous for each in arrays)
    addresses = [each.ctypes.data for each in arrays]
    ways = (len(levels), regular, found.free * (1 + found.wide), found.free and found.affine)
    run(function, [0, rows, columns, found.group, *addresses, *map(int, ways), scratch.ctypes.data, room], threads)
