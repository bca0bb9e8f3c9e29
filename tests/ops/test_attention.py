"""The rungs of attention against ``ref``, and ``ref`` against a sum written out by hand."""

import math

import pytest
import torch

from rung.core.types import Capability, Case, Device, Level, Proof
from rung.core.value import FrozenDict
from rung.ops.attention import LADDER
from rung.ops.attention.numpy_sdpa import RUNG as ARRAYS
from rung.ops.attention.ref import RUNG as REF


def case(queries, keys, heads, kv_heads, size, dtype=torch.float32):
    """Queries, and views of a longer cache laid out [kv_heads, context, size]."""
    generator = torch.Generator().manual_seed(1009 * queries + keys)  # whatever other tests have run
    q = torch.randn(queries, heads, size, generator=generator)
    k, v = (torch.randn(kv_heads, keys + 9, size, generator=generator).to(dtype) for _ in range(2))
    return q, k[:, :keys].transpose(0, 1), v[:, :keys].transpose(0, 1)


def bound(softcap):
    """A capped score is rounded as a number as large as the cap, and its exponential is off by as much."""
    return 2e-6 + (softcap or 0) * torch.finfo(torch.float32).eps


def by_hand(q, keys, values, start, scale, window, softcap):
    out = torch.zeros_like(q, dtype=torch.float64)
    group = q.shape[1] // keys.shape[1]
    for t in range(q.shape[0]):
        for h in range(q.shape[1]):
            first = 0 if window is None else max(0, start + t - window + 1)
            positions = range(first, start + t + 1)
            scores = [float(q[t, h].double() @ keys[s, h // group].double()) * scale for s in positions]
            if softcap is not None:
                scores = [softcap * math.tanh(score / softcap) for score in scores]
            top = max(scores)
            weights = [math.exp(score - top) for score in scores]
            for s, weight in zip(positions, weights, strict=True):
                out[t, h] += weight / sum(weights) * values[s, h // group].double()
    return out


@pytest.mark.parametrize(("window", "softcap"), [(None, None), (3, None), (4, 2.0), (None, 5.0)])
def test_ref_is_the_sum_written_out(window, softcap):
    q, k, v = case(4, 9, 4, 2, 16)
    options = {"start": 5, "scale": 0.3, "window": window, "softcap": softcap}
    torch.testing.assert_close(
        REF.apply(q, k, v, **options).double(), by_hand(q, k, v, **options), rtol=1e-5, atol=1e-6
    )


SHAPES = [
    (1, 1, 4, 4, 16),
    (1, 33, 4, 1, 48),
    (1, 300, 8, 2, 64),
    (1, 70, 5, 1, 96),
    (1, 130, 8, 1, 256),
    (5, 5, 4, 2, 32),
    (7, 40, 4, 4, 80),
    (33, 64, 6, 2, 24),
]


@pytest.mark.parametrize("rung", [r for r in LADDER.rungs if r.name not in ("ref", "numpy.sdpa")], ids=lambda r: r.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (20, None), (20, 3.0), (None, 30.0), (1, None)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rungs_equal_ref(rung, dtype, window, softcap, shape):
    queries, keys = shape[:2]
    if not rung.verdict(Case("attention", "f32", "f32", shape), CPU):
        assert shape[4] % 16 or (rung.name == "numba.decode" and queries > 1)
        return
    q, k, v = case(*shape, dtype)
    before = q.clone(), k.clone(), v.clone()
    options = {"start": keys - queries, "scale": shape[4] ** -0.5, "window": window, "softcap": softcap}
    found = rung.load().apply(q, k, v, **options)
    expected = REF.apply(q.double(), k, v, **options)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=bound(softcap))
    assert all(torch.equal(now, then) for now, then in zip((q, k, v), before, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("window", "softcap"), [(None, None), (20, None), (20, 3.0), (None, 30.0), (1, None)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_arrays_give_what_tensors_give(dtype, window, softcap, shape):
    queries, keys = shape[:2]
    q, k, v = case(*shape, dtype)
    options = {"start": keys - queries, "scale": shape[4] ** -0.5, "window": window, "softcap": softcap}
    found = ARRAYS.attend(*(each.numpy() for each in (q, k, v)), **options)
    expected = REF.apply(q.double(), k, v, **options)
    torch.testing.assert_close(torch.from_numpy(found).double(), expected, rtol=1e-5, atol=bound(softcap))


def test_scores_far_apart_do_not_overflow():
    q, k, v = case(1, 20, 1, 1, 16)
    k[:] = 0
    k[7] = 500 * q[0]
    options = {"start": 19, "scale": 1.0, "window": None, "softcap": None}
    for rung in LADDER.rungs:
        if rung.name == "numpy.sdpa":
            found = torch.from_numpy(ARRAYS.attend(*(each.numpy() for each in (q, k, v)), **options))
        else:
            found = rung.load().apply(q, k, v, **options)
        torch.testing.assert_close(found[0], v[7], rtol=1e-6, atol=1e-6)


CPU = Device(
    "cpu",
    "cpu",
    "a processor",
    "x86_64",
    2**34,
    capabilities=FrozenDict({"isa.kernels": Capability("isa.kernels", Level.NATIVE, Proof.PROBE)}),
    software=FrozenDict({"numba": "0.68", "torch": "2.13"}),
)


@pytest.mark.parametrize(
    ("shape", "dtype", "expected"),
    [
        ((1, 300, 8, 2, 64), "f16", "numba.decode"),
        ((2, 300, 8, 2, 64), "f16", "numba.prefill"),
        ((1, 300, 8, 2, 72), "f16", "torch.sdpa"),
        ((1, 300, 8, 2, 64), "bf16", "numba.decode"),
        ((1, 300, 8, 2, 64), "e4m3", "torch.sdpa"),
    ],
)
def test_the_ladder_takes_the_fast_rung_where_it_fits(shape, dtype, expected):
    climb = LADDER.climb(CPU, Case("attention", dtype, "f32", shape))
    assert climb.rung.name == expected
    assert all(refusal.reason for refusal in climb.refusals)


def test_a_processor_without_kernels_is_refused_with_the_reason():
    old = CPU.with_capabilities([Capability("isa.kernels", Level.ABSENT, Proof.PROBE)])
    climb = LADDER.climb(old, Case("attention", "f32", "f32", (1, 9, 4, 4, 64)))
    assert climb.rung.name == "torch.sdpa"
    assert "isa.kernels" in climb.refusals[0].reason
