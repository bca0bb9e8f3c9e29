"""Embedding on a GPU through WebGPU, from the weight of a tied head or one of its own."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rung.formats import Encoded
from rung.formats.codec import Floats
from rung.kernels.webgpu.glue import embed, embed_groups
from rung.kernels.webgpu.gpu import gpu
from rung.kernels.webgpu.info import INFO, MOST_ROWS, TOKEN
from rung.kernels.webgpu.matrix import Matrix


class Rows:
    """See ``rung.ops.embedding``; the state is that of ``webgpu.rows`` of linear."""

    def prepare(self, encoded: Encoded, *, dtype: str, threads: int, device: str) -> Matrix:
        """Pack the weight and bring it to a GPU."""
        return Matrix.of_encoded(gpu(device), encoded)

    def restore(self, state: Matrix) -> Encoded:
        """The weight as it was stored."""
        return state.encoded()

    def rows(self, state: Matrix, ids: Sequence[int]) -> Floats:
        """[T, hidden]"""
        parts = [_rows(state, ids[at : at + MOST_ROWS]) for at in range(0, len(ids), MOST_ROWS)]
        return np.concatenate([np.empty((0, state.shape[1]), np.float32), *parts])


def _rows(weight: Matrix, ids: Sequence[int]) -> Floats:
    device, columns = weight.gpu, weight.shape[1]
    y, info, work, first = device.buffer(4 * MOST_ROWS * columns), np.zeros(INFO, np.uint32), [], 0
    info[TOKEN : TOKEN + len(ids)] = ids
    uploaded = device.upload([info])
    for piece in weight.pieces:
        kernel = embed(weight.layout, piece.rows, columns, piece.base, 1.0, first=first)
        work.append(device.bind(kernel, [piece.buffer, piece.buffer, uploaded, y], embed_groups(columns), 0))
        first += piece.rows
    device.run(work, len(ids))
    return device.read(y, 0, 4 * len(ids) * columns).view(np.float32).reshape(-1, columns)


RUNG = Rows()
