"""Sampling against transformers' processors in float64 and against the distributions they give."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

from rung.core.errors import DeviceError, UsageError
from rung.engine.sampling import Sampler, Sampling

DRAWS = 6_000


def logits(size: int = 50, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32) * 3


def reference(values: np.ndarray, said: list[int], options: dict[str, Any]) -> np.ndarray:
    """Probabilities by transformers' own processors in their order, in float64."""
    import torch
    from transformers.generation import logits_process as process

    scores = torch.tensor(values, dtype=torch.float64)[None]
    ids = torch.tensor([said or [0]])
    if options.get("repeat_penalty", 1.0) != 1.0:
        scores = process.RepetitionPenaltyLogitsProcessor(options["repeat_penalty"])(ids, scores)
    scores = process.TemperatureLogitsWarper(options["temperature"])(ids, scores)
    if options.get("top_k"):
        scores = process.TopKLogitsWarper(options["top_k"])(ids, scores)
    if options.get("top_p", 1.0) < 1:
        scores = process.TopPLogitsWarper(options["top_p"])(ids, scores)
    if options.get("min_p"):
        scores = process.MinPLogitsWarper(options["min_p"])(ids, scores)
    return scores.softmax(-1)[0].numpy()


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 1.0},
        {"temperature": 0.5},
        {"temperature": 2.0, "top_k": 5},
        {"temperature": 1.5, "top_p": 0.8},
        {"temperature": 1.0, "min_p": 0.1},
        {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
        {"temperature": 1.0, "repeat_penalty": 1.8},
        {"temperature": 0.8, "top_k": 1},
        {"temperature": 0.8, "top_p": 0.01},
        {"temperature": 3.0, "top_k": 500},
    ],
)
def test_draws_follow_the_distribution_of_transformers(options: dict[str, Any]) -> None:
    values, said = logits(), [3, 7, 11, int(logits().argmax())]
    wanted = reference(values, said, options)
    counts = np.zeros(len(values))
    sampler = Sampler(Sampling(**options, seed=1), said)
    for _ in range(DRAWS):
        if options.get("repeat_penalty"):
            sampler._said = set(said)  # the same step again
        counts[sampler.choose(values)] += 1
    assert set(np.flatnonzero(counts)) <= set(np.flatnonzero(wanted))
    spread = np.sqrt(wanted * (1 - wanted) / DRAWS)
    assert (np.abs(counts / DRAWS - wanted) < 5 * spread + 1e-3).all()


@pytest.mark.parametrize(
    "options", [{"top_p": 0.95}, {"min_p": 1e-4}, {"top_p": 0.999, "min_p": 1e-5}, {"top_k": 3000, "top_p": 0.9}]
)
def test_what_is_left_of_a_large_vocabulary_is_what_transformers_leaves(options: dict[str, Any]) -> None:
    values = logits(60_000, seed=3)
    wanted = reference(values, [], {"temperature": 1.0, **options})
    ids, weights = Sampler(Sampling(temperature=1.0, **options))._candidates(values, float(values.max()))
    assert set(ids.tolist()) == set(np.flatnonzero(wanted).tolist())
    assert np.allclose(weights / weights.sum(), wanted[ids], rtol=1e-9)


def test_what_reaches_top_p_exactly_is_enough() -> None:
    values = np.zeros(4, np.float32)
    assert (reference(values, [], {"temperature": 1.0, "top_p": 0.5}) > 0).sum() == 2
    ids, _ = Sampler(Sampling(temperature=1.0, top_p=0.5))._candidates(values, 0.0)
    assert len(ids) == 2


def test_temperature_zero_is_the_likeliest_token_whatever_else_is_said() -> None:
    values = logits(1000)
    best = int(values.argmax())
    sampler = Sampler(Sampling.of({"repeat_penalty": 1.5, "top_k": 40, "top_p": 0.5}, temperature=0.0), [best])
    assert [sampler.choose(values) for _ in range(5)] == [best] * 5


def test_greedy_with_a_penalty_that_was_asked_for_moves_on() -> None:
    values = np.array([1.0, 2.0, 1.9, -1.0], np.float32)
    sampler = Sampler(Sampling.of({}, temperature=0.0, repeat_penalty=2.0), [])
    # 2.0 -> 1.0 after the first, then 1.9 -> 0.95; of equal ones the lower id
    assert [sampler.choose(values) for _ in range(3)] == [1, 2, 0]
    assert values.tolist() == pytest.approx([1.0, 2.0, 1.9, -1.0])


def test_a_negative_logit_is_penalized_downwards() -> None:
    sampler = Sampler(Sampling(repeat_penalty=2.0), [0])
    assert sampler.choose(np.array([-1.0, -1.5], np.float32)) == 1


def test_the_same_seed_gives_the_same_tokens_and_another_does_not() -> None:
    steps = [logits(500, seed) / 3 for seed in range(40)]

    def tokens(seed: int | None) -> list[int]:
        sampler = Sampler(Sampling(temperature=1.0, top_k=100, seed=seed))
        return [sampler.choose(step) for step in steps]

    assert tokens(5) == tokens(5)
    assert tokens(5) != tokens(6)
    assert tokens(None) != tokens(None)


def test_extreme_values_do_no_harm() -> None:
    values = np.array([-np.inf, 3e38, -3e38, 0.0], np.float32)
    assert Sampler(Sampling(temperature=1e-6, top_p=0.5)).choose(values) == 1
    assert Sampler(Sampling(temperature=1.0, seed=1)).choose(np.array([[-np.inf, 5.0, -np.inf]], np.float32)) == 1
    assert Sampler(Sampling(temperature=1.0, top_p=0.0, seed=1)).choose(values) == 1
    assert Sampler(Sampling(repeat_penalty=1.1), [99, -4]).choose(values) == 1


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_an_error(value: float, temperature: float) -> None:
    values = logits(100)
    values[17] = value
    with pytest.raises(DeviceError, match="no numbers"):
        Sampler(Sampling(temperature=temperature)).choose(values)
    with pytest.raises(DeviceError):
        Sampler(Sampling(temperature=temperature)).choose(np.full(8, -np.inf, np.float32))


@pytest.mark.parametrize(
    ("defaults", "options", "wanted"),
    [
        ({}, {}, Sampling()),
        ({"temperature": 0.7, "top_k": 20}, {}, Sampling(0.7, 20)),
        ({"temperature": 0.7, "top_k": 20.0}, {"temperature": 0.2, "top_p": None}, Sampling(0.2, 20)),
        ({"top_p": 0.8}, {}, Sampling(1.0, 0, 0.8)),
        ({}, {"min_p": 0.1}, Sampling(1.0, 0, 1.0, 0.1)),
        ({"temperature": 0.6, "repeat_penalty": 1.1}, {"temperature": 0}, Sampling()),
        ({"temperature": 0.6, "repeat_penalty": 1.1}, {}, Sampling(0.6, repeat_penalty=1.1)),
        ({"temperature": -1, "top_p": 50, "nonsense": 1}, {"seed": 3}, Sampling(seed=3)),
    ],
)
def test_options_go_before_defaults_and_defaults_before_greedy(
    defaults: dict[str, Any], options: dict[str, Any], wanted: Sampling
) -> None:
    assert Sampling.of(defaults, **options) == wanted


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
        {"beams": 4},
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_name(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(options)).replace("_", "-")):
        Sampling.of({}, **options)


def test_greedy_copies_no_logits() -> None:
    values, sampler = logits(262_144), Sampler(Sampling())
    sampler.choose(values)
    tracemalloc.start()
    try:
        sampler.choose(values)
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
