"""Many prompts at once: the answers of each alone, in order, whatever becomes of the others."""

from __future__ import annotations

import math

import pytest

import rung
from rung.core.errors import ContextTooLong, DeviceError, DoesNotFit, UsageError

QUESTIONS = ["Does a GTX 1080 multiply bfloat16?", "What does a Tesla T4 compute in?", "hello", "What is nf4?"]


@pytest.fixture(scope="module")
def model():
    return rung.load("demo", threads=2, context=256)


@pytest.fixture(scope="module")
def alone(model):
    """Return the answers to one question after the other, by a number of tokens."""
    return {
        (question, most): "".join(model.generate(question, max_tokens=most))
        for question in QUESTIONS
        for most in (3, 20)
    }


def all_free(model) -> bool:
    """Return whether no sequence has a block."""
    model.backend.prefixes.clear()
    return all(member.free == len(member.uses) for member in model.backend.pool.members)


def test_answers_are_those_of_each_alone_in_the_order_of_the_prompts(model, alone):
    jobs = [(question, most) for most in (20, 3) for question in QUESTIONS] * 4
    found = list(model.generate_many([question for question, _ in jobs], [{"max_tokens": most} for _, most in jobs]))
    assert [answer.text for answer in found] == [alone[job] for job in jobs]
    assert all(answer.error is None and answer.result["text"] == answer.text for answer in found)
    assert all(answer.tokens == answer.result["tokens"] for answer in found)
    assert all_free(model)


@pytest.mark.parametrize("parallel", [1, 3])
def test_more_prompts_than_have_room_wait(alone, parallel):
    model = rung.load("demo", threads=2, context=128, parallel=parallel)
    found = list(model.generate_many(QUESTIONS * 3, [{"max_tokens": 20}] * 12))
    assert [answer.text for answer in found] == [alone[question, 20] for question in QUESTIONS * 3]


def test_messages_and_keywords_are_those_of_chat_and_generate(model, alone):
    found = list(
        model.generate_many(
            [[{"role": "user", "content": "hello"}], "the model", "hello"],
            [{"max_tokens": 20}, {"raw": True, "max_tokens": 4}, {"temperature": 1.0, "seed": 5, "max_tokens": 20}],
        )
    )
    assert found[0].text == alone["hello", 20]
    assert found[1].text == "".join(model.generate("the model", raw=True, max_tokens=4))
    assert found[2].text == "".join(model.generate("hello", temperature=1.0, seed=5, max_tokens=20))


def test_one_that_cannot_be_answered_has_an_error_and_the_others_go_on(model, alone):
    found = list(
        model.generate_many(["hello", "word " * 900, "hello", "hello"], [{"max_tokens": 3}] * 3 + [{"top_p": 7.0}])
    )
    assert [found[0].text, found[2].text] == [alone["hello", 3]] * 2
    assert isinstance(found[1].error, ContextTooLong)
    assert isinstance(found[3].error, UsageError)
    assert [answer.text for answer in found[1::2]] == ["", ""]


def test_logits_that_are_no_numbers_end_one_answer(model, alone, monkeypatch):
    compute = model.backend.compute

    def broken(batch):
        logits = compute(batch)
        row = 0
        for cache, ids, count, _ in batch:
            if count and cache.ids[:1] and len(cache.ids) + len(ids) > 30:  # the one with the long prompt
                logits[row] = math.nan
            row += count
        return logits

    monkeypatch.setattr(model.backend, "compute", broken)
    long = "Please tell me about bfloat16 on the GTX 1080, the Tesla T4, the V100, the P100, and the RTX 3060"
    found = list(model.generate_many(["hello", long, "hello"], [{"max_tokens": 3}] * 3))
    assert [found[0].text, found[2].text] == [alone["hello", 3]] * 2
    assert isinstance(found[1].error, DeviceError)
    monkeypatch.undo()
    assert all_free(model)


def test_no_prompts_and_options_for_others(model):
    assert list(model.generate_many([])) == []
    with pytest.raises(UsageError, match="2 prompts and options for 1"):
        model.generate_many(["a", "b"], [{}])


def test_who_stops_reading_ends_them_all(model):
    answers = model.generate_many(QUESTIONS * 5)
    next(answers)
    answers.close()
    assert all_free(model)
    assert next(iter(model.generate_many(["hello"], [{"max_tokens": 3}]))).error is None


def test_a_plan_has_room_for_several_contexts():
    one, four = (rung.plan("demo", context=512, parallel=parallel) for parallel in (None, 4))
    caches = [plan.placements[0].memory.kv_cache for plan in (one, four)]
    assert 3 * caches[0] < caches[1] <= 4 * caches[0]  # windows of layers that have one
    pool = rung.load("demo", context=512, parallel=4).backend.pool
    assert caches[1] == sum(member.memory.size for member in pool.members)
    assert (one.parallel, four.parallel) == (1, 4)
    assert rung.Plan.from_json(four.to_json()) == four
    for wrong in (0, 5000):
        with pytest.raises(UsageError, match="must be 1 to"):
            rung.plan("demo", parallel=wrong)


def test_what_does_not_fit_says_how_many_do():
    budget = rung.plan("demo", context=512).placements[0].memory.most + (4 << 20)
    with pytest.raises(DoesNotFit) as caught:
        rung.plan("demo", context=512, parallel=400, memory=budget)
    way = next(way for way in caught.value.ways_out if "--parallel" in way)
    count = int(way.split("--parallel ")[1].split()[0])
    assert 1 <= count < 400
    assert way.startswith("rung plan demo")
    assert rung.plan("demo", context=512, parallel=count, memory=budget)
    with pytest.raises(DoesNotFit):
        rung.plan("demo", context=512, parallel=count + 1, memory=budget)
