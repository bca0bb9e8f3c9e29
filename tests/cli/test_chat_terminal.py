"""The chat on a real terminal: pastes, history, Ctrl-C, words, what a model may not send there."""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pty = pytest.importorskip("pty", reason="terminals of POSIX")
fcntl, termios = pytest.importorskip("fcntl"), pytest.importorskip("termios")

#: A chat with a model that says the number of its turn and repeats the question as JSON; some questions are special.
PROGRAM = """
import hashlib, json, sys, time
from types import SimpleNamespace
if "plain" in sys.argv:
    sys.modules["readline"] = None
from rung.cli.options import GenerationOptions
from rung.cli import chat, interrupts
class Echo:
    card = SimpleNamespace(chat_template="{{ messages }}", defaults={}, name="echo")
    plan = SimpleNamespace(context=64, placements=())
    devices, turns = (), 0
    def room_after(self, messages):
        return 10**6
    def chat(self, messages, **options):
        self.turns += 1
        text = messages[-1]["content"]
        if len(text) > 10000:
            text = hashlib.sha256(text.encode()).hexdigest()
        return Answer(text, f"<{self.turns} {json.dumps(text)}>")
class Answer:
    def __init__(self, question, text):
        self.question, self.text = question, text
    def __iter__(self):
        if self.question == "long":
            self.on_read(1024, 2830)
            time.sleep(60)
        if self.question == "words":
            yield from ["one two ", "three fo", "ur five\\x1b]0;title\\x07 six seven eight"]
        else:
            yield self.text
        self.result = self.end("end")
    def end(self, why):
        return dict(text=self.text, tokens=[1], decode_tokens_per_second=1, first_token_seconds=0, stop_reason=why)
    def stop(self):
        self.text = ""
        return self.end("stopped")
interrupts.listen(watch=False)
chat.loop(Echo(), (), GenerationOptions(), None, False, False)
print("left")
"""
PROMPT = b">>> "


class Terminal:
    """The program on a terminal."""

    def __init__(self, cache: Path, *arguments: str, columns: str = "200") -> None:
        self.process, self.number = pty.fork()
        if not self.process:
            os.environ.update(RUNG_CACHE=str(cache), TERM="xterm", INPUTRC="/dev/null", COLUMNS=columns, LINES="24")
            os.execv(sys.executable, [sys.executable, "-c", PROGRAM, *arguments])
        self.shown = b""
        fcntl.ioctl(self.number, termios.TIOCSWINSZ, struct.pack("HHHH", 24, int(columns), 0, 0))

    def type(self, text: str, until: bytes) -> str:
        """Type a text; return what is shown until a mark comes, with the mark."""
        data, ends = text.encode(), time.monotonic() + 60
        while until not in self.shown:
            assert time.monotonic() < ends, self.shown
            ready, writable, _ = select.select([self.number], [self.number] if data else [], [], 1)
            if writable:
                data = data[os.write(self.number, data[:1024]) :]
            if ready:
                self.shown += os.read(self.number, 1 << 16)
        shown, _, self.shown = self.shown.partition(until)
        return (shown + until).decode("utf-8", "replace")

    def press_ctrl_c(self, until: bytes) -> None:
        """Press Ctrl-C until a mark is shown: ``input`` misses one that comes just before it waits."""
        for _ in range(30):
            os.write(self.number, b"\x03")
            ends = time.monotonic() + 2
            while until not in self.shown and time.monotonic() < ends:
                if select.select([self.number], [], [], 0.1)[0]:
                    self.shown += os.read(self.number, 1 << 16)
            if until in self.shown:
                self.shown = self.shown.partition(until)[2]
                return
        raise AssertionError(self.shown)

    def ask(self, text: str) -> str:
        """Type a turn and its Enter; return the question that the model got."""
        self.type(text + "\r", b"<")
        shown = self.type("", b'">').replace("\r\n", " ")
        self.type("", PROMPT)
        return json.loads(shown[shown.index('"') : -1])

    def close(self) -> str:
        """Leave the chat; return what was shown last."""
        shown = self.type("/bye\r", b"left")
        os.close(self.number)
        os.waitpid(self.process, 0)
        return shown


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    result = Terminal(tmp_path)
    result.type("", PROMPT)
    yield result
    assert "left" in result.close()


LINES = "one line\r  another\r\rthe last"


def test_a_paste_is_one_turn(terminal: Terminal) -> None:
    assert terminal.ask(f"\x1b[200~{LINES}\x1b[201~") == LINES.replace("\r", "\n")
    assert terminal.ask(f"Look: \x1b[200~{LINES}\r\x1b[201~") == "Look: " + LINES.replace("\r", "\n")


def test_a_paste_that_the_terminal_does_not_mark_is_one_turn(terminal: Terminal) -> None:
    assert terminal.ask(LINES) == LINES.replace("\r", "\n")


def test_without_readline_it_works_with_plain_lines(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, "plain")
    terminal.type("", PROMPT)
    assert terminal.ask("one") == "one"
    assert terminal.ask(LINES) == LINES.replace("\r", "\n")
    terminal.close()


def test_what_was_typed_comes_back_in_the_next_chat(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path)
    terminal.type("", PROMPT)
    assert terminal.ask(f"\x1b[200~{LINES}\x1b[201~") == LINES.replace("\r", "\n")
    assert terminal.ask("two") == "two"
    terminal.close()
    terminal = Terminal(tmp_path)
    terminal.type("", PROMPT)
    assert terminal.ask("\x1b[A\x1b[A\x1b[A") == LINES.replace("\r", "\n")  # /bye, two, the paste
    terminal.close()
    (kept,) = tmp_path.glob("chat_history*")
    assert kept.stat().st_mode & 0o777 == 0o600


def test_nothing_is_kept_where_the_setting_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNG_HISTORY", "0")
    terminal = Terminal(tmp_path)
    terminal.type("", PROMPT)
    assert terminal.ask("secret") == "secret"
    terminal.close()
    assert not list(tmp_path.iterdir())


def test_words_are_wrapped_and_the_terminal_is_not_steered(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, columns="24")
    terminal.type("", PROMPT)
    shown = terminal.type("words\r", b"eight")
    assert "one two three four\r\nfive\\x1b]0;title\\x07 six\r\nseven eight" in shown
    assert "\x1b]0" not in shown
    terminal.type("", PROMPT)
    terminal.close()


def test_reading_shows_its_progress_and_ctrl_c_stops_it(terminal: Terminal) -> None:
    shown = terminal.type("long\r", b"2,830")
    assert shown.endswith("reading 1,024 of 2,830")
    os.kill(terminal.process, signal.SIGINT)
    shown = terminal.type("", PROMPT)
    assert shown.startswith("\r\x1b[K")
    assert terminal.ask("two") == "two"


def test_quotes_and_what_is_typed_ahead(terminal: Terminal) -> None:
    terminal.type('"""one\r', b"... ")
    assert terminal.ask('two"""') == "one\ntwo"
    terminal.type("half", b"half")
    terminal.press_ctrl_c(b"leaves")
    terminal.type("", PROMPT)
    assert terminal.ask("three") == "three"
    shown = terminal.type("four\r/stats\r", b"shown after")
    assert '"four"' in shown
    terminal.type("", PROMPT)


@pytest.mark.slow
def test_a_megabyte_comes_whole(terminal: Terminal) -> None:
    text = "some words of a text\r" * 50_000 + "end"
    expected = hashlib.sha256(text.replace("\r", "\n").encode()).hexdigest()
    assert terminal.ask(f"\x1b[200~{text}\x1b[201~") == expected
