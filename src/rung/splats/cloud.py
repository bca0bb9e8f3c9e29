"""A trained scene as files keep it: logarithms of scales, logits of opacities, harmonics. Without torch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


class Cloud(NamedTuple):
    """N splats, all float32: ``means`` [N, 3], ``quats`` [N, 4] (w, x, y, z), ``log_scales`` [N, 3], ``logits`` [N] of
    the opacities, ``harmonics`` [N, (degree + 1)^2, 3]."""

    means: Floats
    quats: Floats
    log_scales: Floats
    logits: Floats
    harmonics: Floats

    @property
    def degree(self) -> int:
        """Degree of the harmonics, 0 to 3."""
        return int(self.harmonics.shape[1] ** 0.5) - 1

    @property
    def scales(self) -> Floats:
        """Standard deviations [N, 3]."""
        return np.exp(self.log_scales)

    @property
    def opacities(self) -> Floats:
        """[N] in [0, 1]."""
        return (1 / (1 + np.exp(-self.logits.astype(np.float64)))).astype(np.float32)
