"""The chat: history, the commands, Ctrl-C, a full context, models without a template."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rung.cli import chat
from rung.core.errors import ContextTooLong, TemplateError
from rung.engine.load import load


class Answer:
    """Says ``pieces``; an exception among them is raised in its place."""

    def __init__(self, pieces: list[Any]) -> None:
        self.pieces, self.said, self.result = pieces, "", {}

    def __iter__(self) -> Iterator[str]:
        for piece in self.pieces:
            if isinstance(piece, BaseException):
                raise piece
            self.said += piece
            yield piece
        self.result = self.stop()

    def stop(self) -> dict[str, Any]:
        return {
            "text": self.said,
            "tokens": [1] * len(self.said.split()),
            "decode_tokens_per_second": 1.0,
            "first_token_seconds": 0.0,
            "stop_reason": "end",
        }


class Model:
    """Notes its prompts and answers what it is told to; ``room`` is how many characters its context holds."""

    def __init__(self, template: str | None = "{{ messages }}", room: int = 10**6) -> None:
        self.card = SimpleNamespace(chat_template=template)
        self.plan = SimpleNamespace(context=64, placements=())
        self.prompts: list[Any] = []
        self.answers: list[list[Any]] = []
        self.room = room
        self.devices = ()

    def _length(self, prompt: Any) -> int:
        return len(prompt) if isinstance(prompt, str) else sum(len(message["content"]) for message in prompt)

    def fits(self, prompt: Any) -> bool:
        return self._length(prompt) <= self.room - 4

    def chat(self, messages: Any, **options: Any) -> Answer:
        if self._length(messages) > self.room:
            raise ContextTooLong("The prompt is too long.", ways_out=["a shorter prompt"])
        self.prompts.append([(message["role"], message["content"]) for message in messages])
        return Answer(self.answers.pop(0) if self.answers else ["yes"])

    def generate(self, text: str, *, raw: bool, **options: Any) -> Answer:
        assert raw
        if self._length(text) > self.room:
            raise ContextTooLong("The prompt is too long.", ways_out=["a shorter prompt"])
        self.prompts.append(text)
        return Answer(self.answers.pop(0) if self.answers else [" and on"])


@pytest.fixture
def talk(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """Types lines into a chat with a model; a KeyboardInterrupt among them is Ctrl-C at the prompt."""

    def call(model: Any, *lines: Any, **options: Any) -> tuple[str, str]:
        left = iter(lines)

        def typed(prompt: str) -> str:
            line = next(left, EOFError())
            if isinstance(line, BaseException):
                raise line
            return str(line)

        monkeypatch.setattr(builtins, "input", typed)
        system, raw, quiet = options.get("system"), options.get("raw", False), options.get("quiet", False)
        chat.loop(model, getattr(model, "devices", ()), {"temperature": 0}, system, raw, quiet)
        out, err = capsys.readouterr()
        assert next(left, None) is None, "the chat ended before its last line"
        return out, err

    return call


def test_every_turn_goes_with_the_ones_before(talk: Any) -> None:
    model = Model()
    out, err = talk(model, "one", "two", "", "/clear", "three", system="Be brief.")
    system = ("system", "Be brief.")
    assert model.prompts == [
        [system, ("user", "one")],
        [system, ("user", "one"), ("assistant", "yes"), ("user", "two")],
        [system, ("user", "three")],
    ]
    assert out.splitlines()[:3] == ["yes"] * 3
    assert err.count("tokens/s") == 3
    assert "Chat. /help lists the commands" in err


def test_the_commands(talk: Any) -> None:
    model = Model()
    _, err = talk(model, "/help", "/dance", "/bye")
    assert all(command in err for command in ("/clear", "/plan", "/bye", "Ctrl-C"))
    assert "there is no command /dance" in err
    assert model.prompts == []


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(talk: Any) -> None:
    model = Model()
    model.answers = [["well ", KeyboardInterrupt()]]
    out, err = talk(model, "one", KeyboardInterrupt(), "two", "/bye")
    assert "well \n" in out
    assert model.prompts[1] == [("user", "one"), ("assistant", "well "), ("user", "two")]
    assert "/bye or Ctrl-D leaves" in out
    assert "Traceback" not in err


def test_a_full_context_forgets_the_oldest_turns_with_a_word(talk: Any) -> None:
    model = Model(room=20)
    _, err = talk(model, "12345", "67890", "abcde")
    assert model.prompts[-1] == [("user", "67890"), ("assistant", "yes"), ("user", "abcde")]
    assert "the oldest 2 messages are forgotten" in err
    assert err.count("forgotten") == 1


@pytest.mark.parametrize("error", [TemplateError("The template failed.", ways_out=["--raw"]), None])
def test_a_turn_without_an_answer_does_not_spoil_the_next(talk: Any, error: Exception | None) -> None:
    """Two user turns in a row are more than many templates take."""
    model = Model(room=20)
    model.answers = [["yes"], *([[error]] if error else [])]
    _, err = talk(model, "one", "x" * (3 if error else 90), "two")
    assert model.prompts[-1][-1] == ("user", "two")
    roles = [role for role, _ in model.prompts[-1]]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
    assert ("The template failed." if error else "The prompt is too long.") in err


def test_a_model_without_a_template_goes_on_with_the_text(talk: Any) -> None:
    model = Model(template=None, room=40)
    _, err = talk(model, "Once", " upon", system="T: ")
    assert model.prompts == ["T: Once", "T: Once and on upon"]
    assert "no chat template: it continues your text" in err
    _, err = talk(model, "x" * 30, "y" * 20, "z" * 90, "w")
    assert model.prompts[2:] == ["x" * 30, "y" * 20, "y" * 20 + " and onw"]
    assert "the oldest 2 messages are forgotten" in err
    assert "too long" in err


def test_raw_continues_the_text_of_a_model_with_a_template(talk: Any) -> None:
    model = Model()
    talk(model, "Once", raw=True)
    assert model.prompts == ["Once"]


def test_quiet_says_nothing_but_answers(talk: Any) -> None:
    assert talk(Model(), "one", quiet=True) == ("yes\n\n", "")


def test_the_embedded_model_chats_until_its_context_is_full(talk: Any) -> None:
    model = load("demo", device="cpu", context=96)
    questions = ["Does a GTX 1080 multiply bfloat16?", "hello", "How much memory has a Quadro P2200?"]
    out, err = talk(model, *questions, "/plan", "word " * 200, "hello", "/bye")
    assert out.split()
    assert "forgotten" in err
    assert "context 96" in err
    assert "The prompt has" in err
    assert err.count("tokens/s") + err.count("1 token ") >= 4
