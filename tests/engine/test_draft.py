"""A draft model: the same text in fewer steps, whatever it guesses and whatever happens to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import tiny_encoders
from toy_backend import VOCABULARY, answer, finish, free_blocks, next_token, scheduling, sequence, toy

from rung.core.errors import UsageError
from rung.engine.load import load
from rung.engine.sampling import Sampler, Sampling
from rung.engine.scheduling import scheduler as scheduler_module
from rung.engine.scheduling import speculator as draft_module
from rung.engine.scheduling.speculator import Draft

GGUF = Path(__file__).parent.parent / "fixtures" / "gguf"
CONTEXT = 400


def often_right(ids) -> int:
    """The next token, three times of four."""
    found = next_token(ids)
    return found if len(ids) % 4 else 1 + found % (VOCABULARY - 1)


@pytest.fixture
def pair(monkeypatch):
    """A model whose steps take 10 ms and 0.1 ms a row, and a draft model of a tenth of that."""
    now = [0.0]

    def make(following=next_token, blocks=None, context=CONTEXT, slower=0.1):
        large, small = toy(context=CONTEXT, blocks=CONTEXT), toy(context=context, blocks=blocks or CONTEXT)
        small.step.following = following

        def passing(seconds):
            def step(batch):
                now[0] += seconds * (1 + 0.01 * sum(len(each.tokens) for each in batch))

            return step

        large.step.before, small.step.before = passing(0.010), passing(0.010 * slower)
        errors = []
        return large, small, Draft(small, VOCABULARY, errors.append), errors

    for module in (scheduler_module, draft_module):
        monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    return make


def run(large, draft, *sequences):
    scheduler = scheduling(large, draft=draft)
    for each in sequences:
        scheduler.add(each)
    return finish(scheduler, *sequences)


def all_free(decoder) -> bool:
    decoder.prefixes.clear()
    return free_blocks(decoder) == [len(member.uses) for member in decoder.pool.members]


@pytest.mark.parametrize("several", [1, 3])
@pytest.mark.parametrize("following", [next_token, often_right])
def test_the_same_text_in_fewer_steps(pair, following, several):
    large, small, draft, errors = pair(following)
    prompts = [[1 + number, 5, 9, 2, 7] * 5 for number in range(several)]
    everybody = [sequence(prompt, 100, context=CONTEXT) for prompt in prompts]
    assert run(large, draft, *everybody) == [answer(prompt, 100) for prompt in prompts]
    assert len(large.step.batches) < (60 if following is often_right else 40)
    assert all(each.guesser.accepted > 60 for each in everybody)
    assert not errors
    assert all_free(large)
    assert all_free(small)


def test_what_is_drawn_is_what_is_drawn_without_it(pair):
    for seed in range(3):
        found = []
        for with_draft in (False, True):
            large, _, draft, _ = pair()
            sampler = Sampler(Sampling(temperature=0.2, seed=seed))
            each = sequence([4, 5, 6, 7], 80, context=CONTEXT, sampler=sampler)
            found.append(run(large, draft if with_draft else None, each))
        assert found[0] == found[1]


def test_a_draft_model_that_is_wrong_or_slow_is_let_go(pair):
    for large, small, draft, _ in (pair(lambda ids: 1 + next_token(ids) % 96), pair(slower=2.0)):
        assert run(large, draft, sequence([1, 2, 3], 200, context=CONTEXT)) == [answer([1, 2, 3], 200)]
        assert len(large.step.batches) >= 190
        assert sum(map(sum, small.step.batches)) < 120


def test_a_prompt_that_the_model_knows_and_the_draft_model_does_not(pair):
    large, small, draft, _ = pair()
    prompt = [1 + number % 90 for number in range(200)]
    run(large, None, sequence(prompt, 1, context=CONTEXT))
    assert run(large, draft, sequence([*prompt, 7], 100, context=CONTEXT)) == [answer([*prompt, 7], 100)]
    rows = [sum(batch) for batch in small.step.batches]
    assert max(rows) <= 201
    assert sum(rows) < 201 + 130


def test_another_turn_reads_the_new_tokens_alone(pair):
    large, small, draft, _ = pair()
    scheduler, prompt = scheduling(large, draft=draft), [3] * 100
    first = sequence(prompt, 50, context=CONTEXT)
    scheduler.add(first)
    (said,) = finish(scheduler, first)
    small.step.batches.clear()
    again = sequence([*prompt, *said, 8, 9], 50, context=CONTEXT)
    scheduler.add(again)
    finish(scheduler, again)
    assert sum(map(sum, small.step.batches)) < 100


def test_a_draft_model_without_room_or_with_a_shorter_context_guesses_less(pair):
    for large, small, draft, errors in (pair(blocks=6), pair(context=40), pair(context=8)):
        two = [sequence([1 + number, 2, 3, 4, 5], 100, context=CONTEXT) for number in range(2)]
        assert run(large, draft, *two) == [answer([1 + number, 2, 3, 4, 5], 100) for number in range(2)]
        assert not errors
        assert all_free(small)


def test_a_token_that_the_draft_model_does_not_know(pair):
    large, small, _, _ = pair()
    draft = Draft(small, VOCABULARY - 40, pytest.fail)
    prompt = [1, 2, VOCABULARY - 1, 4, 5, 6, 7, 8, 9, 1, 2, 3]
    assert run(large, draft, sequence(prompt, 50, context=CONTEXT)) == [answer(prompt, 50)]
    assert small.step.batches == []


def test_a_draft_model_that_fails_is_left_and_the_answer_goes_on(pair):
    large, small, draft, errors = pair()

    def fail(batch):
        if len(small.step.batches) == 5:
            raise MemoryError("no room")

    small.step.before = fail
    assert run(large, draft, sequence([1, 2, 3], 60, context=CONTEXT)) == [answer([1, 2, 3], 60)]
    assert [str(error) for error in errors] == ["no room"]
    assert len(small.step.batches) == 5


def test_a_model_guesses_for_itself():
    name = str(GGUF / "llama-q4_0.gguf")
    plain, drafted = load(name, context=128), load(name, context=128, draft=name)
    answers = [plain.generate("Hi", raw=True, max_tokens=60), drafted.generate("Hi", raw=True, max_tokens=60)]
    texts = ["".join(each) for each in answers]
    assert texts[0] == texts[1]
    assert answers[0].tokens == answers[1].tokens
    assert plain.report.predicted["memory_bytes"] < drafted.report.predicted["memory_bytes"]


def test_a_draft_model_is_not_used_where_rows_are_not_the_same_bytes():
    name, notes = str(GGUF / "llama-q4_0.gguf"), []
    model = load(name, format="f32", context=64, draft=name, on_note=notes.append)
    assert not model.backend.same_bytes
    assert any("is not used: rows of a step" in note for note in notes)
    list(answer := model.generate("Hi", raw=True, max_tokens=8))
    assert answer.result["guessed_tokens"] == 0


@pytest.mark.parametrize(
    ("name", "says"),
    [("demo", "their vocabularies differ"), ("no/such/model.gguf", "no/such/model.gguf")],
)
def test_a_draft_model_that_cannot_be_one_is_refused(name, says):
    with pytest.raises(Exception, match=says) as refused:
        load(str(GGUF / "llama-q4_0.gguf"), context=64, draft=name)
    assert not isinstance(refused.value, (KeyError, AttributeError))


@pytest.mark.parametrize("verb", ["have", "be"])
def test_an_encoder_has_no_draft_model_and_is_none(tmp_path, verb):
    pair = [str(tiny_encoders.write(tmp_path / "bert")), str(GGUF / "llama-q4_0.gguf")]
    name, draft = pair if verb == "have" else reversed(pair)
    with pytest.raises(UsageError, match=f"cannot {verb} a draft model"):
        load(name, draft=draft)
