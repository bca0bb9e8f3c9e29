"""Weights in the memory of a GPU."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rung.formats import Encoded
from rung.formats.codec import Floats
from rung.kernels.webgpu.gpu import Gpu
from rung.kernels.webgpu.layouts import ROWS, UNIT, GpuLayout
from rung.kernels.webgpu.packing import Words, pack


class Blocks:
    """Memory of ``count`` blocks, each of which has ``layer_bytes`` bytes of every layer."""

    def __init__(self, gpu: Gpu, count: int, layers: int, layer_bytes: int) -> None:
        """Reserve the memory. Raises ``OutOfMemory``."""
        self._gpu, self._count, self._layer_bytes = gpu, count, layer_bytes
        self.buffers: list[Any] = [gpu.buffer(count * layer_bytes) for _ in range(layers)]

    @property
    def block_bytes(self) -> int:
        """Return the bytes of a block."""
        return len(self.buffers) * self._layer_bytes

    def read(self, block: int) -> npt.NDArray[np.uint8]:
        """Return the bytes of a block, a layer after the other."""
        at, size = block * self._layer_bytes, self._layer_bytes
        return np.concatenate([self._gpu.read(buffer, at, size) for buffer in self.buffers])

    def copy(self, source: int, target: int) -> None:
        """Let a block have the bytes of another one."""
        size, between = self._layer_bytes, self._gpu.buffer(self._layer_bytes)  # a copy has two buffers
        for buffer in self.buffers:
            self._gpu.copy([(buffer, source * size, between, 0, size), (between, 0, buffer, target * size, size)])

    def write(self, block: int, data: npt.NDArray[np.uint8]) -> None:
        """Let a block have these bytes."""
        for buffer, part in zip(self.buffers, data.reshape(len(self.buffers), -1), strict=True):
            self._gpu.write(buffer, block * self._layer_bytes, part)


#: Weights that are packed at once: each is in memory twice then.
_PACKING = threading.Semaphore(1)


@dataclass(eq=False)
class Piece:
    """Rows of a weight, in ``buffer`` from word ``base`` on."""

    rows: int
    buffer: Any
    base: int = 0


@dataclass(eq=False)
class Matrix:
    """A weight of ``shape`` [rows, columns]; pieces of rows where a buffer is too small for all of them.

    ``source`` is what it was made of: a part of a mapped file, which takes no memory.
    """

    gpu: Gpu
    shape: tuple[int, int]
    layout: GpuLayout
    pieces: list[Piece]
    source: Encoded | None = field(default=None, repr=False)

    def nbytes(self, piece: Piece) -> int:
        """Return the bytes of a piece."""
        return 4 * self.layout.sections(piece.rows, self.shape[1]).words

    def encoded(self) -> Encoded:
        """Return the weight as it was stored."""
        assert self.source is not None, "changes of adapters have no way back"
        return self.source

    @classmethod
    def of_encoded(cls, gpu: Gpu, encoded: Encoded) -> Matrix:
        """Pack a weight and bring it there. Raises ``OutOfMemory``."""
        from rung.kernels.isa.products import packs_signed_bytes

        with _PACKING:
            layout, sections = pack(encoded, packs_signed_bytes())
            return cls(gpu, encoded.shape, layout, _upload(gpu, layout, encoded.shape, sections), encoded)

    @classmethod
    def of_floats(cls, gpu: Gpu, values: Floats) -> Matrix:
        """Bring float32 [rows, columns] there; columns are a multiple of 32."""
        layout, (rows, columns) = GpuLayout("f32"), values.shape
        filled = np.zeros((-(-rows // ROWS) * ROWS, columns), np.float32)
        filled[:rows] = values
        return cls(gpu, (rows, columns), layout, [Piece(rows, gpu.upload([filled.reshape(-1)]))])


def _upload(gpu: Gpu, layout: GpuLayout, shape: tuple[int, int], sections: Sequence[Words]) -> list[Piece]:
    """Bring the sections of a weight there; half of what a binding may be is left for another weight beside it."""
    rows, columns = shape
    count = -(-sum(part.nbytes for part in sections) // (gpu.limits.binding // 2))
    if count == 1:
        return [Piece(rows, gpu.upload(sections))]
    step, found = -(-rows // count // UNIT) * UNIT, []  # whole units of the next activations
    for first in range(0, rows, step):
        last = min(first + step, rows)
        padded = -(-(last - first) // ROWS) * ROWS
        parts = []
        for part, width in zip(sections, layout.widths(columns), strict=True):
            own = part.view(np.uint8)[first * width : (first + padded) * width]
            parts.append(np.concatenate([own, np.zeros(-len(own) % 16, np.uint8)]))
        found.append(Piece(last - first, gpu.upload(parts)))
    return found


def join(matrices: Sequence[Matrix]) -> None:
    """Let weights that are computed together lie in one buffer, if a binding is large enough."""
    gpu, pieces = matrices[0].gpu, [(matrix, piece) for matrix in matrices for piece in matrix.pieces]
    sizes = [matrix.nbytes(piece) for matrix, piece in pieces]
    if len(pieces) == 1 or len(pieces) > len(matrices) or sum(sizes) > gpu.limits.binding:
        return
    whole, at, moves = gpu.buffer(sum(sizes)), 0, []
    for (_, piece), size in zip(pieces, sizes, strict=True):
        moves.append((piece.buffer, 4 * piece.base, whole, at, size))
        at += size
    gpu.copy(moves)
    at = 0
    for (_, piece), size in zip(pieces, sizes, strict=True):
        piece.buffer, piece.base = whole, at // 4
        at += size
