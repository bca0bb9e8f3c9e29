"""Splats of random values."""

from __future__ import annotations

import numpy as np

from rung.splats import Cloud


def random_cloud(number: int, degree: int, seed: int) -> Cloud:
    """Return splats whose stored values are all normal numbers: nothing that looks like a scene."""
    rng = np.random.default_rng(seed)
    shapes = ((number, 3), (number, 4), (number, 3), (number,), (number, (degree + 1) ** 2, 3))
    return Cloud(*(rng.standard_normal(shape).astype(np.float32) for shape in shapes))
