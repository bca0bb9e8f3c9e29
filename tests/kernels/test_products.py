"""Products of many rows of activations, which are cut into tiles and passes, beside those of few."""

import numpy as np
import pytest

from rung import formats
from rung.kernels.cpu.gemm.product import product
from rung.kernels.cpu.pack.packing import pack
from tests.ops.conformance import weight

ROWS, OUT = 70, 83


def _multiply(packed, x):
    y = np.zeros((len(x), packed.shape[0]), np.float32)
    product(packed, x.ctypes.data, x.strides[0], len(x), y.ctypes.data, y.ctypes.data, "f32")
    return y


@pytest.mark.parametrize("name", ["q8_0", "int8", "nf4:64", "q5_1", "iq4_xs", "nvfp4", "u8:32:f16", "q4_0", "q6_k"])
def test_many_rows_give_what_few_give(name):
    """Bit for bit in rows of 2048 columns; longer ones are added up in pieces."""
    for columns, equal in ((2048, True), (4608, False)):
        packed = pack(weight(formats.get(name), OUT, columns), 2)
        x = np.random.default_rng(0).standard_normal((ROWS, columns), dtype=np.float32)
        many = _multiply(packed, x)
        few = np.concatenate([_multiply(packed, x[first : first + 2]) for first in range(0, ROWS, 2)])
        if equal:
            assert np.array_equal(many, few)
        else:
            np.testing.assert_allclose(many, few, rtol=0, atol=2e-6 * np.abs(few).max())
