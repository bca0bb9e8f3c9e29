"""Linear in NumPy, where torch is not installed: decodes a slab of rows, then NumPy's own product in float32."""

from __future__ import annotations

import numpy as np

from rung.formats import Encoded
from rung.formats.codec import Floats
from rung.kernels.cpu.pack.decoding import decode
from rung.kernels.gpu.stored import Stored, prepare


class Decode:
    """See ``rung.ops.linear``; the workspace is one slab of 32 MB. NumPy's library chooses its threads."""

    def prepare(self, encoded: Encoded, *, dtype: str, threads: int) -> Stored:
        """Keeps the weight as it is stored."""
        return prepare(encoded, dtype, threads)

    def multiply(self, state: Stored, x: Floats) -> Floats:
        """[M, in] -> [M, out]"""
        rows = state.shape[0]
        y = np.empty((len(x), rows), np.float32)
        for first in range(0, rows, state.step):
            last = min(first + state.step, rows)
            weight: Floats = decode(state.encoded, slice(first, last), state.threads)
            y[:, first:last] = x @ weight.T
        return y

    def restore(self, state: Stored) -> Encoded:
        """The weight as it was stored."""
        return state.encoded


RUNG = Decode()
