"""Embedding on a GPU through WebGPU, from the weight of a tied head."""

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
    y, first = device.buffer(4 * MOST_ROWS * columns), 0
    result = np.empty((len(ids), columns), np.float32)
    for piece in weight.pieces:
        own = [number for number, token in enumerate(ids) if first <= token < first + piece.rows]
        info = np.zeros(INFO, np.uint32)
        info[TOKEN : TOKEN + len(own)] = [ids[number] - first for number in own]
        first += piece.rows
        if own:
            kernel = embed(weight.layout, piece.rows, columns, piece.base, 1.0)
            buffers = [piece.buffer, piece.buffer, device.upload([info]), y]
            device.run([device.bind(kernel, buffers, embed_groups(columns), 0)], len(own))
            result[own] = device.read(y, 0, 4 * len(own) * columns).view(np.float32).reshape(-1, columns)
    return result


RUNG = Rows()
