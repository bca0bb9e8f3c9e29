"""Every rung of ``encoder`` against NumPy in float64."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rung.core.value import FrozenDict
from rung.ops import LADDERS, examples
from rung.ops.encoder.self_check import check

_, CASE = examples("encoder", "f32")[0]


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
@pytest.mark.parametrize("rung", LADDERS["encoder"].rungs, ids=lambda rung: rung.name)
def test_a_rung_passes_its_self_check(rung, activation: str) -> None:
    if "package.torch" in rung.needs:
        pytest.importorskip("torch")
    assert check(rung, replace(CASE, options=FrozenDict({"activation": activation})), "cpu") == ""


def test_the_self_check_tells_activations_apart() -> None:
    """A rung that computes another activation fails it."""

    class Other:
        def __init__(self, rung) -> None:
            self.rung = rung

        def load(self):
            return self

        def prepare(self, weights, *, threads):
            real = self.rung.load()
            return real, real.prepare(replace(weights, shape=replace(weights.shape, activation="gelu_tanh")), threads=1)

        def apply(self, state, texts):
            return state[0].apply(state[1], texts)

    assert "instead of" in check(Other(LADDERS["encoder"].rung("numpy.layers")), CASE, "cpu")  # type: ignore[arg-type]
