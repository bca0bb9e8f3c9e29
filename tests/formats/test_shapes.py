"""Test what codecs refuse, and the measure of their error."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rung import formats
from rung.core.errors import UsageError
from rung.formats import sqnr


def test_rows_that_the_block_does_not_divide_are_refused_with_what_does() -> None:
    with pytest.raises(UsageError, match="blocks of 256 do not divide rows of 96") as caught:
        formats.encode(np.zeros((2, 96)), formats.get("q4_k"), name="blk.1.ffn_down.weight")
    assert "blk.1.ffn_down.weight" in caught.value.cause
    assert "q5_0" in caught.value.ways_out[0]


def test_a_format_without_an_encoder_says_so() -> None:
    with pytest.raises(UsageError, match="reads iq2_xxs and does not write it"):
        formats.encode(np.zeros((2, 256)), formats.get("iq2_xxs"))


@pytest.mark.parametrize("shape", [(), (5,), (2, 3, 4)])
def test_a_weight_has_rows_and_columns(shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"norm has the shape .* a weight is \[rows, columns\]"):
        formats.encode(np.zeros(shape), formats.get("f32"), name="norm")


def test_sqnr_is_ten_logarithms_of_the_ratio_of_energies() -> None:
    assert sqnr([3.0, 4.0], [3.0, 4.5]) == pytest.approx(10 * math.log10(25 / 0.25))
    assert sqnr([1.0, 1.0], [0.0, 0.0]) == pytest.approx(0.0)
    assert sqnr([1.0], [-1.0]) == pytest.approx(10 * math.log10(1 / 4))


@pytest.mark.parametrize("scale", [1e-40, 1e-30, 1.0, 1e30])
@pytest.mark.parametrize("count", [10, 100_000])
def test_sqnr_depends_on_neither_scale_nor_size(scale: float, count: int) -> None:
    weights = np.tile([1.0, -2.0], count) * scale
    assert sqnr(weights, weights * 1.01) == pytest.approx(40.0, abs=1e-3)


def test_sqnr_of_nothing_lost_and_of_something_from_nothing() -> None:
    assert sqnr([1.0, 0.0], [1.0, 0.0]) == math.inf
    assert sqnr([0.0], [0.0]) == math.inf
    assert sqnr([0.0], [1e-9]) == -math.inf
