"""Ctrl-C in a chat with a model, at random moments: the next answer is what it would have been."""

from __future__ import annotations

import time

import pytest

from tests.interrupting import Chat, moments

pytest.importorskip("pty", reason="terminals of POSIX")

QUESTION = "Does a GTX 1080 multiply bfloat16?"
LONG = "Which of these cards compute in float16: " + "a Tesla T4, a GTX 1080, " * 12 + "?"


def stopped(count: int, seed: int) -> None:
    chat = Chat("demo", "--temperature", "0", "--threads", "2", "--context", "512")
    right = chat.ask(QUESTION)
    assert "GTX 1080" in right
    chat.ask(LONG)  # compiles what the timed one does not wait for
    started = time.monotonic()
    chat.ask(LONG)
    longest = 1.2 * (time.monotonic() - started)
    cut = 0
    for number, at in enumerate(moments(count, longest, seed)):
        cut += chat.stop(LONG if number % 2 else QUESTION, at) != ""
        assert chat.ask(QUESTION) == right
    assert cut >= count // 5
    assert chat.close() == 0


def test_stopped_eight_times() -> None:
    stopped(8, seed=0)


@pytest.mark.slow
def test_stopped_two_hundred_times() -> None:
    stopped(200, seed=1)
