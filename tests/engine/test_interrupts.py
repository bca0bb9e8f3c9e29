"""A model after Ctrl-C, a dropped answer, a fork, beside another thread: the same answers, byte for byte."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable

import pytest
from tests.interrupting import alarms, interrupt, moments

import rung
from rung.engine.chat import Template

QUESTION = "Does a GTX 1080 multiply bfloat16?"
OTHER = "What does a Tesla T4 compute in?"
IDS = list(range(5, 45))


@pytest.fixture(scope="module")
def model() -> rung.engine.model.Model:
    return rung.load("demo", threads=2)


@pytest.fixture(scope="module")
def answers(model) -> dict[str, str]:
    """Return the answers of the model when nothing disturbs it."""
    found = {question: ask(model, question) for question in (QUESTION, OTHER)}
    assert len(set(found.values())) == 2
    return found


def ask(model, question: str = QUESTION) -> str:
    return "".join(model.generate(question, max_tokens=24))


def seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def test_interrupts_at_random_moments_of_an_answer(model, answers):
    """In the template, the prompt, the decoding and the sampling; half of them with a seed."""
    logits = model.logits(IDS).numpy().tobytes()
    drawn = "".join(model.generate(QUESTION, temperature=1, seed=3, max_tokens=24))
    longest = 1.2 * seconds(lambda: ask(model))
    number = cut = 0
    with alarms():
        while number < 20 or cut < 5:
            for at in moments(10, longest, seed=number):
                number += 1
                options = {"temperature": 1, "seed": number} if number % 2 else {}
                prompt = f"{number} {OTHER}" if number % 3 else QUESTION
                cut += interrupt(lambda: "".join(model.generate(prompt, max_tokens=24, **options)), at)  # noqa: B023
                assert ask(model) == answers[QUESTION]
            longest *= 0.7  # the first answer may have been slowed down by other programs
    assert "".join(model.generate(QUESTION, temperature=1, seed=3, max_tokens=24)) == drawn
    assert model.logits(IDS).numpy().tobytes() == logits


def test_an_interrupt_of_the_logits(model, answers):
    logits = model.logits(IDS).numpy().tobytes()
    longest = seconds(lambda: model.logits(IDS))
    with alarms():
        for at in moments(10, longest):
            interrupt(lambda: model.logits(IDS), at)
            assert model.logits(IDS).numpy().tobytes() == logits
    assert ask(model) == answers[QUESTION]


def test_answers_that_take_turns_within_a_thread(model, answers):
    """Each goes on as if it were alone: the cache has one place only."""
    several = [iter(model.generate(question, max_tokens=24)) for question in (QUESTION, OTHER)]
    said = ["", ""]
    over = [False, False]
    while not all(over):
        for number, pieces in enumerate(several):
            piece = next(pieces, None)
            over[number] = piece is None
            said[number] += piece or ""
    assert said == [answers[QUESTION], answers[OTHER]]


def test_an_answer_that_is_dropped_half_way(model, answers):
    for _, _ in zip(model.generate(OTHER), range(3), strict=False):
        pass
    answer = iter(model.generate(OTHER, max_tokens=24))
    begun = next(answer) + next(answer)
    assert ask(model) == answers[QUESTION]
    assert model.logits(IDS).shape[0] == len(IDS)
    assert begun + "".join(answer) == answers[OTHER], "it goes on where it was"


def test_an_exception_of_the_callers_code_between_two_pieces(model, answers):
    def read() -> None:
        for _ in model.generate(OTHER):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        read()
    assert ask(model) == answers[QUESTION]


def test_threads_that_use_one_model_at_once(model, answers):
    said: list[tuple[str, str]] = []

    def work(question: str) -> None:
        for _ in range(3):
            said.append((question, ask(model, question)))

    threads = [threading.Thread(target=work, args=(question,)) for question in (QUESTION, OTHER) * 2]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(said) == 12
    assert all(answer == answers[question] for question, answer in said)


def test_an_answer_that_nobody_goes_on_with_holds_no_other_thread(model, answers):
    answer = iter(model.generate(OTHER, max_tokens=24))
    begun = next(answer)
    said: list[str] = []
    thread = threading.Thread(target=lambda: said.append(ask(model)))
    thread.start()
    thread.join(60)
    assert said == [answers[QUESTION]]
    assert begun + "".join(answer) == answers[OTHER]


def test_a_second_model_beside_the_first(model, answers):
    second = rung.load("demo", threads=1)
    with alarms():
        for at in moments(5, seconds(lambda: ask(second))):
            interrupt(lambda: ask(second), at)
    assert ask(second) == ask(model) == answers[QUESTION]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("busy", [False, True])
def test_a_fork_answers_too_and_leaves_its_parent_alone(model, answers, busy):
    """Also while another thread of the parent is in the middle of an answer."""
    stop = threading.Event()
    thread = threading.Thread(target=lambda: [ask(model) for _ in iter(stop.is_set, True)])
    if busy:
        thread.start()
    try:
        child = os.fork()
        if not child:
            signal.alarm(60)
            os._exit(0 if all(ask(model, question) == said for question, said in answers.items()) else 1)
        assert ask(model, OTHER) == answers[OTHER]
        assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        if busy:
            thread.join()
    assert ask(model) == answers[QUESTION]


def test_a_template_answers_the_question_that_is_asked_and_not_the_one_before():
    template = Template("{{ messages[0].content }}")
    template.render([{"role": "user", "content": "first"}])
    longest = seconds(lambda: template.render([{"role": "user", "content": "second"}]))
    with alarms():
        for number, at in enumerate(moments(20, 2 * longest)):
            interrupt(lambda: template.render([{"role": "user", "content": f"cut {number}"}]), at)  # noqa: B023
            assert template.render([{"role": "user", "content": str(number)}]) == str(number)
