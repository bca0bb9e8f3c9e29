"""A trained scene as files keep it: logarithms of scales, logits of opacities, harmonics. Without torch."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
#: The first harmonic: what a color's distance from gray is divided by.
C0 = 0.28209479177387814


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
    def tints(self) -> Floats:
        """Colors [N, 3] without harmonics above the first, mostly in 0 to 1."""
        return (0.5 + C0 * self.harmonics[:, 0]).astype(np.float32)

    @property
    def units(self) -> Floats:
        """Quaternions [N, 4] of length 1; of length 0 they turn nothing."""
        lengths = np.linalg.norm(self.quats, axis=1, keepdims=True)
        turns = np.where(lengths > 0, self.quats / np.where(lengths > 0, lengths, 1), np.eye(1, 4))
        return turns.astype(np.float32)

    def chosen(self, which: np.ndarray | slice) -> Cloud:
        """The splats of indexes, of a slice, or where a mask [N] is true."""
        return Cloud(*(values[which] for values in self))

    @property
    def scales(self) -> Floats:
        """Standard deviations [N, 3]."""
        return np.exp(self.log_scales)

    @property
    def opacities(self) -> Floats:
        """[N] in [0, 1]."""
        return (1 / (1 + np.exp(-self.logits.astype(np.float64)))).astype(np.float32)
