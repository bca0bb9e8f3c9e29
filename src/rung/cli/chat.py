"""The chat on a terminal: turns with history, and a few commands."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rung.cli.common import plan_line
from rung.cli.views.output import console

if TYPE_CHECKING:
    from rung.core.types import Device
    from rung.engine.model import Generation, Model

_HELP = """/help   this list
/clear  forget what was said
/plan   where and how the model runs
/bye    leave (also Ctrl-D)
Ctrl-C  stops an answer"""


def loop(
    model: Model, devices: Sequence[Device], options: dict[str, Any], system: str | None, raw: bool, quiet: bool
) -> None:
    """Asks for turns until /bye or the end of input; Ctrl-C stops an answer and not the program."""
    talk = Conversation(model, options, system, raw)
    out = console(stderr=True)
    if not quiet:
        kind = "Chat" if talk.chats else "This model has no chat template: it continues your text"
        out.print(f"{kind}. /help lists the commands, /bye leaves.")
    _history()
    while True:
        try:
            text = input(">>> ")
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            print("\n/bye or Ctrl-D leaves")
            continue
        if text.strip() == "/bye":
            return
        if not _command(text.strip(), talk, devices, out) and text.strip():
            _turn(talk, text, quiet, out)


def _history() -> None:
    """Line editing and arrow keys, where this Python has them."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  importing it is what turns it on


def _command(text: str, talk: Conversation, devices: Sequence[Device], out: Any) -> bool:
    if not text.startswith("/"):
        return False
    if text == "/help":
        out.print(_HELP)
    elif text == "/clear":
        talk.clear()
        out.print("forgotten")
    elif text == "/plan":
        out.print(plan_line(talk.model.plan, devices))
    else:
        out.print(f"there is no command {text}; /help lists them")
    return True


def _turn(talk: Conversation, text: str, quiet: bool, out: Any) -> None:
    from rung.cli.commands.run.run import is_simulated, show, summary
    from rung.core.errors import RungError

    try:
        answer = talk.say(text)
        if talk.dropped:
            out.print(f"the context is full: the oldest {talk.dropped} messages are forgotten")
        try:
            result = show(answer, silent=False)
        except KeyboardInterrupt:
            result = answer.stop()
        talk.heard(result["text"])
        result["simulated"] = is_simulated(talk.model)
        if not quiet:
            out.print(summary(result))
    except RungError as error:
        talk.take_back()
        print(error, file=sys.stderr)


class Conversation:
    """The turns so far. Without a chat template the text of all turns is continued instead."""

    def __init__(self, model: Model, options: dict[str, Any], system: str | None, raw: bool) -> None:
        self.model = model
        self.chats = model.card.chat_template is not None and not raw
        self.dropped = 0
        self._options = options
        self._system = system
        self._messages: list[dict[str, str]] = []

    def clear(self) -> None:
        """Forgets all turns."""
        self._messages.clear()

    def say(self, text: str) -> Generation:
        """The answer to a turn; when the context is full the oldest turns go first, counted in ``dropped``."""
        turns = [*self._messages, {"role": "user", "content": text}]
        while len(turns) > 1 and not self.model.fits(self._prompt(turns)):
            del turns[:2]
        prompt = self._prompt(turns)
        if isinstance(prompt, str):
            answer = self.model.generate(prompt, raw=True, **self._options)
        else:
            answer = self.model.chat(prompt, **self._options)
        self.dropped = len(self._messages) + 1 - len(turns)
        self._messages = turns  # not before: a turn that is too long by itself costs no other
        return answer

    def heard(self, text: str) -> None:
        """Keeps what the model answered."""
        self._messages.append({"role": "assistant", "content": text})

    def take_back(self) -> None:
        """Forgets the last turn, which got no answer: the next one would be the second of two in a row."""
        if self._messages and self._messages[-1]["role"] == "user":
            self._messages.pop()

    def _prompt(self, turns: list[dict[str, str]]) -> str | list[dict[str, str]]:
        if not self.chats:
            return (self._system or "") + "".join(turn["content"] for turn in turns)
        first = [{"role": "system", "content": self._system}] if self._system else []
        return [*first, *turns]
