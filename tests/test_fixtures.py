"""The GGUF fixtures are what their index says, and the bars they are held to can be missed."""

from __future__ import annotations

import numpy as np

from tests.fixtures import references

FIXTURES = references.fixtures()
BARS = {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q5_1", "Q4_K_M", "Q6_K", "IQ4_NL", "MXFP4"}


def test_index_and_folder_agree() -> None:
    listed = {name for one in FIXTURES for name in (*one.files, f"{one.name}.npz")}
    present = {path.name for path in references.FOLDER.iterdir()} - {"index.json"}
    assert listed == present


def test_every_architecture_and_format_of_the_bars_is_there() -> None:
    models = {one.model["model_type"] for one in FIXTURES if one.format == "F32"}
    assert models == {"gemma", "gemma2", "gemma3_text", "llama", "mistral", "phi3", "qwen2", "qwen3"}
    ropes = {one.model.get("rope_parameters", {}).get("rope_type") for one in FIXTURES}
    assert ropes >= {"linear", "llama3", "yarn", "longrope"}
    for model in ("llama", "gemma2"):
        assert {one.format for one in FIXTURES if one.model["model_type"] == model} >= BARS


def test_llama_cpp_meets_the_bars_of_f32_too() -> None:
    """The reference, the way back from the file and the recorded ids fit together: a second opinion on each."""
    plain = [one for one in FIXTURES if one.format == "F32"]
    assert max(one.peer.divergence for one in plain) < references.F32_DIVERGENCE
    assert min(one.peer.same_choice for one in FIXTURES) >= references.SAME_CHOICE


def test_agreement_counts_near_choices_as_equal_and_far_ones_not() -> None:
    reference = np.array([[0.0, 3.0, 3.05, 0.0], [0.0, 3.0, 1.0, 0.0]], np.float32)
    found = np.array([[0.0, 3.1, 3.0, 0.0], [0.0, 1.0, 3.0, 0.0]], np.float32)
    assert references.agreement(reference, reference) == references.Agreement(0.0, 1.0)
    assert references.agreement(reference, found).same_choice == 0.5
    assert references.agreement(reference, found).divergence > 0.5
