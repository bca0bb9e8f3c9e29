"""How far an approximation is from what it stands for."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


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
