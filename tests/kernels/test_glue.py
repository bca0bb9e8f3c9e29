"""Vectors and the functions between the ops against numpy in float64."""

import functools

import numba
import numpy as np
import pytest

from rung.kernels.cpu.decode import elementwise
from rung.kernels.isa import generic

GENERATOR = np.random.default_rng(5)


def at(array):
    return array.ctypes.data


def applied(function, x):
    """``function`` of one vector over an array of a multiple of 16 values."""

    @numba.njit
    def run(source, target, count):
        for j in range(0, 4 * count, 64):
            generic.store(target + j, function(generic.load(source + j)))

    out = np.empty_like(x)
    run(at(x), at(out), x.size)
    return out.astype(np.float64)


@functools.cache
def caller(function):
    """A function of kernels, for Python: kernels call them, and they have no code of their own."""

    @numba.njit
    def call(*arguments):
        function(*arguments)

    return call


def test_exponential_is_right_to_the_last_places():
    x = np.linspace(-86.9, 87.9, 1600).astype(np.float32)
    np.testing.assert_allclose(applied(generic.exponential, x), np.exp(x.astype(np.float64)), rtol=2e-7)


def test_exponential_is_held_at_both_ends_and_keeps_nan():
    x = np.array([-np.inf, -1e30, 1e30, np.nan, *[0.0] * 12], np.float32)
    found = applied(generic.exponential, x)
    assert 0 <= found[0] == found[1] < 1e-37
    assert 1e38 < found[2] < np.inf
    assert np.isnan(found[3])
    assert found[4] == 1


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (generic.tangent, np.tanh),
        (generic.silu, lambda x: x / (1 + np.exp(-x))),
        (generic.gelu, lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))),
    ],
    ids=["tangent", "silu", "gelu"],
)
def test_functions_of_one_value(function, expected):
    x = np.linspace(-30, 30, 3200).astype(np.float32)
    np.testing.assert_allclose(applied(function, x), expected(x.astype(np.float64)), rtol=1e-6, atol=4e-7)


@pytest.mark.parametrize("count", [16, 48, 256])
def test_norm(count):
    x, weight = (GENERATOR.standard_normal(count).astype(np.float32) for _ in range(2))
    out = np.empty_like(x)
    caller(elementwise.norm)(at(x), at(weight), at(out), count, np.float32(1e-5))
    wide = x.astype(np.float64)
    np.testing.assert_allclose(out, wide / np.sqrt(np.mean(wide**2) + 1e-5) * weight, rtol=1e-5)
    caller(elementwise.norm)(at(x), at(weight), at(x), count, np.float32(1e-5))
    np.testing.assert_array_equal(x, out)


@pytest.mark.parametrize("half", [4, 16, 24])
@pytest.mark.parametrize("interleaved", [False, True])
def test_rotate(half, interleaved):
    x = GENERATOR.standard_normal(2 * half + 16).astype(np.float32)
    angle = GENERATOR.uniform(-3, 3, half)
    cosine, sine = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    pairs = x[: 2 * half].reshape(half, 2).T if interleaved else x[: 2 * half].reshape(2, half)
    turned = (pairs[0] + 1j * pairs[1]) * np.exp(1j * angle)
    rest = x[2 * half :].copy()
    caller(elementwise.rotate)(at(x), at(cosine), at(sine), half, interleaved)
    after = x[: 2 * half].reshape(half, 2).T if interleaved else x[: 2 * half].reshape(2, half)
    np.testing.assert_allclose(after[0] + 1j * after[1], turned, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(x[2 * half :], rest)


def test_cap():
    x = (GENERATOR.standard_normal(64) * 60).astype(np.float32)
    expected = 30 * np.tanh(x.astype(np.float64) / 30)
    caller(elementwise.cap)(at(x), 64, np.float32(30))
    np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-5)
