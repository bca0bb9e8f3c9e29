"""Settings of sampling, and the choices of sequences one after the other and beside each other."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.ops.conformance import CPU

from rung.core.errors import UsageError
from rung.core.types import Case
from rung.engine.load import load
from rung.engine.sampling import Sampler, Sampling, likeliest, logprob_entry
from rung.ops.sample import LADDER
from rung.ops.token_choice import Chosen

GGUF = Path(__file__).parent.parent / "fixtures" / "gguf"
RUNG = next(rung for rung in LADDER.rungs if rung.verdict(Case("sample", "f32", "f32", (1, 100)), CPU)).load()
STATE = RUNG.prepare(threads=2)


def sample(values, rows):
    """The rung that this machine takes."""
    return RUNG.apply(STATE, values, rows)


def tokens(sampler: Sampler, *steps: np.ndarray, answer: tuple[int, ...] = ()) -> list[int]:
    """The tokens that one sequence chooses from logits, one after the other."""
    said = list(answer)
    for values in steps:
        (found,) = sample(values.reshape(1, -1), sampler.rows(said))
        assert not found.error
        said.append(found.token)
    return said[len(answer) :]


def token(sampler: Sampler, values: np.ndarray) -> int:
    """The first token of one sequence."""
    return tokens(sampler, values)[0]


def logits(size: int = 50, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32) * 3


def test_temperature_zero_is_the_likeliest_token_whatever_else_is_said() -> None:
    values = logits(1000)
    best = int(values.argmax())
    sampler = Sampler(Sampling.of({"repeat_penalty": 1.5, "top_k": 40, "top_p": 0.5}, temperature=0.0), [best])
    assert tokens(sampler, *[values] * 5) == [best] * 5
    assert sampler.seed is None


def test_greedy_with_a_penalty_that_was_asked_for_moves_on() -> None:
    values = np.array([1.0, 2.0, 1.9, -1.0], np.float32)
    sampler = Sampler(Sampling.of({}, temperature=0.0, repeat_penalty=2.0), [])
    # 2.0 -> 1.0 after the first, then 1.9 -> 0.95; of equal ones the lower id
    assert tokens(sampler, *[values] * 3) == [1, 2, 0]
    assert values.tolist() == pytest.approx([1.0, 2.0, 1.9, -1.0])


def test_the_repeat_penalty_counts_the_prompt_and_openais_penalties_count_the_answer() -> None:
    values = np.array([2.0, 1.9, 1.5, 0.0], np.float32)
    assert token(Sampler(Sampling(repeat_penalty=2.0), [0, 0, 1]), values) == 2
    for settings in ({"presence_penalty": 0.7}, {"frequency_penalty": 0.4}):
        sampler = Sampler(Sampling(**settings), [0, 0, 1])
        # presence: 2, 1.9, 1.5, then 1.3; frequency: 2, 1.9, 1.6 (after one), 1.5
        assert tokens(sampler, *[values] * 4) == ([0, 1, 2, 0] if "presence_penalty" in settings else [0, 1, 0, 1])


def test_a_bias_goes_first_and_a_negative_logit_is_penalized_downwards() -> None:
    assert token(Sampler(Sampling(repeat_penalty=2.0), [0]), np.array([-1.0, -1.5], np.float32)) == 1
    values = np.array([1.0, 2.0, 0.5], np.float32)
    assert token(Sampler(Sampling(logit_bias={2: 2.0})), values) == 2
    # 0.5 + 2.0 is halved to 1.25, below 2.0
    assert token(Sampler(Sampling(logit_bias={2: 2.0}, repeat_penalty=2.0), [2]), values) == 1


def test_the_same_seed_gives_the_same_tokens_and_another_does_not() -> None:
    steps = [logits(500, seed) / 3 for seed in range(40)]

    def drawn(seed: int | None, choice: int = 0) -> tuple[list[int], int | None]:
        sampler = Sampler(Sampling(temperature=1.0, top_k=100, seed=seed), choice=choice)
        return tokens(sampler, *steps), sampler.seed

    assert drawn(5) == drawn(5)
    assert drawn(5)[0] != drawn(6)[0]
    assert drawn(5)[0] != drawn(5, choice=1)[0]
    found, seed = drawn(None)
    assert found != drawn(None)[0]
    assert drawn(seed) == (found, seed)
    begun = Sampler(Sampling(temperature=1.0, top_k=100, seed=seed))
    assert tokens(begun, *steps[30:], answer=tuple(found[:30])) == found[30:], "a draw depends on the position alone"


def test_a_sequence_chooses_the_same_alone_and_beside_others() -> None:
    settings = [
        Sampling(),
        Sampling(1.0, seed=3),
        Sampling(0.7, 40, 0.9, seed=3),
        Sampling(1.5, typical_p=0.5, seed=9),
        Sampling(0.9, repeat_penalty=1.2, presence_penalty=0.4, frequency_penalty=0.1, seed=1, logprobs=True),
    ]
    steps = np.stack([[logits(3000, 7 * turn + row) for row in range(len(settings))] for turn in range(20)])

    def answers(order: list[int]) -> list[list[Chosen]]:
        samplers, said = [Sampler(settings[row], [1, 2, 3]) for row in order], [[] for _ in order]
        found = []
        for step in steps:
            rows = [sampler.rows(tokens)[0] for sampler, tokens in zip(samplers, said, strict=True)]
            found.append(sample(step[order], rows))
            for tokens, chosen in zip(said, found[-1], strict=True):
                tokens.append(chosen.token)
        return [[each[order.index(row)] for each in found] for row in sorted(order)]

    together = answers([0, 1, 2, 3, 4])
    assert answers([3, 1, 4, 0, 2]) == together
    assert [answers([row])[0] for row in range(5)] == together


def test_a_row_stays_as_it_was_when_more_is_said() -> None:
    sampler = Sampler(Sampling(frequency_penalty=0.5))
    (row,) = sampler.rows([4])
    (after,) = sampler.rows([4, 4, 9])
    assert (row.previous.tolist(), row.counts.tolist()) == ([4], [1])
    assert (after.previous.tolist(), after.counts.tolist()) == ([4, 9], [2, 1])


def test_rows_after_guesses_are_those_of_an_answer_that_has_them() -> None:
    sampling = Sampling(1.0, seed=7, frequency_penalty=0.5, repeat_penalty=1.5)
    sampler, answer, guesses = Sampler(sampling, [8, 3]), [4, 8], [4, 6, 6, 3]
    found = sampler.rows(answer, guesses)
    for number, row in enumerate(found):
        (expected,) = Sampler(sampling, [8, 3]).rows([*answer, *guesses[:number]])
        assert (row.random, row.previous.tolist(), row.counts.tolist()) == (
            expected.random,
            expected.previous.tolist(),
            expected.counts.tolist(),
        )
    assert len({row.random for row in found}) == 5
    (after,) = sampler.rows([*answer, 1])
    assert dict(zip(after.previous.tolist(), after.counts.tolist(), strict=True)) == {8: 1, 3: 0, 4: 1, 1: 1}


def test_a_token_that_is_noted_again_after_an_interrupt_is_there_once() -> None:
    sampler = Sampler(Sampling(logprobs=True))
    first, second, again = (Chosen(token, "", -0.5) for token in (1, 2, 3))
    sampler.note(0, first)
    sampler.note(1, second)
    sampler.note(1, again)
    assert sampler.logprobs == [first, again]


def test_no_row_follows_a_guess_that_a_mask_forbids() -> None:
    calls: list[list[int]] = []

    def mask(answer: Any) -> np.ndarray:
        calls.append(list(answer))
        return np.array([0b1010], np.uint64)

    rows = Sampler(Sampling(), mask=mask).rows([9], [1, 3, 2, 1])
    assert (len(rows), calls) == (3, [[9], [9, 1], [9, 1, 3]])


def test_the_likeliest_without_a_kernel_is_that_of_the_kernel() -> None:
    values = np.stack([logits(seed=seed) for seed in range(4)])
    values[1, 7], values[2, :] = np.nan, -np.inf
    rows = [Sampler(Sampling()).rows([])[0] for _ in range(4)]
    assert all(row.plain for row in rows)
    found = likeliest(values)
    assert [each.error for each in found] == ["", "not-numbers", "not-numbers", ""]
    assert [(each.error, each.error or each.token) for each in sample(values, rows)] == [
        (each.error, each.error or each.token) for each in found
    ]


@pytest.mark.parametrize("setting", ["temperature", "presence_penalty", "logit_bias", "logprobs", "mask"])
def test_any_setting_takes_the_kernel(setting) -> None:
    values = {"temperature": 0.5, "presence_penalty": 1, "logit_bias": {1: 2}, "logprobs": True}
    options = {setting: values[setting]} if setting in values else {}
    sampler = Sampler(Sampling(**options), mask=None if options else lambda answer: np.ones(1, np.uint64))
    assert not sampler.rows([3])[0].plain


def test_extreme_values_do_no_harm() -> None:
    values = np.array([-np.inf, 3e38, -3e38, 0.0], np.float32)
    assert token(Sampler(Sampling(temperature=1e-6, top_p=0.5)), values) == 1
    assert token(Sampler(Sampling(temperature=1.0, seed=1)), np.array([[-np.inf, 5.0, -np.inf]], np.float32)) == 1
    assert token(Sampler(Sampling(temperature=1.0, top_p=0.0, seed=1)), values) == 1
    assert token(Sampler(Sampling(temperature=1e6, min_p=1.0, seed=1)), values) == 1
    assert token(Sampler(Sampling(repeat_penalty=1.1), [99, -4]), values) == 1


def test_an_entry_has_the_bytes_of_its_tokens() -> None:
    pieces = {1: b"a", 2: b"\xc3"}
    found = logprob_entry(Chosen(1, "", -0.5, ((2, -0.25), (1, -0.5))), pieces.__getitem__)
    assert found == {
        "id": 1,
        "token": "a",
        "bytes": [97],
        "logprob": -0.5,
        "top_logprobs": [
            {"id": 2, "token": "\ufffd", "bytes": [195], "logprob": -0.25},
            {"id": 1, "token": "a", "bytes": [97], "logprob": -0.5},
        ],
    }


def test_importing_the_settings_imports_no_compiler_and_no_torch() -> None:
    code = "import sys; import rung.engine.sampling; print(sorted({'numba', 'llvmlite', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("defaults", "options", "expected"),
    [
        ({}, {}, Sampling()),
        ({"temperature": 0.7, "top_k": 20}, {}, Sampling(0.7, 20)),
        ({"temperature": 0.7, "top_k": 20.0}, {"temperature": 0.2, "top_p": None}, Sampling(0.2, 20)),
        ({"top_p": 0.8}, {}, Sampling(1.0, 0, 0.8)),
        ({}, {"min_p": 0.1}, Sampling(1.0, 0, 1.0, 0.1)),
        ({"typical_p": 0.5}, {}, Sampling(1.0, typical_p=0.5)),
        ({}, {"logit_bias": {"7": 3}, "logprobs": True}, Sampling(logit_bias={7: 3.0}, logprobs=True)),
        ({"temperature": 0.6, "repeat_penalty": 1.1}, {"temperature": 0}, Sampling()),
        ({"temperature": 0.6, "repeat_penalty": 1.1}, {}, Sampling(0.6, repeat_penalty=1.1)),
        ({"temperature": -1, "top_p": 50, "nonsense": 1}, {"seed": 3}, Sampling(seed=3)),
    ],
)
def test_options_go_before_defaults_and_defaults_before_greedy(
    defaults: dict[str, Any], options: dict[str, Any], expected: Sampling
) -> None:
    assert Sampling.of(defaults, **options) == expected


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"temperature": float("inf")},
        {"temperature": "hot"},
        {"top_k": -1},
        {"top_k": 1.5},
        {"top_p": 1.1},
        {"min_p": -0.1},
        {"repeat_penalty": 0},
        {"seed": -1},
        {"seed": True},
        {"typical_p": 1.5},
        {"presence_penalty": 3},
        {"frequency_penalty": -2.5},
        {"logit_bias": {-1: 2}},
        {"logit_bias": {1.5: 2}},
        {"logit_bias": {3: 101}},
        {"logit_bias": {3: float("nan")}},
        {"logit_bias": [3]},
        {"top_logprobs": 1000},
        {"logprobs": 2},
        {"beams": 4},
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options)).replace("_", "-")):
        Sampling.of({}, **options)


def test_greedy_copies_no_logits() -> None:
    values, sampler = logits(262_144), Sampler(Sampling())
    token(sampler, values)
    tracemalloc.start()
    try:
        token(sampler, values)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < values.nbytes / 8


@pytest.mark.parametrize(
    ("name", "meant"),
    [("max_new_tokens", "max_tokens"), ("repetition_penalty", "repeat_penalty"), ("temprature", "temperature")],
)
def test_an_option_of_another_library_is_named_as_here(name, meant):
    with pytest.raises(UsageError) as refused:
        Sampling.of({}, **{name: 1})
    assert f"Did you mean {meant}?" in refused.value.cause
    (way,) = refused.value.ways_out
    if meant in Sampling.__dataclass_fields__:  # the example is one that is taken
        Sampling.of({}, **eval(way.replace("model.generate", "dict").replace('"Why is the sky blue?", ', "")))


def test_an_option_like_none_is_refused_with_those_there_are():
    with pytest.raises(UsageError) as refused:
        Sampling.of({}, zzzz=1)
    assert "Did you mean" not in refused.value.cause
    assert "max_tokens" in refused.value.facts[0]


def test_a_bias_of_a_token_that_there_is_not_is_refused():
    Sampling(logit_bias={99: 1.0}).check_tokens(100)
    with pytest.raises(UsageError, match="token 100"):
        Sampling(logit_bias={100: 1.0}).check_tokens(100)


@pytest.fixture(scope="module")
def model():
    return load(str(GGUF / "llama-q4_0.gguf"), context=64)


def test_a_mask_says_which_tokens_may_follow(model):
    said: list[list[int]] = []

    def mask(tokens: Any) -> np.ndarray:
        said.append(list(tokens))
        words = np.zeros(-(-model.backend.vocabulary // 64), np.uint64)
        words[1] = 1 << 3  # token 67
        return words

    assert answer(model, mask=mask)["tokens"] == [67] * 6
    assert max(said) == [67] * 5
    with pytest.raises(UsageError, match="words of uint64"):
        answer(model, mask=lambda tokens: np.zeros(1, np.uint64))
    with pytest.raises(UsageError, match="words of uint64"):
        answer(model, mask=lambda tokens: [1])

    class Forcing:
        def __init__(self, *tokens: Any) -> None:
            self.tokens = tokens

        def __call__(self, tokens: Any) -> None:
            return None

        def forced(self, tokens: Any) -> Any:
            return self.tokens

    assert answer(model, mask=Forcing(67, 68))["tokens"][1:3] == [67, 68]
    for wrong in (model.backend.vocabulary, -5, 2**40, "x", 3.5):
        with pytest.raises(UsageError, match="integers from 0 to"):
            answer(model, mask=Forcing(67, wrong))
    with pytest.raises(UsageError, match="No token is allowed here"):
        answer(model, mask=lambda tokens: np.zeros(-(-model.backend.vocabulary // 64), np.uint64))
    with pytest.raises(ZeroDivisionError):
        answer(model, mask=lambda tokens: 1 // 0)


def answer(model, **options):
    pieces = model.generate("Hi", raw=True, max_tokens=6, **options)
    list(pieces)
    return pieces.result


def test_the_seed_of_an_answer_that_was_drawn_draws_it_again(model):
    drawn = answer(model, temperature=2.0)
    assert answer(model, temperature=2.0, seed=drawn["seed"])["tokens"] == drawn["tokens"]
    assert "seed" not in answer(model)
    assert "logprobs" not in drawn


def test_log_probabilities_of_an_answer_are_those_of_its_logits(model):
    found = answer(model, temperature=1.5, top_k=20, seed=4, top_logprobs=3)
    ids = [*model.tokenizer.encode("Hi"), *found["tokens"]]
    logits = np.asarray(model.logits(ids), np.float64)[-len(found["tokens"]) - 1 : -1]
    exact = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    assert [each["id"] for each in found["logprobs"]] == found["tokens"]
    for each, row in zip(found["logprobs"], exact, strict=True):
        assert each["logprob"] == pytest.approx(row[each["id"]], abs=1e-4)
        assert each["bytes"] == list(model.tokenizer.piece(each["id"]))
        assert [other["id"] for other in each["top_logprobs"]] == np.argsort(-row)[:3].tolist()
    assert answer(model, logprobs=True)["logprobs"][0]["top_logprobs"] == []


def test_a_bias_forces_and_forbids_tokens_of_an_answer(model):
    assert answer(model, logit_bias={5: 100})["tokens"] == [5] * 6
    first = answer(model)["tokens"][0]
    assert first not in answer(model, logit_bias={str(first): -100})["tokens"]
    with pytest.raises(UsageError, match="token 100000"):
        answer(model, logit_bias={100_000: 1})
