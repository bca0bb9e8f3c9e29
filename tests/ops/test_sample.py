"""Every rung of sample against transformers' processors and OpenAI's formula, and all rungs against each other."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as process

from rung.core.types import Case
from rung.ops.sample import LADDER, self_check
from rung.ops.sample.numpy_sample import random_bits
from rung.ops.token_choice import Chosen, Row

from .conformance import CPU

CASE = Case("sample", "f32", "f32", (1, 100))
RUNGS = [rung for rung in LADDER.rungs if rung.verdict(CASE, CPU)]
#: Vocabularies around blocks of 64 and spans of 1024, and some of real models.
SIZES = (1, 2, 63, 64, 65, 1000, 1023, 1024, 1025, 2048, 32_003)
FULL = 2**64


@pytest.fixture(params=RUNGS, ids=[rung.name for rung in RUNGS])
def sample(request):
    """A rung as a function (logits, rows) -> chosen."""
    implementation = request.param.load()
    state = implementation.prepare(threads=2)
    return lambda logits, rows: implementation.apply(state, logits, rows)


def normal(*shape: int, seed: int = 0, scale: float = 3.0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) * np.float32(scale)


def bits(allowed: np.ndarray) -> np.ndarray:
    """A mask of those tokens."""
    padded = np.zeros(-(-len(allowed) // 64) * 64, bool)
    padded[: len(allowed)] = allowed
    return np.packbits(padded, bitorder="little").view(np.uint64)


def probabilities(values: np.ndarray, row: Row) -> np.ndarray:
    """By transformers' own processors in their order, in float64 from the temperature on."""
    scores, ids = torch.tensor(values)[None], torch.tensor(row.previous[None].astype(np.int64))
    if len(row.bias_ids):
        named = {(int(token),): float(bias) for token, bias in zip(row.bias_ids, row.bias, strict=True)}
        scores = process.SequenceBiasLogitsProcessor(named)(ids, scores)
    if row.repeat_penalty != 1:
        scores = process.RepetitionPenaltyLogitsProcessor(row.repeat_penalty)(ids, scores)
    for token, count in zip(row.previous, row.counts, strict=True):  # mu[j] - c[j] * frequency - (c[j] > 0) * presence
        scores[0, token] -= count * row.frequency_penalty + float(count > 0) * row.presence_penalty
    if row.mask is not None:
        allowed = np.flatnonzero(np.unpackbits(row.mask.view(np.uint8), count=len(values), bitorder="little"))
        scores = process.PrefixConstrainedLogitsProcessor(lambda batch, sentence: allowed.tolist(), 1)(ids, scores)
    scores = process.TemperatureLogitsWarper(row.temperature)(ids, scores.double())
    if row.top_k:
        scores = process.TopKLogitsWarper(row.top_k)(ids, scores)
    if row.top_p < 1:
        scores = process.TopPLogitsWarper(row.top_p)(ids, scores)
    if row.min_p:
        scores = process.MinPLogitsWarper(row.min_p)(ids, scores)
    if row.typical_p < 1:
        scores = process.TypicalLogitsWarper(row.typical_p)(ids, scores)
    return scores.softmax(-1)[0].numpy()


PREVIOUS = {"previous": np.array([3, 7, 0, 11], np.int32), "counts": np.array([0, 1, 4, 2], np.int32)}
BIAS = {"bias_ids": np.array([5, 3, 99], np.int32), "bias": np.array([4.5, -7, 2], np.float32)}
MASK = {"mask": bits(np.random.default_rng(3).random(100) < 0.5)}
SETTINGS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.5},
    {"temperature": 2.0, "top_k": 5},
    {"temperature": 0.8, "top_k": 1},
    {"temperature": 3.0, "top_k": 500},
    {"temperature": 1.5, "top_p": 0.8},
    {"temperature": 0.8, "top_p": 0.01},
    {"temperature": 1.0, "min_p": 0.1},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 1.0, "typical_p": 0.3},
    {"temperature": 2.0, "typical_p": 0.9},
    {"temperature": 1.3, "top_k": 20, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 1.3, "top_k": 30, "top_p": 0.95, "min_p": 0.01, "typical_p": 0.7},
    {"temperature": 1.0, "repeat_penalty": 1.8, **PREVIOUS},
    {"temperature": 1.0, "presence_penalty": 1.5, "frequency_penalty": -0.7, **PREVIOUS},
    {"temperature": 1.0, **BIAS},
    {"temperature": 2.0, **MASK},
    {"temperature": 1.4, "top_k": 12, "repeat_penalty": 0.6, "frequency_penalty": 0.5, **PREVIOUS, **BIAS, **MASK},
]
NAMED = [" ".join(f"{name}={value}" for name, value in each.items() if np.isscalar(value)) for each in SETTINGS]


def steps(sample, values: np.ndarray, settings: dict[str, Any], turns: int) -> np.ndarray:
    """How often each token is drawn with random numbers that lie evenly."""
    rows = [Row(**settings, random=FULL // turns * turn + FULL // turns // 2) for turn in range(turns)]
    found = sample(np.repeat(values[None], turns, axis=0), rows)
    assert not any(each.error for each in found)
    return np.bincount([each.token for each in found], minlength=len(values))


@pytest.mark.parametrize("settings", SETTINGS, ids=NAMED)
def test_shares_are_those_of_transformers(sample, settings):
    """Even random numbers meet a token as often as its probability says, to one turn."""
    values, turns = normal(100), 400
    expected = probabilities(values, Row(**settings))
    counts = steps(sample, values, settings, turns)
    assert np.abs(counts - expected * turns).max() <= 1.001
    assert set(np.flatnonzero(counts)) <= set(np.flatnonzero(expected))


@pytest.mark.parametrize("settings", SETTINGS, ids=NAMED)
def test_ties_are_kept_as_transformers_keeps_them(sample, settings):
    """As many equal logits are kept at the edge of top-p; which of them no sort of torch promises."""
    values, turns = np.round(normal(100)), 400
    expected = probabilities(values, Row(**settings))
    counts = steps(sample, values, settings, turns)
    assert np.abs(np.sort(counts) - np.sort(expected) * turns).max() <= 2.001


def test_what_reaches_top_p_exactly_is_enough_and_the_lower_ids_stay(sample):
    assert steps(sample, np.zeros(4, np.float32), {"temperature": 1.0, "top_p": 0.5}, 100).tolist() == [50, 50, 0, 0]


@pytest.mark.parametrize(
    "settings", [{}, {"temperature": 1.0, "top_k": 1}, {"temperature": 1e-6}, {"temperature": 1e-300}]
)
def test_the_likeliest_token_of_equal_ones_the_lowest(sample, settings):
    values = normal(3, 2000)
    values[:, [100, 1500]] = 50.0
    random = 0 if settings.get("temperature") else FULL - 1
    assert [each.token for each in sample(values, [Row(**settings, random=random)] * 3)] == [100] * 3


@pytest.mark.parametrize("size", SIZES)
def test_every_place_can_be_the_likeliest(sample, size):
    values = normal(min(size, 80), size)
    places = np.random.default_rng(1).permutation(size)[: len(values)]
    places[-1] = size - 1
    values[np.arange(len(values)), places] = 40.0
    for settings in ({}, {"temperature": 1.0}, {"temperature": 0.7, "top_k": 3}, {"temperature": 0.7, "top_p": 0.9}):
        found = sample(values, [Row(**settings, random=FULL // 2)] * len(values))
        assert [each.token for each in found] == places.tolist()


def test_the_ends_of_the_random_numbers_are_the_first_and_the_last_token(sample):
    values = np.zeros((2, 70), np.float32)
    for settings in ({}, {"top_k": 70}, {"top_p": 0.9999}, {"min_p": 0.5}, {"typical_p": 0.9999}):
        found = sample(values, [Row(temperature=1.0, **settings, random=random) for random in (0, FULL - 1)])
        assert [each.token for each in found] == [0, 69]


def random_row(generator: np.random.Generator, size: int) -> Row:
    """A row with some of all settings."""

    def some(share: float, *values: Any) -> Any:
        return generator.choice(values).item() if generator.random() < share else None

    settings = {
        "temperature": some(0.85, 1e-3, 0.1, 0.7, 1.0, 2.0, 50.0),
        "top_k": some(0.4, 1, 2, 5, 40, 1000, 10**6),
        "top_p": some(0.4, 0.0, 0.01, 0.5, 0.9, 0.999),
        "min_p": some(0.3, 1e-14, 1e-3, 0.05, 0.5, 1.0),
        "typical_p": some(0.3, 0.0, 0.2, 0.5, 0.95),
        "repeat_penalty": some(0.3, 1.3, 0.7),
        "presence_penalty": some(0.3, 0.5, -1.0),
        "frequency_penalty": some(0.3, 0.3),
        "top_logprobs": some(0.3, 0, 1, 5, 20),
    }
    arrays: dict[str, Any] = {}
    if generator.random() < 0.4:
        previous = np.unique(generator.integers(-1, size + 2, generator.integers(0, 20))).astype(np.int32)
        arrays |= {"previous": previous, "counts": generator.integers(0, 3, len(previous)).astype(np.int32)}
    if generator.random() < 0.3:
        ids = np.unique(generator.integers(0, size + 1, generator.integers(0, 10))).astype(np.int32)
        arrays |= {"bias_ids": ids, "bias": normal(len(ids), seed=int(generator.integers(1000)), scale=10)}
    if generator.random() < 0.3:
        arrays["mask"] = bits(generator.random(size) < generator.choice([0.0, 0.1, 0.9]))
    random = int(generator.integers(0, FULL, dtype=np.uint64))
    return Row(**{name: value for name, value in settings.items() if value is not None}, **arrays, random=random)


def random_logits(generator: np.random.Generator, rows: int, size: int) -> np.ndarray:
    """Logits that are far apart, or equal, or -inf or NaN here and there."""
    values = normal(rows, size, seed=int(generator.integers(10**6)), scale=generator.choice([0.01, 1, 3, 30, 1000]))
    kind = generator.integers(5)
    if kind == 0:
        values = np.round(values)
    elif kind == 1:
        values[generator.random(values.shape) < 0.3] = -np.inf
    elif kind == 2:
        values[generator.random(values.shape) < 0.002] = generator.choice([np.nan, np.inf])
    elif kind == 3:
        values[:] = -0.0
    return values


@pytest.mark.parametrize("seed", range(2))
def test_all_rungs_choose_the_same_of_any_rows(seed):
    generator = np.random.default_rng(seed)
    loaded = [rung.load() for rung in RUNGS]
    states = [each.prepare(threads=2) for each in loaded]
    for size in SIZES:
        for _ in range(4 if size > 5000 else 25):
            rows = [random_row(generator, size) for _ in range(3)]
            values = random_logits(generator, len(rows), size)
            before = values.copy()
            all_found = [each.apply(state, values, rows) for each, state in zip(loaded, states, strict=True)]
            assert np.array_equal(values, before, equal_nan=True)
            for one, other in itertools.pairwise(all_found):
                for left, right, row in zip(one, other, rows, strict=True):
                    assert (left.token, left.error) == (right.token, right.error), row
                    assert [token for token, _ in left.top_logprobs] == [token for token, _ in right.top_logprobs]
                    assert (left.logprob or 0) == pytest.approx(right.logprob or 0, abs=1e-11), row


def test_numpy_computes_the_bytes_of_the_compiled_kernel():
    """Log probabilities too: masses are the same integers."""
    compiled, plain = (LADDER.rung(name) for name in ("numba.sample", "numpy.sample"))
    if compiled not in RUNGS:
        pytest.skip("no compiled kernels here")
    state = compiled.load().prepare(threads=1)
    for size, scale in ((1000, 3.0), (32_003, 8.0), (5000, 0.01), (4096, 300.0)):
        values, rows = normal(4, size, scale=scale), [Row(top_logprobs=10)] * 4
        assert compiled.load().apply(state, values, rows) == plain.load().apply(None, values, rows)


def test_a_row_depends_on_no_other_and_on_no_number_of_threads():
    generator = np.random.default_rng(5)
    values = normal(16, 32_003)
    rows = [random_row(generator, 32_003) for _ in range(16)]
    for rung in RUNGS[:1]:
        implementation = rung.load()
        alone, threaded = implementation.prepare(threads=1), implementation.prepare(threads=4)
        singles = [implementation.apply(alone, values[i : i + 1], rows[i : i + 1])[0] for i in range(16)]
        assert implementation.apply(threaded, values, rows) == singles
        order = generator.permutation(16)
        assert implementation.apply(threaded, values[order], [rows[i] for i in order]) == [singles[i] for i in order]
        apart = np.zeros((32, 32_100), np.float32)
        apart[::2, 50:32_053] = values
        assert implementation.apply(threaded, apart[::2, 50:32_053], rows) == singles


def test_a_row_without_numbers_is_an_error_and_the_others_go_on(sample):
    values = normal(7, 2100)
    values[1, 2099] = np.nan
    values[2, 5] = np.inf
    values[3] = -np.inf
    values[5, :2099] = -np.inf
    rows = [Row(temperature=float(i % 2), random=FULL // 3) for i in range(7)]
    found = sample(values, rows)
    assert [each.error for each in found] == ["", *["not-numbers"] * 3, "", "", ""]
    assert found[5].token == 2099
    clean = normal(7, 2100)
    assert [found[i] for i in (0, 4, 6)] == [sample(clean, rows)[i] for i in (0, 4, 6)]


def test_logits_that_a_penalty_makes_infinite_are_an_error(sample):
    values = np.full((1, 100), 3e38, np.float32)
    rows = [Row(repeat_penalty=1e-3, previous=np.array([4], np.int32), counts=np.array([0], np.int32))]
    assert sample(values, rows) == [Chosen(error="not-numbers")]


def test_a_mask_that_allows_nothing_is_an_error(sample):
    values, none = normal(3, 100), np.zeros(100, bool)
    one = none.copy()
    one[77] = True
    only_lost = none.copy()
    only_lost[3] = True
    values[2, 3] = -np.inf
    for temperature in (0.0, 1.0):
        rows = [Row(temperature=temperature, mask=bits(each)) for each in (none, one, only_lost)]
        found = sample(values, rows)
        assert [each.error for each in found] == ["nothing-allowed", "", "nothing-allowed"]
        assert found[1].token == 77


def test_log_probabilities_are_those_of_the_logits_before_any_change(sample):
    values = normal(1, 5000)
    exact = torch.tensor(values[0], dtype=torch.float64).log_softmax(0)
    row = Row(0.3, 5, top_logprobs=20, bias_ids=np.array([17], np.int32), bias=np.array([100], np.float32))
    (found,) = sample(values, [row])
    assert found.token == 17
    assert found.logprob == pytest.approx(float(exact[17]), abs=1e-7)
    best = exact.topk(20)
    assert [token for token, _ in found.top_logprobs] == best.indices.tolist()
    assert [logprob for _, logprob in found.top_logprobs] == pytest.approx(best.values.tolist(), abs=1e-7)
    (bare,) = sample(values, [Row(top_logprobs=0)])
    assert bare.logprob == pytest.approx(float(exact.max()), abs=1e-7)
    assert bare.top_logprobs == ()
    assert sample(values, [Row()])[0].logprob is None


def test_likely_tokens_are_no_more_than_there_are_and_of_equal_ones_the_lower(sample):
    values = np.array([[1.0, -np.inf, 2.0, 1.0, 1.0]], np.float32)
    (found,) = sample(values, [Row(top_logprobs=100)])
    assert [token for token, _ in found.top_logprobs] == [2, 0, 3, 4]
    (found,) = sample(values, [Row(top_logprobs=2)])
    assert [token for token, _ in found.top_logprobs] == [2, 0]


def test_draws_follow_the_distribution():
    """Chi-square of draws with the random bits of consecutive positions, of choices, and of seeds."""
    implementation = RUNGS[0].load()
    state, draws, values = implementation.prepare(threads=1), 8000, normal(40, scale=1.5)
    expected = torch.tensor(values, dtype=torch.float64).softmax(0).numpy() * draws
    assert expected.min() > 2
    counters = (
        ((3, 0, turn) for turn in range(draws)),
        ((3, turn, 0) for turn in range(draws)),
        ((turn, 0, 0) for turn in range(draws)),
    )
    for counter in counters:
        rows = [Row(temperature=1.0, random=random_bits(*each)) for each in counter]
        found = implementation.apply(state, np.repeat(values[None], draws, axis=0), rows)
        counts = np.bincount([each.token for each in found], minlength=40)
        assert ((counts - expected) ** 2 / expected).sum() < 73  # of 39 degrees of freedom: one in a thousand


def test_random_bits_are_those_of_numpys_philox():
    for seed, choice, position in ((1, 0, 1), (2**64 - 1, 5, 77), (12345, 0, 2**40), (0, 2**63, 9)):
        key, counter = (np.array(words, np.uint64) for words in ((seed, 0), (position - 1, choice, 0, 0)))
        assert random_bits(seed, choice, position) == int(np.random.Philox(key=key, counter=counter).random_raw())


@pytest.mark.parametrize("rung", RUNGS, ids=[rung.name for rung in RUNGS])
def test_the_self_check_takes_right_rungs_and_finds_wrong_ones(rung, monkeypatch):
    assert self_check.check(rung, CASE, "cpu") == ""
    implementation = rung.load()
    right = implementation.apply

    def always(change):
        monkeypatch.setattr(
            implementation, "apply", lambda *arguments: [change(each) for each in right(*arguments)], raising=False
        )
        return self_check.check(rung, CASE, "cpu")

    assert "instead of" in always(lambda each: Chosen(each.token + 1, each.error, each.logprob, each.top_logprobs))
    assert "errors" in always(lambda each: Chosen(each.token, "", each.logprob, each.top_logprobs))
    off = always(lambda each: Chosen(each.token, each.error, each.logprob and each.logprob - 1e-5, each.top_logprobs))
    assert "log probabilities" in off


@pytest.mark.parametrize(
    ("logits", "row", "words"),
    [
        (np.zeros((1, 5)), Row(), "float64"),
        (np.zeros(5, np.float32), Row(), r"\(5,\)"),
        (np.zeros((2, 5), np.float32), Row(), r"\(2, 5\)"),
        (np.zeros((1, 0), np.float32), Row(), "have a token"),
        (np.zeros((1, 10), np.float32)[:, ::2], Row(), "in one piece"),
        (np.zeros((1, 65), np.float32), Row(mask=np.ones(1, np.uint64)), "too short"),
    ],
)
def test_the_kernel_reads_no_memory_that_is_not_there(logits, row, words):
    implementation = LADDER.rung("numba.sample").load()
    with pytest.raises(ValueError, match=words):
        implementation.apply(implementation.prepare(threads=1), logits, [row])
