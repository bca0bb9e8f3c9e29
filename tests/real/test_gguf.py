"""Logits of every GGUF fixture (llama.cpp wrote and quantized them) against transformers on the decoded weights."""

from __future__ import annotations

from typing import Any

import pytest

import rung
from rung.kernels.cpu import target
from rung.ops.linear import READ_AS_STORED
from tests.fixtures import references

FIXTURES = references.fixtures()
IDS = [one.name for one in FIXTURES]


def check_rungs(model: Any) -> None:
    """Nothing was passed over or broken: a step down must not hide behind logits that are right all the same."""
    assert model.report.steps == ()
    if not target.features():
        return
    taken = {work: set(names.split(", ")) for work, names in model.report.rungs.items()}
    linears = {work.split()[1]: names for work, names in taken.items() if work.startswith("linear")}
    for format, names in linears.items():
        assert names == ({"numba.stored", "torch.decode"} if format in READ_AS_STORED else {"numba.row", "numba.tile"})
    attention, step = {"numba.decode", "numba.prefill"}, {"numba.step"}
    if model.card.decoder.head_dim % 16:  # some of the smallest files: vectors of 16 cannot hold their heads
        attention, step = {"torch.sdpa"}, {"ref"}
    assert taken[f"attention {model.plan.cache_dtype}"] == attention
    assert taken[f"decode_step {model.plan.cache_dtype}"] == step


@pytest.mark.parametrize("fixture", FIXTURES, ids=IDS)
def test_logits_are_those_of_the_decoded_weights(fixture: references.Fixture) -> None:
    """Read as a prompt, and fed one token after the other, as when it generates."""
    ids, expected = fixture.reference()
    model = rung.load(fixture.path, device="cpu", context=fixture.context)
    for logits in (model.logits(ids.tolist()).numpy(), references.token_by_token(model, ids)):
        found = references.agreement(expected, logits)
        assert found.divergence < fixture.bar, f"llama.cpp: {fixture.peer}"
        assert found.same_choice >= references.SAME_CHOICE
    check_rungs(model)
