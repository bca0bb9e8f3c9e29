"""Linear on a GPU through WebGPU: weights in the layouts of ``kernels.webgpu``, float32 activations."""

from __future__ import annotations

import numpy as np

from rung.formats import Encoded
from rung.formats.codec import Floats
from rung.kernels.webgpu.gpu import gpu
from rung.kernels.webgpu.info import INFO, SHARED_ROWS
from rung.kernels.webgpu.linear import Product, Segment
from rung.kernels.webgpu.matrix import Matrix


class Rows:
    """See ``rung.ops.linear``; 16 rows of activations at a time share the weights that are read."""

    def prepare(self, encoded: Encoded, *, dtype: str, threads: int, device: str) -> Matrix:
        """Pack the weight and bring it to a GPU."""
        return Matrix.of_encoded(gpu(device), encoded)

    def multiply(self, state: Matrix, x: Floats) -> Floats:
        """[M, in], whose rows may lie apart -> [M, out]"""
        parts = [
            _multiply(state, np.ascontiguousarray(x[at : at + SHARED_ROWS])) for at in range(0, len(x), SHARED_ROWS)
        ]
        return np.concatenate([np.empty((0, state.shape[0]), np.float32), *parts])

    def restore(self, state: Matrix) -> Encoded:
        """The weight as it was stored."""
        return state.encoded()


def _multiply(weight: Matrix, x: Floats) -> Floats:
    device, (rows, columns) = weight.gpu, weight.shape
    y, found, start = device.buffer(4 * len(x) * rows), [], 0
    others = [device.buffer(16), device.buffer(4 * INFO), device.upload([x]), y]
    for piece in weight.pieces:
        own = (Segment(weight.layout, piece.rows, piece.base),)
        product = Product(own, columns, len(x), gains=4, start=start, stride=rows)
        found.append(device.bind(product.kernel(), [piece.buffer, piece.buffer, *others], *product.grid))
        start += piece.rows
    device.run(found)
    return device.read(y, 0, 4 * len(x) * rows).view(np.float32).reshape(len(x), rows)


RUNG = Rows()
