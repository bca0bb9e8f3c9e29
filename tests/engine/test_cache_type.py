"""Test the types of the KV cache, from the option to the answers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import rung
from rung.core.errors import UsageError
from rung.engine.scheduling.sequence_reader import SequenceReader

GGUF = Path(__file__).parents[1] / "fixtures" / "gguf"
MODEL = str(GGUF / "llama-q4_0.gguf")
PROMPT = "The sea was calm, and the sea was wide, and nobody"


def load(cache_type, model=MODEL, **options):
    return rung.load(model, context=128, device="cpu", cache_type=cache_type, **options)


@pytest.mark.parametrize(("cache_type", "bound"), [("q8_0", 0.1), ("q5_1", 0.5), ("q4_0", 1.0)])
def test_logits_of_a_cache_in_blocks_are_near_those_of_float32(cache_type, bound):
    """Token by token the same bytes as in one prompt, and not those of float16: it is another cache."""
    ids = list(range(5, 105))
    found = {each: load(each).logits(ids).numpy().astype(np.float64) for each in ("f32", "f16", cache_type)}
    assert not np.array_equal(found[cache_type], found["f16"])
    assert np.abs(found[cache_type] - found["f32"]).max() < bound * found["f32"].std()
    with SequenceReader(load(cache_type).backend) as reader:
        single = np.stack([reader.step(token) for token in ids])
    np.testing.assert_array_equal(single, found[cache_type])


@pytest.mark.parametrize("cache_type", ["q8_0", "q5_1", "q4_0"])
def test_the_report_and_the_plan_name_it(cache_type):
    model = load(cache_type)
    assert model.plan.cache_dtype == cache_type
    assert f"cache {cache_type}: as asked" in model.plan.reasons
    assert dict(model.report.rungs)[f"decode_step {cache_type}"] == "numba.step"
    assert not any(name.startswith("attention") for name in dict(model.report.rungs))
    assert load("auto").plan.cache_dtype == load(None).plan.cache_dtype == "f16"


@pytest.mark.parametrize("cache_type", ["q8_0", "q5_1", "q4_0"])
def test_windows_prefixes_and_guesses_change_no_answer(cache_type):
    """A model with windows: a text that repeats itself, from a cache that begins empty and from one that knows it."""
    model = load(cache_type, str(GGUF / "gemma2-q6_k.gguf"))
    prompt = "one two three one two three one two three one two"
    first = model.generate(prompt, raw=True, max_tokens=24, temperature=0)
    said = "".join(first)
    again = model.generate(prompt, raw=True, max_tokens=24, temperature=0)
    assert "".join(again) == said
    assert again.result["cached_tokens"] > 0
    fresh = load(cache_type, str(GGUF / "gemma2-q6_k.gguf"), threads=1)
    assert "".join(fresh.generate(prompt, raw=True, max_tokens=24, temperature=0)) == said


def test_prefix_files_are_those_of_one_type(tmp_path):
    def ask(cache_type):
        model = load(cache_type, prefix_cache=str(tmp_path))
        answer = model.generate(10 * PROMPT[:9], raw=True, max_tokens=4, temperature=0)
        said = "".join(answer)
        model.backend.prefixes.clear()
        return said, answer.result["cached_tokens"]

    answers = {each: ask(each) for each in ("q8_0", "f16", "q5_1", "q4_0")}
    assert all(cached == 0 for _, cached in answers.values())
    for each in ("q8_0", "q5_1", "q4_0"):
        again = ask(each)
        assert again[0] == answers[each][0]
        assert again[1] > 0


@pytest.mark.parametrize(
    ("model", "cache_type", "words"),
    [
        (MODEL, "q4_1", "not stored in 'q4_1'"),
        (str(GGUF / "llama-q4_1.gguf"), "q8_0", "multiple of 32 values, not 16"),
        (str(GGUF / "llama-q4_1.gguf"), "q4_0", "multiple of 32 values, not 16"),
    ],
)
def test_what_cannot_be_is_refused(model, cache_type, words):
    with pytest.raises(UsageError) as caught:
        load(cache_type, model)
    assert words in str(caught.value)
