"""Logits of every GGUF fixture (llama.cpp wrote and quantised them) against transformers on the decoded weights."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "fixtures"))
import references

FIXTURES = references.fixtures()
BARS = {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_1", "Q4_K_M", "Q6_K", "IQ4_NL", "MXFP4"}


def test_index_and_folder_agree() -> None:
    listed = {name for one in FIXTURES for name in (*one.files, f"{one.name}.npz")}
    present = {path.name for path in references.FOLDER.iterdir()} - {"index.json"}
    assert listed == present


def test_every_architecture_and_format_of_the_bars_is_there() -> None:
    models = {one.model["model_type"] for one in FIXTURES if one.format == "F32"}
    assert models == {"gemma", "gemma2", "gemma3_text", "llama", "mistral", "phi3", "qwen2", "qwen3"}
    formats = {one.format for one in FIXTURES}
    assert formats >= BARS


def test_agreement_counts_near_choices_as_equal_and_far_ones_not() -> None:
    reference = np.array([[0.0, 3.0, 3.05, 0.0], [0.0, 3.0, 1.0, 0.0]], np.float32)
    found = np.array([[0.0, 3.1, 3.0, 0.0], [0.0, 1.0, 3.0, 0.0]], np.float32)
    assert references.agreement(reference, reference) == references.Agreement(0.0, 1.0)
    assert references.agreement(reference, found).same_choice == 0.5
    assert references.agreement(reference, found).divergence > 0.5


def _parameters() -> list[Any]:
    """All fixtures; those of formats that the bars do not name run with the slow tests."""
    return [pytest.param(one, id=one.name, marks=[] if one.format in BARS else [pytest.mark.slow]) for one in FIXTURES]


@pytest.mark.parametrize("fixture", _parameters())
def test_logits_are_those_of_the_decoded_weights(fixture: references.Fixture, monkeypatch: pytest.MonkeyPatch) -> None:
    import rung

    monkeypatch.setenv("RUNG_THREADS", "1")  # as small as these are, a second thread only waits
    ids, wanted = fixture.reference()
    model = rung.load(str(fixture.path), device="cpu", context=fixture.context)
    for logits in (model.logits(ids.tolist()).numpy(), references.token_by_token(model, ids)):
        found = references.agreement(wanted, logits)
        assert found.divergence < fixture.bar, f"llama.cpp: {fixture.peer}"
        assert found.same_choice >= references.SAME_CHOICE
    assert not [step for step in model.report.steps if step.step == "broken"]
    assert {rung for work, rung in model.report.rungs.items() if work.startswith("linear")}.isdisjoint({"ref"})
