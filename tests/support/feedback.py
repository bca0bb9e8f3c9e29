"""Error feedback in NumPy, and what rounding loses, for tests of rounding; needs no torch."""

from __future__ import annotations

import numpy as np

from rung.formats.grids import Grid


def correlated(columns: int, seed: int = 0) -> np.ndarray:
    """Return a matrix [columns, columns] f32 of what a weight meets, of features that depend on each other."""
    rng = np.random.default_rng(seed)
    x = rng.normal(0, 1, (4 * columns, columns // 4)) @ rng.normal(0, 1, (columns // 4, columns))
    x = (x + rng.normal(0, 1.5, x.shape)) * np.exp(rng.normal(0, 0.7, columns))
    found: np.ndarray = (x.T @ x / len(x)).astype(np.float32)
    return found


def lost(change: np.ndarray, hessian: np.ndarray) -> np.ndarray:
    """Return ``d H d`` of the change of each row, float64."""
    found: np.ndarray = np.einsum(
        "ij,jk,ik->i", change.astype(np.float64), hessian.astype(np.float64), change.astype(np.float64), optimize=True
    )
    return found


def factor_of(hessian: np.ndarray) -> np.ndarray:
    """Return the upper Cholesky factor of the inverse of H, float64."""
    return np.linalg.cholesky(np.linalg.inv(hessian.astype(np.float64))).T


def rounded_by_numpy(w: np.ndarray, rounded: Grid, hessian: np.ndarray) -> np.ndarray:
    """Return weights [rows, columns] rounded to a grid with error feedback (GPTQ, arXiv:2210.17323), float64."""
    factor = factor_of(hessian)
    left, reference = w.astype(np.float64), np.empty(w.shape)
    scales, minima = (
        np.repeat(each, rounded.group, axis=1).astype(np.float64) for each in (rounded.scales, rounded.minima)
    )
    for j in range(w.shape[1]):
        values = scales[:, j, None] * rounded.levels - minima[:, j, None]
        reference[:, j] = np.take_along_axis(values, np.abs(values - left[:, j, None]).argmin(1)[:, None], 1)[:, 0]
        error = (left[:, j] - reference[:, j]) / factor[j, j]
        left[:, j:] -= error[:, None] * factor[j, j:]
    return reference
