"""Guessed tokens: the same text with fewer steps, off where they do not pay."""

from __future__ import annotations

import random

import numpy as np
import pytest
from toy_backend import VOCABULARY, answer, finish, scheduling, sequence, toy

from rung.engine.sampling import Sampler, Sampling
from rung.engine.scheduling import scheduler as scheduler_module
from rung.engine.scheduling.speculation import Candidate, Guesser, History, Lookup, StepSeconds, allocate

CONTEXT = 600


def repeating(ids) -> int:
    """The token after the last time that the last three stood there, else one of the sum: texts that repeat."""
    ids = [int(token) for token in ids]
    for end in range(len(ids) - 1, 2, -1):
        if ids[end - 3 : end] == ids[-3:]:
            return ids[end] if len(ids) % 13 else 1 + sum(ids) % (VOCABULARY - 1)
    return 1 + sum(ids) % (VOCABULARY - 1)


@pytest.fixture
def clocked(monkeypatch):
    """A decoder of ``repeating`` texts whose steps take 10 ms, or so long, and so much a row."""

    def make(a_row: float = 0.001, following=repeating, step: float = 0.010):
        decoder, now = toy(context=CONTEXT, blocks=4 * CONTEXT // 4), [0.0]
        decoder.step.following = following

        def pass_time(batch):
            now[0] += step + a_row * sum(len(each.tokens) for each in batch)

        decoder.step.before = pass_time
        monkeypatch.setattr(scheduler_module.time, "perf_counter", lambda: now[0])
        return decoder

    return make


def run(decoder, *sequences):
    scheduler = scheduling(decoder)
    for each in sequences:
        scheduler.add(each)
    return finish(scheduler, *sequences)


@pytest.mark.parametrize("several", [1, 3])
def test_guesses_change_nothing_but_the_number_of_steps(clocked, several):
    chance = random.Random(1)
    prompts = [[chance.randrange(1, 9) for _ in range(40)] for _ in range(several)]
    decoder = clocked()
    everybody = [sequence(prompt, 200, context=CONTEXT) for prompt in prompts]
    found = run(decoder, *everybody)
    assert found == [answer(prompt, 200, repeating) for prompt in prompts]
    assert len(decoder.step.batches) < 120
    assert all(0 < each.guesser.accepted <= each.guesser.guessed for each in everybody)


def test_drawn_tokens_are_those_that_are_drawn_without_guesses(clocked):
    def odd(said):
        """No other token twice in the answer, every third time; nobody asks about an answer that is forbidden."""
        assert all(token % 2 for token in said[::3])
        return np.full(2, 0xAAAA_AAAA_AAAA_AAAA, np.uint64) if len(said) % 3 == 0 else None

    settings = [
        Sampling(temperature=0.15, seed=1),
        Sampling(temperature=0.15, seed=2, presence_penalty=0.05, repeat_penalty=1.05),
        Sampling(temperature=0.15, seed=3, frequency_penalty=0.03, top_logprobs=2),
        Sampling(repeat_penalty=1.01),
    ]
    prompt = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3]
    accepted = 0
    for sampling in settings:
        for mask in (None, odd):
            samplers = [Sampler(sampling, prompt, mask=mask) for _ in range(2)]
            plain, guessed = (sequence(prompt, 120, context=CONTEXT, sampler=each) for each in samplers)
            plain.guesser = None
            assert run(clocked(), plain) == run(clocked(), guessed)
            assert samplers[0].logprobs == samplers[1].logprobs
            assert len(samplers[0].logprobs) == (120 if sampling.top_logprobs else 0)
            accepted += guessed.guesser.accepted
    assert accepted > 50


def test_no_guess_where_rows_cost_as_much_as_steps(clocked):
    decoder = clocked(a_row=1.0)
    run(decoder, sequence([1, 2, 3, 4] * 10, 200, context=CONTEXT))
    rows = [sum(batch) for batch in decoder.step.batches[1:]]
    assert sum(rows) < 1.1 * 200


def test_a_text_that_never_repeats_costs_nothing(clocked):
    decoder = clocked(following=None)
    run(decoder, sequence(list(range(1, 60)), 200, context=CONTEXT))
    assert sum(map(sum, decoder.step.batches)) - 59 <= 1.05 * 200


@pytest.mark.parametrize(("step", "least", "most"), [(0.010, 2, 6), (0.001, 14, 30)])
def test_guesses_are_computed_once_they_have_proved_to_pay(clocked, step, least, most):
    """A program for more rows takes 15 ms to build: a guess is only compared until that would have been saved."""
    decoder = clocked(a_row=step / 10, step=step)
    each = sequence([1, 2, 3, 4] * 10, 100, context=CONTEXT)
    run(decoder, each)
    rows = [sum(batch) for batch in decoder.step.batches[1:]]
    assert least <= next(number for number, count in enumerate(rows) if count > 1) <= most
    assert each.guesser.accepted > 20


def test_earlier_answers_of_the_owner_are_guessed_from(clocked):
    decoder = clocked(following=None)
    scheduler, steps = scheduling(decoder), []
    for owner in ("a", "b", "a"):
        decoder.prefixes.clear()
        before = len(decoder.step.batches)
        each = sequence([5, 6, 7], 150, owner, context=CONTEXT)
        scheduler.add(each)
        assert finish(scheduler, each) == [answer([5, 6, 7], 150)]
        steps.append(len(decoder.step.batches) - before)
    assert steps[0] == steps[1] == 150
    assert steps[2] < 60


@pytest.mark.parametrize("end", range(1, 30))
def test_the_last_token_is_the_same_whatever_is_guessed(clocked, end):
    """Answers of every length, and a context that ends in the middle of a guess."""
    prompt = [1, 2, 3, 4] * 6
    assert run(clocked(), sequence(prompt, end, context=CONTEXT)) == [answer(prompt, end, repeating)]
    short = len(prompt) + end
    decoder = clocked()
    (said,) = run(decoder, sequence(prompt, None, context=short))
    assert said == answer(prompt, end + 1, repeating)


def test_an_end_token_within_a_guess_ends_the_answer(clocked):
    def only_the_end(said):
        return np.array([1, 0], np.uint64) if len(said) == 32 else None

    each = sequence([1, 2, 3, 4] * 6, 100, context=CONTEXT, sampler=Sampler(Sampling(), mask=only_the_end))
    assert run(clocked(), each) == [answer([1, 2, 3, 4] * 6, 32, repeating)]
    assert each.reason == "end"


def test_lookup_finds_what_followed_last():
    lookup = Lookup()
    lookup.extend([1, 2, 3, 4, 5, 1, 2, 3, 6, 7])
    assert lookup.following([1, 2, 3], 2) == [6, 7]
    assert lookup.following([3, 4, 5], 7) == [1, 2, 3, 6, 7, 1, 2]
    assert lookup.following([3, 6, 7], 3) == []
    lookup.extend([1, 2, 3])
    assert lookup.following([1, 2, 3], 3) == [6, 7, 1], "before the end of the text"
    guesser = Guesser()
    assert guesser.guess([8, 1, 2], 2) == []
    assert guesser.guess([8, 1, 2, 9, 8, 1, 2], 6) == [9, 8, 1, 2, 9, 8]


def test_history_keeps_the_newest_and_answers_apart():
    history = History()
    history.add([1, 2, 3, 4])
    history.add([4, 5, 6])
    assert history.following([1, 2, 3], 5) == [4]
    assert history.following([3, 4, 4], 5) == []
    for number in range(30):
        history.add([100 + number] * 5000)
    assert history.following([1, 2, 3], 5) == []
    assert history.following([129, 129, 129], 1) == [129]


def test_guesses_weigh_time_against_what_is_likely():
    seconds = StepSeconds()

    def guessed(probability: float, most: int) -> int:
        return allocate(seconds, 1, [Candidate(probability, most)], 16)[0]

    assert guessed(0.9, 8) == 0, "nothing is known"
    seconds.note(1, 9.0)
    assert guessed(0.9, 8) == 0, "the first one does not count"
    seconds.note(1, 1.0)
    assert guessed(0.9, 8) == 1, "at most twice the rows that were seen are tried"
    for rows, took in ((2, 1.1), (4, 1.5), (8, 3.0)):
        seconds.note(rows, took)
        seconds.note(rows, took)
    assert guessed(0.1, 8) == 0
    assert guessed(0.7, 8) in (1, 2, 3)
    assert guessed(1.0, 7) in (3, 6, 7)
    assert guessed(0.7, 0) == 0
    for _ in range(2):
        seconds.note(2, 50.0)  # another program was busy
    assert guessed(0.7, 1) == 0
    for _ in range(2000):
        seconds.note(1, 1.0)
    assert guessed(0.7, 1) == 1, "it is tried again"


def test_the_likeliest_guesses_of_several_sequences_come_first():
    seconds = StepSeconds()
    for rows in range(1, 17):
        for _ in range(2):
            seconds.note(rows, 1.0 + (rows > 6))
    several = [Candidate(0.9, 8), Candidate(0.5, 8), Candidate(0.8, 1)]
    assert allocate(seconds, 3, several, 16) == [2, 0, 1], "0.9, 0.81 and 0.8; more rows cost more than they bring"
    assert allocate(seconds, 3, several, 5) == [2, 0, 0]
    slow = [Candidate(0.9, 8, 0.5), Candidate(0.5, 8)]
    assert allocate(seconds, 2, slow, 16) == [0, 4], "a round of the draft model costs more than it brings"
    shared = [Candidate(0.9, 8, 0.3), Candidate(0.9, 8, 0.3)]
    assert allocate(seconds, 2, shared, 16) == [2, 2], "a round guesses for both"
