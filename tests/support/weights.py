"""Weights in every format for tests of kernels; needs no torch."""

from __future__ import annotations

import numpy as np

from rung import formats
from rung.core.types import Format
from rung.formats import Encoded
from rung.formats.families import grouped


def weight(format: Format, rows: int, columns: int, seed: int = 1) -> Encoded:
    """Return a Gaussian weight in a format; random blocks with finite values of a sane size where there is no
    encoder."""
    generator = np.random.default_rng(seed)
    if format.encodes:
        return formats.encode(generator.standard_normal((rows, columns), dtype=np.float32), format)
    if format.layout == "ordered":
        return grouped.sample(format, (rows, columns), generator)
    kept: list[np.ndarray] = []
    while len(kept) < rows:
        blocks = generator.integers(0, 256, (64, columns // format.block, format.block_bytes), dtype=np.uint8)
        flat = blocks.reshape(-1, format.block_bytes)
        with np.errstate(all="ignore"):
            values = formats.decode(Encoded(format, (len(flat), format.block), {"data": flat}))
        size = np.abs(values).max(axis=1)
        good = flat[np.isfinite(size) & (size > 1e-3) & (size < 1e3)]
        count = len(good) * format.block // columns
        kept += list(good[: count * (columns // format.block)].reshape(count, format.bytes((1, columns))))
    return Encoded(format, (rows, columns), {"data": np.stack(kept[:rows])})
