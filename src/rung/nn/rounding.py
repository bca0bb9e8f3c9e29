"""Round a weight so that its errors cancel in what it meets: error feedback, then descent over codes and scales."""

from __future__ import annotations

import functools

import numpy as np
import torch

from rung.core.errors import CannotEncode
from rung.core.types import Format
from rung.formats import Encoded
from rung.formats.codec import Array, BadBlock, Floats
from rung.formats.grids import grid
from rung.kernels.cpu.encode.feedback import PRODUCT_ROWS, choose_codes

#: The part of the mean of the diagonal that is added to it: statistics of few tokens have no inverse, dead channels no
#: entry.
DAMPING = 0.01
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
    step = PRODUCT_ROWS * max(1, _SLAB // columns // PRODUCT_ROWS)
    step = rows if fmt.nested else step  # nested scales are stored as offsets from their mean
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
        codes = choose_codes(found, piece, metric.hessian, metric.factor, threads)
        parts.append(found.join(codes).parts)
    return Encoded(fmt, (rows, columns), {part: np.concatenate([each[part] for each in parts]) for part in parts[0]})
