"""The chat on a terminal: turns with history, and commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rung.cli import interrupts
from rung.cli.chat.commands import ALONE, LEAVE, Chat, run_command
from rung.cli.chat.conversation import Conversation
from rung.cli.chat.lines import Turns
from rung.cli.options import GenerationOptions
from rung.cli.views.answer import early_end, is_simulated, show, summary
from rung.cli.views.output import note
from rung.core.errors import RungError
from rung.core.text import count

if TYPE_CHECKING:
    from rung.core.types import Device
    from rung.engine.model import Model


def loop(
    model: Model, devices: Sequence[Device], options: GenerationOptions, system: str | None, raw: bool, quiet: bool
) -> None:
    """Ask for turns until /bye or the end of input; Ctrl-C stops an answer and not the program."""
    talk = Conversation(model, options, system, raw)
    chat = Chat(talk, devices, note, lambda text: _turn(chat, text, quiet))
    if not quiet:
        kind = "Chat" if talk.chats else "This model has no chat template: it continues your text"
        note(f"{kind}. /help lists the commands, /bye leaves.")
    turns = Turns(ALONE)
    interrupts.keep_running()
    while True:
        try:
            text = _read(turns)
            if text is None or text.strip() in LEAVE:
                return
            _obey(chat, text, quiet)
        except KeyboardInterrupt:  # between a question and its answer
            continue


def _read(turns: Turns) -> str | None:
    """Return the next turn; empty after Ctrl-C, None at the end of input."""
    try:
        return turns.read()
    except EOFError:
        print()
        return None
    except KeyboardInterrupt:
        print("\n/bye or Ctrl-D leaves")
        return ""


def _obey(chat: Chat, text: str, quiet: bool) -> None:
    """Carry a command out, or ask the model; an error costs this turn and no other."""
    try:
        if not run_command(text.rstrip(), chat) and (text.strip() or chat.attached):
            _turn(chat, chat.with_attached(text), quiet)
    except RungError as error:
        note(str(error))
    except KeyboardInterrupt:  # before the answer began
        note("stopped")


def _turn(chat: Chat, text: str, quiet: bool) -> None:
    """Ask the model and print its answer. A turn without an answer leaves the conversation as it was."""
    talk, reply = chat.talk, ""
    try:
        answer = talk.say(text)
        _tell_of_room(chat)
        try:
            result = show(answer, silent=False)
        except KeyboardInterrupt:
            result = answer.stop()
        reply = result["text"]
    finally:
        if reply:
            talk.add_answer(reply)
        else:
            talk.drop_question()
    result["simulated"] = is_simulated(talk.model)
    if chat.statistics:
        chat.print(summary(result))
    elif not quiet and (end := early_end(result) or ("" if reply else "the model says nothing")):
        chat.print(f"({end})" if reply else f"({end}; the question is taken back)")


def _tell_of_room(chat: Chat) -> None:
    talk = chat.talk
    if talk.dropped:
        chat.print(f"the context is full: the oldest {talk.dropped} messages are forgotten")
    if talk.room < talk.answer_room:
        chat.print(f"there is room for an answer of {count(talk.room, 'token')}")
