"""``--cache-type`` of the commands that plan or run a language model."""

from __future__ import annotations

import json

import pytest

from rung import load
from rung.quantization import running


@pytest.fixture
def few_tokens(monkeypatch):
    """A KL is measured on an eighth of the tokens."""
    monkeypatch.setattr(running, "TOKENS", 512)


@pytest.mark.parametrize("command", [("plan", "demo"), ("check", "demo", "--device", "cpu")])
def test_what_plans_counts_it(rung, command):
    found = {}
    for cache_type in ("f16", "q8_0", "q5_1", "q4_0"):
        answer = json.loads(rung(*command, "--cache-type", cache_type, "--json").out)
        assert f"cache {cache_type}: as asked" in json.dumps(answer)
        choice = answer["placements"][0] if "placements" in answer else answer["choices"][answer["best"]]
        found[cache_type] = choice["memory"]["kv_cache"]
    assert 32 * found["q8_0"] == 17 * found["f16"]
    assert 32 * found["q5_1"] == 12 * found["f16"]
    assert 32 * found["q4_0"] == 9 * found["f16"]


def test_what_runs_takes_it(rung, tmp_path):
    result = json.loads(rung("run", "demo", "hello", "--max-tokens", "3", "--cache-type", "q8_0", "--json").out)
    assert result["report"]["rungs"]["decode_step q8_0"] == "numba.step"
    (tmp_path / "in.txt").write_text("hello\n")
    done = rung(
        "batch", str(tmp_path / "in.txt"), str(tmp_path / "out.jsonl"), "--model", "demo", "--cache-type", "q8_0"
    )
    assert done.code == 0
    assert "cache q8_0: as asked" in done.err


@pytest.mark.parametrize("command", [("plan", "demo"), ("check", "demo"), ("run", "demo", "hello")])
def test_another_one_is_refused_with_those_that_there_are(rung, command):
    said = rung(*command, "--cache-type", "q4_1")
    assert said.code == 2
    assert "f32, f16, q8_0, q5_1, q4_0" in said.err


def test_run_says_what_it_took_and_refuses_what_it_cannot(rung, few_tokens):
    done = rung("run", "demo", "hello", "--max-tokens", "3", "--context", "256", "--max-kl", "10", "--device", "cpu")
    assert done.code == 0
    assert "within a KL of 10: keys and values in q4_0" in done.err
    done = rung("run", "demo", "hello", "--max-tokens", "3", "--context", "256", "--max-kl", "0", "--json")
    answer = json.loads(done.out)
    assert answer["expected_kl"] == 0
    for options, says in ((("--max-kl", "-1"), "is no KL"), (("--max-kl", "1", "--cache-type", "f16"), "chooses what")):
        refused = rung("run", "demo", "hello", *options)
        assert refused.code == 2
        assert says in refused.err


def test_batch_and_the_library_choose_within_a_kl_and_say_so(rung, few_tokens, tmp_path):
    (tmp_path / "in.txt").write_text("hello\n")
    command = ("batch", str(tmp_path / "in.txt"), str(tmp_path / "out.jsonl"), "--model", "demo", "--context", "256")
    assert rung(*command, "--max-kl", "10", "--cache-type", "f16").code == 2
    done = rung(*command, "--max-kl", "10", "--device", "cpu")
    assert done.code == 0
    assert "within a KL of 10: keys and values in q4_0" in done.err
    model = load("demo", context=256, device="cpu", max_kl=0)
    assert (model.plan.format, model.plan.cache_dtype) == ("f32", "f32")
    assert any(note.startswith("within a KL of 0: keys and values in f32") for note in model.report.notes)
