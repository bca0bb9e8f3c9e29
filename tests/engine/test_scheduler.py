"""Sequences that are computed together: the same tokens as alone, whatever happens to others, and all blocks free."""

from __future__ import annotations

import gc
import itertools
import random
import threading

import numpy as np
import pytest
from toy_backend import END, VOCABULARY, answer, finish, free_blocks, next_token, scheduling, sequence, toy

from rung.core.errors import DeviceError
from rung.engine.sampling import Sampler, Sampling
from rung.engine.scheduling import scheduler as scheduler_module
from rung.engine.scheduling.scheduler import LATENCY_GOAL, Scheduler
from rung.engine.scheduling.sequence import LogitSequence
from rung.engine.scheduling.speculator import Draft
from rung.ops.sample.numpy_sample import RUNG


def all_free(decoder) -> bool:
    """Return whether nothing is left in the pool but what the prefix cache gives back."""
    decoder.prefixes.clear()
    return free_blocks(decoder) == [len(member.uses) for member in decoder.pool.members]


@pytest.mark.parametrize("seed", range(12))
def test_any_order_gives_the_tokens_of_a_sequence_alone(seed):
    """Pools of one to three contexts, prompts that begin alike, answers that are dropped, owners."""
    chance = random.Random(seed)
    decoder = toy(context=32, blocks=chance.choice([8, 11, 24]), parallel=chance.choice([1, 2, 5]))
    scheduler = scheduling(decoder)
    starts = [[chance.randrange(1, VOCABULARY) for _ in range(chance.randrange(1, 20))] for _ in range(4)]
    live, done = [], 0
    while done < 60:
        if len(live) < 6 and chance.random() < 0.5:
            start = chance.choice(starts)
            prompt = start[: chance.randrange(1, len(start) + 1)] + [chance.randrange(1, 5) for _ in range(3)]
            live.append((sequence(prompt, chance.randrange(1, 12), chance.choice("ab")), []))
            scheduler.add(live[-1][0])
        if not live:
            continue
        some = chance.sample(live, chance.randrange(1, len(live) + 1))
        scheduler.advance(*(each for each, _ in some))
        for each, said in some:
            while (token := each.take()) is not None:
                said.append(token)
            dropped = chance.random() < 0.03
            if dropped or (each.ended and not each.ahead):
                assert said == answer(each.ids[: each.prompt], len(said))
                assert dropped or each.reason == "length" or len(each.ids) > 32
                scheduler.cancel(each)
                live.remove((each, said))
                done += 1
    for each, _ in live:
        scheduler.cancel(each)
    assert all_free(decoder)


def test_a_sequence_ends_with_the_context():
    decoder = toy(context=12)
    (said,) = added(decoder, sequence([1, 2, 3], None, context=12))
    assert said == answer([1, 2, 3], 10)  # the last one is chosen after 12 tokens are computed
    assert all_free(decoder)


def added(decoder, *sequences):
    """The tokens of sequences that are added at once and computed together."""
    scheduler = scheduling(decoder)
    for each in sequences:
        scheduler.add(each)
    return finish(scheduler, *sequences)


@pytest.mark.parametrize("seed", range(4))
def test_tokens_that_the_device_chooses_are_those_of_logits(seed, monkeypatch):
    """Answers end in their midst, at their length or with the context; what comes after is not kept."""
    monkeypatch.setattr(scheduler_module, "LOOK_AHEAD", 1e9)
    chance = random.Random(seed)
    for most_ahead in (1, 2, 5, 16):
        found = []
        for ahead in (0, most_ahead):
            decoder = toy(context=32)
            decoder.step.most_ahead = ahead
            decoder.step.following = lambda ids: END if sum(map(int, ids)) % 11 == 0 else next_token(ids)
            chance.seed(seed)
            ends = []
            for _ in range(8):  # prompts that begin alike go on with what earlier ones have left
                prompt = [*range(1, chance.randrange(2, 7)), chance.randrange(1, 3)]
                each = sequence(prompt, chance.choice([1, 7, None]))
                ends.append((added(decoder, each), each.reason, each.ids))
            assert all(len(tokens) <= most_ahead for tokens in decoder.step.ahead)
            assert bool(decoder.step.ahead) == bool(ahead)
            assert all_free(decoder)
            found.append(ends)
        assert found[0] == found[1]


def test_the_device_chooses_for_one_sequence_with_simple_settings(monkeypatch):
    monkeypatch.setattr(scheduler_module, "LOOK_AHEAD", 1e9)
    drawn = {"temperature": 1.0, "typical_p": 0.9}
    settings = drawn, {"logprobs": True}, {"repeat_penalty": 1.1}, {"logit_bias": {3: 1.0}}
    samplers = [Sampler(Sampling(**options)) for options in settings]
    samplers.append(Sampler(Sampling(), mask=lambda said: None))
    for sampler in samplers:
        decoder = toy()
        decoder.step.most_ahead = 16
        added(decoder, sequence([1, 2], sampler=sampler))
        assert decoder.step.ahead == []
    decoder = toy(blocks=32)
    decoder.step.most_ahead = 16
    assert added(decoder, sequence([1, 2]), sequence([5])) == [answer([1, 2], 8), answer([5], 8)]
    assert decoder.step.ahead == []
    assert added(decoder, sequence([7])) == [answer([7], 8)]
    assert [len(tokens) for tokens in decoder.step.ahead] == [
        1,
        6,
    ]  # the prompt's comes by itself; the next shows how long one takes


@pytest.mark.parametrize("sure", [0, 1, 3, 99])
def test_tokens_that_a_device_draws_are_those_of_the_processor(monkeypatch, sure):
    """It may be sure of so many tokens of a call only: the next one is computed again, and drawn from its logits."""
    monkeypatch.setattr(scheduler_module, "LOOK_AHEAD", 1e9)
    said = []
    for ahead in (0, 16):
        decoder = toy(context=64, blocks=64)
        decoder.step.most_ahead = ahead
        plain = decoder.step.choose
        monkeypatch.setattr(decoder.step, "choose", lambda *arguments, plain=plain: plain(*arguments)[:sure])
        each = sequence([1, 2], 40, context=64, sampler=Sampler(Sampling(temperature=0.2, seed=5)))
        said += added(decoder, each)
        assert bool(decoder.step.ahead) == bool(ahead)
        assert all_free(decoder)
    assert said[0] == said[1]
    assert len(set(said[0])) > 3
    calls = len(decoder.step.ahead)
    assert calls < 10  # after one that was not sure steps go on without it


def test_logits_that_are_no_numbers_on_the_device_end_the_sequence(monkeypatch):
    monkeypatch.setattr(scheduler_module, "LOOK_AHEAD", 1e9)
    decoder = toy()
    decoder.step.most_ahead = 16
    plain = decoder.step.choose
    decoder.step.choose = lambda *arguments: [*plain(*arguments)[:2], -1, 5][: len(arguments[-1])]
    each = sequence([1, 2])
    assert added(decoder, each) == [answer([1, 2], 4)]
    assert (each.reason, type(each.error)) == ("error", DeviceError)
    assert all_free(decoder)


def test_sequences_share_steps():
    decoder = toy(context=32, blocks=64)
    prompts = [[1, 2], [5, 6, 7], [9]]
    assert added(decoder, *(sequence(prompt) for prompt in prompts)) == [answer(prompt, 8) for prompt in prompts]
    assert len(decoder.step.batches) == 8
    assert all(len(batch) == 3 for batch in decoder.step.batches)


def test_answers_that_are_read_in_turns_share_steps():
    """A sequence that took a token a moment ago comes along when another one asks."""
    decoder = toy(context=32, blocks=64)
    scheduler, pair = scheduling(decoder), [sequence([1, 2]), sequence([5, 6, 7])]
    for each in pair:
        scheduler.add(each)
    said = [[], []]
    while not all(each.ended for each in pair):
        for each, tokens in zip(pair, said, strict=True):
            while not (each.ahead or each.ended):
                scheduler.advance(each)
            tokens.append(each.take())
    assert said == [answer([1, 2], 8), answer([5, 6, 7], 8)]
    assert len(decoder.step.batches) <= 10


def test_what_another_one_reads_now_is_waited_for():
    decoder = toy(context=1024, blocks=1024, block=16)
    start = [1 + number % 90 for number in range(900)]
    pair = [sequence([*start, 3], context=1024), sequence([*start, 4], context=1024)]
    assert added(decoder, *pair) == [answer([*start, 3], 8), answer([*start, 4], 8)]
    assert sum(map(sum, decoder.step.batches)) < 901 + 20 + 16
    assert pair[1].cached >= 896


def test_owners_share_nothing():
    decoder = toy(context=64, blocks=64)
    scheduler, prompt = scheduling(decoder), list(range(1, 30))
    cached = []
    for owner in ("a", "b", "a"):
        each = sequence(prompt, owner=owner, context=64)
        scheduler.add(each)
        finish(scheduler, each)
        cached.append(each.cached)
    assert cached == [0, 0, 28]


def test_a_full_pool_takes_the_blocks_of_who_came_last():
    decoder = toy(context=32, blocks=8)
    pair = [sequence([1, 2, 3], 20), sequence([4, 5, 6], 20)]
    assert added(decoder, *pair) == [answer([1, 2, 3], 20), answer([4, 5, 6], 20)]
    assert all_free(decoder)


def test_the_owner_who_got_least_comes_first():
    decoder = toy(context=32, blocks=16, parallel=2)
    scheduler, order = scheduling(decoder), []
    many = [sequence([1 + number], 6, "many") for number in range(8)]
    few = sequence([50], 6, "few")
    for each in (*many, few):
        scheduler.add(each)
    live = [*many, few]
    while live:
        scheduler.advance(*live)
        for each in list(live):
            while each.take() is not None:
                pass
            if each.ended:
                order.append(each)
                scheduler.cancel(each)
                live.remove(each)
    assert order.index(few) <= 3


class Clock:
    """Time that passes only while something is computed: 10 ms a step and 1 ms a row."""

    def __init__(self, decoder, monkeypatch) -> None:
        self.now = 0.0
        decoder.step.before = self.compute
        monkeypatch.setattr(scheduler_module.time, "perf_counter", lambda: self.now)

    def compute(self, batch) -> None:
        self.now += 0.010 + 0.001 * sum(len(each.tokens) for each in batch)


def test_a_long_prompt_lets_others_have_their_tokens_in_time(monkeypatch):
    decoder = toy(context=2100, blocks=1200, block=16)
    clock = Clock(decoder, monkeypatch)
    scheduler, talkers = scheduling(decoder), [sequence([1 + n], None, context=2100) for n in range(4)]
    for each in talkers:
        scheduler.add(each)
    while not all(each.ahead for each in talkers):
        scheduler.advance(*talkers)
    reader = sequence([1 + n % 90 for n in range(2000)], 1, context=2100)
    scheduler.add(reader)
    gaps, last = [], clock.now
    while not reader.ended:
        for each in talkers:
            while each.take() is not None:
                pass
        scheduler.advance(reader, *talkers)
        if all(each.ahead for each in talkers):
            gaps.append(clock.now - last)
            last = clock.now
    assert max(gaps) <= LATENCY_GOAL
    assert len(gaps) <= 2000 / (0.5 * 130), "chunks that are far smaller than they may be"
    assert sorted(gaps)[len(gaps) // 2] > 0.7 * LATENCY_GOAL


def test_alone_a_prompt_is_read_in_large_chunks():
    decoder = toy(context=2100, block=16)
    assert added(decoder, sequence([5] * 2000, 1, context=2100)) == [answer([5] * 2000, 1)]
    assert decoder.step.batches == [[512], [512], [512], [464]]


def test_what_fails_in_one_sequence_ends_this_one_alone():
    def fail(said):
        if len(said) == 2:
            raise ArithmeticError("no mask")

    decoder = toy(context=32, blocks=64)
    nothing = Sampler(Sampling(), mask=lambda said: np.zeros(2, np.uint64))
    three = [sequence([1, 2], sampler=Sampler(Sampling(), mask=fail)), sequence([5, 6]), sequence([7], sampler=nothing)]
    assert added(decoder, *three) == [answer([1, 2], 2), answer([5, 6], 8), []]
    assert (three[0].reason, str(three[0].error)) == ("error", "no mask")
    assert (three[2].reason, three[2].error.cause) == ("error", "No token is allowed here.")
    assert all_free(decoder)


def test_all_sequences_of_a_step_are_sampled_in_one_call():
    decoder, rows = toy(context=64, blocks=64), []

    def sample(logits, settings):
        rows.append(len(settings))
        return RUNG.apply(None, logits, settings)

    scheduler, expected = Scheduler(decoder, sample), LogitSequence([3] * 5, VOCABULARY)
    samplers = [Sampler(Sampling(temperature=1.0, seed=seed)) for seed in (1, 2)]
    three = [sequence([1, 2]), *(sequence([5, 6], sampler=each) for each in samplers)]
    for each in (expected, *three):
        scheduler.add(each)
    said: list[int] = []
    while left := [each for each in (expected, *three) if not each.ended]:
        scheduler.advance(*left)
        for each in three:
            while (token := each.take()) is not None:
                said += [token] if each is three[0] else []
    assert said == answer([1, 2], 8)
    assert max(rows) == 3
    assert sum(rows) == 24
    assert expected.logits.argmax(axis=1).tolist() == [next_token([3] * (1 + number)) for number in range(5)]


def test_cancelled_at_any_time_and_twice():
    decoder = toy(context=64, blocks=64)
    scheduler = scheduling(decoder)
    waiting, begun = sequence([1, 2, 3]), sequence([4, 5, 6])
    scheduler.cancel(waiting)  # never added
    scheduler.add(begun)
    while begun.take() is None:
        scheduler.advance(begun)
    for _ in range(2):
        scheduler.cancel(begun)
    assert begun.ended
    assert begun.reason == "stopped"
    scheduler.advance(begun)  # returns at once
    assert all_free(decoder)


def test_cancelled_while_another_thread_reads_its_prompt():
    decoder = toy(context=2100, blocks=600, block=16)
    scheduler = scheduling(decoder)
    long, short = sequence([5] * 2000, 4, context=2100), sequence([7], 4, context=2100)
    decoder.step.before = lambda batch: scheduler_module.threading.Event().wait(0.01)
    scheduler.add(long)
    reader = threading.Thread(target=lambda: finish(scheduler, long))
    reader.start()
    while not long.computed:
        scheduler_module.time.sleep(0.001)
    scheduler.cancel(long)
    scheduler.add(short)
    assert finish(scheduler, short) == [answer([7], 4)]
    reader.join()
    assert len(long.ids) == 2000
    assert all_free(decoder)


@pytest.mark.parametrize("parallel", [1, 4])
def test_threads_get_the_tokens_of_a_sequence_alone(parallel):
    decoder = toy(context=32, blocks=32, parallel=parallel)
    scheduler = scheduling(decoder)
    found = {}

    def work(number: int) -> None:
        for turn in range(5):
            each = sequence([1 + number, 1 + turn, 7])
            scheduler.add(each)
            found[number, turn] = finish(scheduler, each)[0]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert found == {
        (number, turn): answer([1 + number, 1 + turn, 7], 8) for number, turn in itertools.product(range(6), range(5))
    }
    assert all_free(decoder)


class Stop(BaseException):
    """Ctrl-C, at a chosen moment."""


@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("moment", range(60))
def test_an_interrupt_between_any_two_calls_harms_nobody(moment, drafts, monkeypatch):
    """Raised at the n-th change of the books, of a pool that is nearly full."""
    decoder, small = toy(context=32, blocks=12), toy(context=32, blocks=12)
    draft = Draft(small, VOCABULARY, lambda error: pytest.fail(str(error))) if drafts else None
    scheduler, left = scheduling(decoder, draft=draft), [moment]

    def counted(owner, name):
        kept = getattr(owner, name)

        def call(*arguments):
            left[0] -= 1
            if left[0] == 0:
                raise Stop
            return kept(*arguments)

        monkeypatch.setattr(owner, name, call)

    for member in (*decoder.pool.members, *small.pool.members):
        for name in ("take", "share", "give_back"):
            counted(member, name)
    counted(decoder, "compute")
    counted(small, "compute")
    counted(scheduler, "_take")
    pair = [sequence([1, 2, 3, 4, 5, 6], 12), sequence([1, 2, 3, 4, 5, 9], 12)]
    for each in pair:
        scheduler.add(each)
    said, stopped = [[], []], 0
    while not all(each.ended and not each.ahead for each in pair):
        try:
            scheduler.advance(*(each for each in pair if not each.ended))
        except Stop:
            stopped += 1
        for each, tokens in zip(pair, said, strict=True):
            while (token := each.take()) is not None:
                tokens.append(token)
    for each in pair:
        try:
            scheduler.cancel(each)
        except Stop:
            scheduler.cancel(each)
    scheduler.cancel(sequence([1]))  # mends what the last one left
    assert said == [answer([1, 2, 3, 4, 5, 6], 12), answer([1, 2, 3, 4, 5, 9], 12)]
    left[0] = 0
    assert all_free(decoder)
    assert all_free(small)


def test_an_answer_that_python_throws_away_amid_a_step_waits_for_its_end():
    decoder = toy(context=32, blocks=32)
    scheduler, dropped, kept = scheduling(decoder), sequence([1, 2]), sequence([5, 6])
    scheduler.add(dropped)
    scheduler.advance(dropped)
    decoder.step.before = lambda batch: scheduler.cancel(dropped)
    scheduler.add(kept)
    assert finish(scheduler, kept) == [answer([5, 6], 8)]
    assert all_free(decoder)


def test_logits_of_every_token_beside_an_answer():
    decoder = toy(context=64, blocks=64)
    scheduler, ids = scheduling(decoder), [3, 1, 4, 1, 5, 9, 2, 6]
    expected, talker = LogitSequence(ids, VOCABULARY), sequence([5, 6], 12, context=64)
    for each in (talker, expected):
        scheduler.add(each)
    while not expected.ended:
        scheduler.advance(expected)
    scheduler.cancel(expected)
    assert expected.logits.argmax(1).tolist() == [next_token(ids[: n + 1]) for n in range(len(ids))]
    assert finish(scheduler, talker) == [answer([5, 6], 12)]
    again = sequence(ids, 3, context=64)
    scheduler.add(again)
    assert finish(scheduler, again) == [answer(ids, 3)]
    assert again.cached == len(ids) - 1
    gc.collect()
    assert all_free(decoder)


def test_ten_thousand_that_wait():
    decoder = toy(context=32, blocks=64)
    scheduler = scheduling(decoder)
    everybody = [sequence([1 + number % 90, 1 + number // 90], 1) for number in range(10_000)]
    for each in everybody[:-1]:
        scheduler.add(each)
    scheduler.add(everybody[-1])
    assert finish(scheduler, everybody[-1]) == [answer(everybody[-1].ids[:2], 1)]
    for each in everybody:
        each.end("stopped")
    scheduler.cancel(everybody[0])
    assert all_free(decoder)


def test_a_thread_that_a_step_waits_for_may_cancel():
    """So may the collection of garbage in a thread that imports: it must not wait for the step."""
    decoder = toy()
    scheduler, left, other = scheduling(decoder), sequence([5, 6, 7], most=8), sequence([8, 9], most=3)
    for each in (left, other):
        scheduler.add(each)
    scheduler.advance(left)
    waits = []

    def wait(count):
        if not waits:
            thread = threading.Thread(target=scheduler.cancel, args=(left,), daemon=True)
            thread.start()
            thread.join(5)
            waits.append(thread.is_alive())

    decoder.get_ready = wait
    while not other.ahead:
        scheduler.advance(other)
    assert waits == [False], "it waited for the step"
    assert left.cache is None, "its cache is given back at the end of the step"
    assert finish(scheduler, other) == [answer([8, 9], 3)]


class Narrow:
    """A mask that lets one token through at most places, and two or an end at others; ``forced`` says which ones."""

    def __init__(self, seed: int, most: int) -> None:
        self.seed, self.most = seed, most

    def allowed(self, said) -> list[int]:
        chance = random.Random(f"{self.seed} {list(said)}")
        count = chance.choice([1, 1, 1, 1, 2, 97])
        if chance.random() < 0.04:
            return [END]
        return list(range(1, VOCABULARY)) if count > 2 else chance.sample(range(1, VOCABULARY), count)

    def __call__(self, said):
        words = np.zeros(2, np.uint64)
        for token in self.allowed(said):
            words[token // 64] |= np.uint64(1 << token % 64)
        return words

    def forced(self, said) -> list[int]:
        found: list[int] = []
        while len(found) < self.most and len(left := self.allowed([*said, *found])) == 1:
            found += left
            if left == [END]:
                break
        return found


@pytest.mark.parametrize("several", [1, 3, 20])
@pytest.mark.parametrize("blocks", [24, 400])
def test_tokens_that_a_mask_forces_are_computed_together_and_the_same(several, blocks):
    """Also where caches are given back in the midst of an answer, and where a form ends or the answer is cut."""
    chance = random.Random(several)
    prompts = [[chance.randrange(1, 9) for _ in range(chance.randrange(1, 12))] for _ in range(several)]
    lengths = [chance.choice([1, 2, 9, 20, None]) for _ in prompts]
    found, steps = [], []
    for most in (0, 1, 3, 40):
        decoder = toy(context=48, blocks=blocks, parallel=several)
        samplers = [Sampler(Sampling(temperature=1, seed=n), mask=Narrow(n, most)) for n in range(several)]
        each = [
            sequence(ids, length, context=48, sampler=sampler)
            for ids, length, sampler in zip(prompts, lengths, samplers, strict=True)
        ]
        said = added(decoder, *each)
        found.append([(tokens, one.ids, one.reason) for tokens, one in zip(said, each, strict=True)])
        steps.append(len(decoder.step.batches))
        assert all_free(decoder)
    assert found[1:] == [found[0]] * 3
    assert max(map(len, (tokens for tokens, _, _ in found[0]))) > 1
    assert steps[3] < steps[0] or several > 16


class Sixteen(Narrow):
    """A mask that forces sixteen tokens, as many as a step has rows, after the first one."""

    def __init__(self, most: int) -> None:
        self.most = most

    def allowed(self, said) -> list[int]:
        return [1] if len(said) in range(1, 17) else [2, 3]


@pytest.mark.parametrize("same_bytes", [True, False])
@pytest.mark.parametrize("most", [14, 15, 16])
def test_forced_tokens_fit_a_step_and_prompts_beside_them_stay_short(most, same_bytes):
    decoder = toy(context=4096, blocks=2000, parallel=2)
    decoder.step.same_bytes = lambda state: same_bytes
    scheduler = Scheduler(decoder, lambda logits, rows: RUNG.apply(None, logits, rows), latency_goal=1e-9)
    one = sequence([1, 2], 40, context=4096, sampler=Sampler(Sampling(), mask=Sixteen(most)))
    other = sequence([1] * 3000, 1, owner="other", context=4096)
    scheduler.add(one)
    while not one.ahead:
        scheduler.advance(one)
    while one.take() is not None:
        pass
    scheduler.add(other)
    decoder.step.batches.clear()
    while not decoder.step.batches:
        scheduler.advance(one, other)
    (rows, of_prompt), *_ = decoder.step.batches
    assert rows == (min(most, 15) + 1 if same_bytes else 1)
    assert of_prompt <= 4


def test_tokens_whose_log_probabilities_are_wanted_are_not_forced():
    chosen = Sampler(Sampling(logprobs=True), mask=Narrow(1, 40))
    (said,) = added(toy(), sequence([1, 2], sampler=chosen))
    assert [each.token for each in chosen.logprobs][: len(said)] == said
    (other,) = added(toy(), sequence([1, 2], sampler=Sampler(Sampling(), mask=Narrow(1, 40))))
    assert said == other
