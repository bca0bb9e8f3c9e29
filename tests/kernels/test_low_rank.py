"""Compare what adapters add with float64: every kind, rows and ranks that fill no vector, rows that lie apart."""

import numpy as np
import pytest

from rung.kernels.cpu.gemm.low_rank import LowRankRows, put_together

ROUND = {
    "f16": lambda a: a.astype(np.float16).astype(np.float32),
    "bf16": lambda a: (a.view(np.uint32) & 0xFFFF0000).view(np.float32) * np.float32(2.0**-20),
    "f32": lambda a: a,
}


@pytest.mark.parametrize("kind", ROUND)
@pytest.mark.parametrize(
    ("rows", "tokens", "rank", "dora"), [(96, 1, 4, 0), (131, 11, 17, 1), (7, 12, 1, 1), (64, 9, 3, 0)]
)
@pytest.mark.parametrize("threads", [1, 3])
def test_it_is_the_product_of_both_matrices(kind, rows, tokens, rank, dora, threads):
    random = np.random.default_rng(rows)
    down, up = (ROUND[kind](random.standard_normal(s).astype(np.float32)) for s in ((rank, 80), (rows, rank)))
    factor = random.standard_normal(rows).astype(np.float32) if dora else None
    packed = LowRankRows.pack(down, up, factor)
    assert packed.kind == kind
    x, y = (
        random.standard_normal((tokens, 96)).astype(np.float32),
        random.standard_normal((tokens, rows + 5)).astype("f4"),
    )
    kept, expected = y[:, rows:].copy(), y[:, :rows].astype(float) + x[:, :80].astype(float) @ down.T @ up.T
    packed.add(x.ctypes.data, x.strides[0], tokens, y.ctypes.data, y.strides[0], threads)
    expected = expected if factor is None else expected * factor
    np.testing.assert_allclose(y[:, :rows], expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    assert np.array_equal(y[:, rows:], kept)


@pytest.mark.parametrize(
    ("value", "kind"), [(0.5, "f16"), (70000.0, "f32"), (65536.0, "bf16"), (0.1, "f32"), (1e-30, "f32")]
)
def test_the_kind_loses_no_bit(value, kind):
    down, up = np.full((2, 16), value, np.float32), np.ones((3, 2), np.float32)
    packed = LowRankRows.pack(down, up)
    assert packed.kind == kind
    x, y = np.zeros((1, 16), np.float32), np.zeros((1, 3), np.float32)
    x[0, 3] = 1
    packed.add(x.ctypes.data, 64, 1, y.ctypes.data, 12, 1)
    assert np.array_equal(y[0], np.full(3, 2 * np.float32(value)))


def test_changes_in_one_piece_of_memory_are_the_same():
    random = np.random.default_rng(5)
    changes = [
        LowRankRows.pack(*(ROUND[kind](random.standard_normal(s).astype("f4")) for s in ((rank, 48), (rows, rank))))
        for kind, rank, rows in (("f16", 5, 33), ("f32", 3, 16), ("bf16", 8, 7))
    ]
    x = random.standard_normal((3, 48)).astype("f4")
    for before, after in zip(changes, put_together(changes), strict=True):
        assert after.down.ctypes.data % 64 == after.up.ctypes.data % 64 == 0
        results = np.zeros((2, 3, before.shape[0]), np.float32)
        for change, y in zip((before, after), results, strict=True):
            change.add(x.ctypes.data, x.strides[0], 3, y.ctypes.data, y.strides[0], 2)
        assert results.any()
        assert np.array_equal(*results)
