"""List what is added to each weight of a decoder for the rows of a batch, as programs read it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rung.kernels.cpu.decode.step import RANKS, AdapterWord

#: Weights that a program multiplies with the same activations, at most: q, k and v.
_TOGETHER = 3


class Changes(Protocol):
    """The changes of an adapter: ``number`` is its own, ``addresses`` int64 [weights] of the ``low_rank.ChangeWord`` of
    each weight, 0 where it changes nothing, and ``sums`` the most sums that one has."""

    number: int
    addresses: npt.NDArray[np.int64]
    sums: int


class AdapterTable:
    """The adapters of the rows of a program, for up to ``rows`` rows and so many ``weights``; see ``AdapterWord``."""

    def __init__(self, weights: int, rows: int) -> None:
        self.words = np.zeros(len(AdapterWord), np.int64)
        self._changes = np.zeros((weights, rows), np.int64)
        self._summed = np.zeros(weights, np.int64)
        self._sums = np.zeros(0, np.float32)
        self._numbers: list[int] = []
        self.words[AdapterWord.TABLE_BYTES] = self._changes.strides[0]

    def changes(self, weight: int) -> int:
        """Return the address of the changes of a weight and those after it, by row."""
        return int(self._changes[weight:].ctypes.data)

    def summed(self, weight: int) -> int:
        """Return the address of the counter of a linear whose first weight this is."""
        return int(self._summed[weight:].ctypes.data)

    def fill(self, adapters: Sequence[Changes | None]) -> None:
        """Write the adapters of the rows of the next program; call it before each run."""
        numbers = [0 if each is None else each.number for each in adapters]
        if numbers != self._numbers:
            self._write(adapters)
            self._numbers = numbers
        if self.words[AdapterWord.PARTS]:
            self._summed[:] = 0

    def _write(self, adapters: Sequence[Changes | None]) -> None:
        for row, each in enumerate(adapters):
            self._changes[:, row] = 0 if each is None else each.addresses
        parts = -(-max(0 if each is None else each.sums for each in adapters) // RANKS)
        rows, width = self._changes.shape[1], parts * RANKS
        if self._sums.size < _TOGETHER * rows * width:
            self._sums = np.zeros(_TOGETHER * rows * width, np.float32)
        self.words[AdapterWord.PARTS], self.words[AdapterWord.SUMS] = parts, self._sums.ctypes.data
        self.words[AdapterWord.ROW_BYTES], self.words[AdapterWord.WEIGHT_BYTES] = 4 * width, 4 * rows * width
