"""Test the results of probes: right numbers pass, wrong ones are found."""

import pytest
import torch

from rung.run.probes import rates, start, values

DTYPES = ("f32", "f16", "bf16", "f64", "int8", "fp8")


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(start, "found_device", None)
    start.start("cpu", "x86_64", {}, torch.get_num_threads())


# ---- the comparison


EXPECTED = torch.linspace(1.0, 2.0, 60, dtype=torch.float64).reshape(6, 10)


def one_row(factor):
    matrix = EXPECTED.clone()
    matrix[3] *= factor
    return matrix


@pytest.mark.parametrize(
    ("got", "words"),
    [
        (EXPECTED * (1 + 1e-5), ""),
        (EXPECTED * 2, "off by 1 as a whole"),
        (EXPECTED * 1.009, "the scale is 1.009"),
        (one_row(1.022), "row 3 is off by 0.022"),
        (one_row(float("nan")), "not finite"),
        (one_row(float("inf")), "not finite"),
        (EXPECTED[:5], "the shape is (5, 10), not (6, 10)"),
        (torch.zeros_like(EXPECTED), "off by 1 as a whole"),
    ],
    ids=["right", "doubled", "scaled", "one row", "nan", "inf", "shape", "zeros"],
)
def test_wrong_numbers_are_seen(got, words):
    problem = values.wrong(got, EXPECTED, 0.01)
    assert words in problem
    assert bool(words) == bool(problem)


def test_a_tolerance_of_zero_asks_for_equality():
    assert values.wrong(EXPECTED, EXPECTED, 0.0) == ""
    assert values.wrong(one_row(1 + 1e-15), EXPECTED, 0.0) == "wrong numbers, first in row 3"


@pytest.mark.parametrize("dtype", DTYPES)
def test_this_processor_multiplies_rightly(on_cpu, dtype):
    assert values.matmul(dtype) == ""


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64"])
def test_this_processor_attends_rightly(on_cpu, dtype):
    assert values.attention(dtype) == ""


@pytest.mark.parametrize("dtype", DTYPES)
def test_this_processor_computes_elements_rightly(on_cpu, dtype):
    assert values.elementwise(dtype) == ""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "spoil",
    [lambda y: y * 2, lambda y: torch.cat([y[:-1], y[-1:] * 0]), lambda y: y.roll(1, -1)],
    ids=["scale", "row", "order"],
)
def test_a_product_that_computes_something_else_is_seen(on_cpu, monkeypatch, dtype, spoil):
    right = values.product
    monkeypatch.setattr(values, "product", lambda x, w: spoil(right(x, w)))
    assert "wrong numbers" in values.matmul(dtype)


def test_rates_are_of_this_world(on_cpu):
    assert 1e8 < rates.matmul("f32", 1 << 24) < 1e14
    assert 1e8 < rates.bandwidth(1 << 24) < 1e13


# ---- which code a torch build has


@pytest.mark.parametrize(
    ("arch", "built", "runs"),
    [
        ("sm_61", ["sm_60", "sm_70"], True),
        ("sm_61", ["sm_50", "sm_70", "sm_75"], False),
        ("sm_61", ["sm_50", "compute_50"], True),
        ("sm_61", ["compute_70"], False),
        ("sm_75", ["sm_75"], True),
        ("sm_75-tu11x", ["sm_75"], True),
        ("sm_86", ["sm_80", "sm_90"], True),
        ("sm_86", ["sm_89"], False),
        ("sm_120", ["sm_100", "sm_120"], True),
        ("sm_120", ["sm_90", "compute_90"], True),
        ("sm_121", ["sm_120"], True),
        ("sm_90", ["sm_90a"], False),
        ("gfx1100", ["gfx1030", "gfx1100"], True),
        ("gfx90a", ["gfx90a:xnack+"], True),
        ("gfx1101", ["gfx1100"], False),
        ("sm_61", [], True),
    ],
)
def test_code_for_an_architecture(arch, built, runs):
    refusal = start.lacks_code(arch, built, "2.13.0+cu130")
    assert (refusal == "") is runs
    if refusal:
        assert arch.split("-")[0] in refusal
        assert all(target in refusal for target in built)
