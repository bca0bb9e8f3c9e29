"""The chat: history, the commands, Ctrl-C, a full context, models without a template."""

from __future__ import annotations

import builtins
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rung.cli import chat
from rung.cli.chat.commands import ALONE
from rung.cli.options import GenerationOptions
from rung.core.errors import ContextTooLong, TemplateError
from rung.engine import decoder
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
        self.card = SimpleNamespace(chat_template=template, defaults={}, name="fake")
        self.plan = SimpleNamespace(context=64, placements=())
        self.prompts: list[Any] = []
        self.options: dict[str, Any] = {}
        self.answers: list[list[Any]] = []
        self.room = room
        self.devices = ()

    def _length(self, prompt: Any) -> int:
        return len(prompt) if isinstance(prompt, str) else sum(len(message["content"]) for message in prompt)

    def room_after(self, prompt: Any) -> int:
        return self.room - self._length(prompt)

    def chat(self, messages: Any, **options: Any) -> Answer:
        if self._length(messages) > self.room:
            raise ContextTooLong("The prompt is too long.", ways_out=["a shorter prompt"])
        self.options = options
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

        def typed(prompt: str = "") -> str:
            line = next(left, EOFError())
            if isinstance(line, BaseException):
                raise line
            return str(line)

        monkeypatch.setattr(builtins, "input", typed)
        monkeypatch.setenv("RUNG_HISTORY", "0")
        system, raw, quiet = options.get("system"), options.get("raw", False), options.get("quiet", False)
        chosen = GenerationOptions(temperature=0, max_tokens=options.get("max_tokens", 4))
        chat.loop(model, getattr(model, "devices", ()), chosen, system, raw, quiet)
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
    assert "tokens/s" not in err
    assert "Chat. /help lists the commands" in err


def test_the_commands(talk: Any) -> None:
    model = Model()
    _, err = talk(model, "/help", "/dance", "/bye")
    assert all(command in err for command in ("/clear", "/plan", "/bye", "Ctrl-C", *ALONE[:10]))
    assert "There is no command /dance" in err
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
    lines = (*questions, "/stats", "/plan", "word " * 200, "hello", "/stats", "hello", "/bye")
    out, err = talk(model, *lines, max_tokens=None)
    assert out.split()
    assert "forgotten" in err
    assert "context 96" in err
    assert "The prompt has" in err
    assert err.count("tokens/s") == 1


def test_room_for_an_answer_is_kept(talk: Any) -> None:
    """A quarter of the context by default: 16 of 64; and a word where one question leaves less."""
    model = Model(room=40)
    _, err = talk(model, "1234567890", "1234567890", "1234567890", "x" * 30, max_tokens=None)
    assert model.prompts[1] == [("user", "1234567890"), ("assistant", "yes"), ("user", "1234567890")]
    assert model.prompts[2] == model.prompts[1]
    assert model.prompts[3] == [("user", "x" * 30)]
    assert err.count("there is room for an answer of 10 tokens") == 1


def test_the_system_text_and_options_are_set_and_shown(talk: Any) -> None:
    model = Model()
    lines = ("/system Be brief.", "/system", "/set temperature 0.5", "/set top-k 40", r"/set stop \n", "one")
    _, err = talk(model, *lines, "/set seed 7", "/set logit-bias 13=-5 14=2", "/set temperature default", "two", "/set")
    assert model.prompts[0] == [("system", "Be brief."), ("user", "one")]
    assert "Be brief." in err
    assert model.options == {"top_k": 40, "stop": ("\n",), "seed": 7, "max_tokens": 4, "logit_bias": {13: -5, 14: 2}}
    assert err.count("top_k             40\n") == 2  # when it was set, and in the list
    shown = dict(line.split(maxsplit=1) for line in err.splitlines()[-12:])
    assert shown["top_k"] == "40"
    assert shown["temperature"] == "1 (default)"  # top_k without a temperature draws
    assert shown["logit_bias"] == "13=-5 14=2"
    assert shown["stop"] == r"'\n'"
    assert shown["min_p"] == "0 (default)"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/set temperature hot", "temperature cannot be 'hot'"),
        ("/set temperature -1", "it must be a number, 0 (always the likeliest token) or above"),
        ("/set top_p nan", "it must be a number from 0 to 1"),
        ("/set temprature 1", "Did you mean temperature"),
        ("/set max_tokens 0", "it must be a whole number, 1 or above"),
        ("/set seed", "/set seed needs a value; it is default now"),
        ("/retry", "There is no question yet"),
        ("/save", "/save needs a name"),
        ("/save a b", "'a b' is no name of a conversation"),
        ("/load nowhere", "There is no saved conversation 'nowhere'"),
        ("/file", "/file needs the path of a text file"),
        ("/file /no/such/file", "/no/such/file cannot be read: No such file"),
        ("/file .", "cannot be read: Is a directory"),
        ("/retyr", "1  /retry"),
        ("/bye now", "1  /bye   # leaves the chat"),
        ("/clear all", "/clear takes nothing behind it"),
    ],
)
def test_a_bad_command_is_answered_and_changes_nothing(
    talk: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str, words: str
) -> None:
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path))
    model = Model()
    _, err = talk(model, line, "one")
    assert words in err
    assert "What to do\n  1  " in err
    assert model.prompts == [[("user", "one")]]
    assert model.options == {"temperature": 0, "max_tokens": 4}


def test_the_last_question_is_asked_again(talk: Any) -> None:
    model = Model()
    model.answers = [["a"], ["b"], ["c"]]
    _, err = talk(model, "one", "two", "/retry", "three")
    before = [("user", "one"), ("assistant", "a")]
    assert model.prompts[1] == model.prompts[2] == [*before, ("user", "two")]
    assert model.prompts[3] == [*before, ("user", "two"), ("assistant", "c"), ("user", "three")]
    assert "At temperature 0 the answer is the same" in err


def test_files_go_with_the_next_turn_and_only_with_that(talk: Any, tmp_path: Path) -> None:
    (tmp_path / "a b.txt").write_text("text\n")
    (tmp_path / "data").write_bytes(b"\x7fELF\x00")
    model = Model()
    _, err = talk(model, f"/file {tmp_path / 'a b.txt'}", f"/file {tmp_path / 'data'}", "Summarize.", "two")
    assert model.prompts[0] == [("user", "Summarize.\n\ntext\n")]
    assert model.prompts[1][-1] == ("user", "two")
    assert "5 characters go with your next turn" in err
    assert "is a program; a model reads text" in err


def test_a_conversation_is_saved_and_goes_on(talk: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path))
    _, err = talk(Model(), "one", "/set top_k 3", "/set logit_bias 13=-5", "/save fox", "/save fox", system="Be brief.")
    path = tmp_path / "chats" / "fox.json"
    assert (err.count(f"saved in {path}"), err.count(f"replaced {path}")) == (1, 1)
    assert os.name == "nt" or path.stat().st_mode & 0o777 == 0o600
    assert json.loads(path.read_text())["messages"][0] == {"role": "user", "content": "one"}
    model = Model()
    _, err = talk(model, "/load", "/load fox", "two", f"/save {tmp_path}/other.json", "/save /no/such/folder/x")
    assert model.prompts == [[("system", "Be brief."), ("user", "one"), ("assistant", "yes"), ("user", "two")]]
    assert (model.options["top_k"], model.options["logit_bias"]) == (3, {13: -5})
    assert "Saved are: fox. /load fox" in err
    assert "cannot be written" in err
    assert (tmp_path / "other.json").is_file()
    assert sorted(os.listdir(tmp_path / "chats")) == ["fox.json"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "not valid JSON"),
        ("[]", "not an object"),
        ("{}", "no saved conversation"),
        ('{"messages": [{"role": "assistant", "content": "x"}]}', "roles are user and assistant in turn"),
        ('{"messages": [{"role": "user", "content": 3}]}', "roles are user and assistant in turn"),
        ('{"messages": [], "options": {"top_p": 7}}', "must be a number from 0 to 1"),
        ('{"messages": [], "options": {"color": 7}}', "There is no option color"),
        ('{"messages": [], "system": 7}', "system text is no text"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_a_damaged_conversation_is_refused(
    talk: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, words: str
) -> None:
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path))
    (tmp_path / "chats").mkdir()
    (tmp_path / "chats" / "bad.json").write_text(text)
    model = Model()
    _, err = talk(model, "one", "/load bad", "two")
    assert words in err
    assert model.prompts[1] == [("user", "one"), ("assistant", "yes"), ("user", "two")]


def test_ctrl_c_before_the_answer_forgets_the_question(talk: Any) -> None:
    model = Model()
    model.answers = [[KeyboardInterrupt()], []]
    _, err = talk(model, "one", "two", "three")
    assert model.prompts[1:] == [[("user", "two")], [("user", "three")]]
    assert err.count("the question is taken back") == 2  # nothing was said to the second


def test_an_interrupt_while_a_prompt_is_read_costs_nothing_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between two chunks of a prompt; the model then answers as one that was never disturbed."""
    monkeypatch.setattr(decoder, "CHUNK", 64)
    model = load("demo", device="cpu", context=512)
    question = "Does a GTX 1080 multiply bfloat16?"
    expected = list(model.generate(question, max_tokens=12))
    answer, progress = model.generate("word " * 200), []

    def interrupt(done: int, total: int) -> None:
        progress.append((done, total))
        if done:
            raise KeyboardInterrupt

    answer.on_read = interrupt
    with pytest.raises(KeyboardInterrupt):
        next(iter(answer))
    assert [done for done, _ in progress] == [0, 64]
    assert answer.stop()["stop_reason"] == "stopped"
    assert list(model.generate(question, max_tokens=12)) == expected


def test_three_quotes_hold_several_lines_and_a_paste_that_begins_with_a_path_is_text(talk: Any) -> None:
    model = Model()
    talk(model, '"""one', "", '  two"""', '"""three"""', '/system """a', 'b"""', "/etc/hosts\nis what?")
    assert [prompt[-1][1] for prompt in model.prompts] == ["one\n\n  two", "three", "/etc/hosts\nis what?"]
    assert model.prompts[2][0] == ("system", "a\nb")
