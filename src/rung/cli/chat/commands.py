"""The commands of a chat: what begins with a slash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rung.cli.chat.conversation import Conversation, path_of, read_text, saved_names
from rung.cli.chat.options import option_lines, sampling_options, set_option
from rung.cli.common import plan_line
from rung.core.errors import UsageError
from rung.core.text import close, count
from rung.engine.sampling import Sampling

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rung.core.types import Device


@dataclass
class Chat:
    """A chat on a terminal: the conversation, what was attached to the next turn, and what is printed beside answers.

    ``print`` shows a line beside the answers; ``send`` asks the model.
    """

    talk: Conversation
    devices: Sequence[Device]
    print: Callable[[str], None]
    send: Callable[[str], None]
    statistics: bool = False
    attached: list[str] = field(default_factory=list)

    def with_attached(self, text: str) -> str:
        """Return a turn with the files that were added to it, each below a blank line."""
        whole = "\n\n".join([*filter(str.strip, [text]), *self.attached])
        self.attached.clear()
        return whole


def run_command(text: str, chat: Chat) -> bool:
    """Carry a command out, if the text is one. Raises what the command raises."""
    if not text.startswith("/"):
        return False
    name, _, argument = text.partition(" ")
    command = _COMMANDS.get(_OTHER_NAMES.get(name, name))
    if command is None and "\n" in text:
        return False  # a pasted text that begins with a path
    if command is None:
        if name.lower() in LEAVE:
            raise UsageError(f"{name} takes nothing behind it.", (), [f"{name.lower()}   # leaves the chat"])
        near = close(name, (*_COMMANDS, *LEAVE), most=2)
        raise UsageError(
            f"There is no command {name}.",
            ["a line that begins with / is a command of the chat"],
            [*near, "/help   # lists them", f"a blank before it sends it as text:  {text.split(chr(10))[0][:60]}"],
            code="name-unknown",
        )
    argument = argument.strip()
    if argument and not command.takes_argument:
        raise UsageError(f"{name} takes nothing behind it.", (), [f"{name}   # {command.help}"])
    command.carry_out(chat, argument)
    return True


def _help(chat: Chat, argument: str) -> None:
    width = max(len(command.usage) for command in _COMMANDS.values())
    for command in _COMMANDS.values():
        chat.print(f"{command.usage:<{width}}  {command.help}")
    chat.print(f"{'/bye':<{width}}  leave (also Ctrl-D)")
    chat.print(f"{'Ctrl-C':<{width}}  stop the answer")
    chat.print(f"{chr(34) * 3:<{width}}  begin and end a text of several lines; a pasted text is one turn as it is")


def _system(chat: Chat, argument: str) -> None:
    if argument:
        chat.talk.system = argument
        chat.print("The model reads this first from the next turn on.")
    else:
        chat.print(chat.talk.system or "There is no system text. /system TEXT sets it.")


def _set(chat: Chat, argument: str) -> None:
    if argument:
        chat.talk.options, changed = set_option(chat.talk.options, argument)
    for line in option_lines(chat.talk.options, chat.talk.model.card.defaults):
        if not argument or line.split()[0] == changed:
            chat.print(line)


def _save(chat: Chat, argument: str) -> None:
    name = _needs(argument, "/save needs a name for the conversation.", "/save holiday")
    there = path_of(name).exists()
    path = chat.talk.save(name)
    chat.print(f"{count(len(chat.talk.messages), 'message')} {'replaced' if there else 'saved in'} {path}")


def _load(chat: Chat, argument: str) -> None:
    if not argument:
        names = saved_names()
        if names:
            chat.print(f"Saved are: {', '.join(names)}. /load {names[0]} goes on with that one.")
        else:
            chat.print("No conversation is saved yet. /save NAME saves this one.")
        return
    model = chat.talk.load(argument)
    other = f", held with {model}" if model != chat.talk.model.card.name else ""
    chat.print(f"{count(len(chat.talk.messages), 'message')} loaded{other}")
    for message in chat.talk.messages[-2:]:
        chat.print(f"{'>>> ' if message['role'] == 'user' else ''}{message['content']}")


def _retry(chat: Chat, argument: str) -> None:
    question = chat.talk.take_last_question()
    if question is None:
        raise UsageError(
            "There is no question yet, so /retry has none to ask.", (), ["type a question first"], code="input-empty"
        )
    if not Sampling.of(chat.talk.model.card.defaults, **sampling_options(chat.talk.options)).temperature:
        chat.print("At temperature 0 the answer is the same each time; /set temperature 0.7 makes it another.")
    chat.send(question)


def _file(chat: Chat, argument: str) -> None:
    text = read_text(_needs(argument, "/file needs the path of a text file.", "/file notes.txt").strip("'\""))
    chat.attached.append(text)
    chat.print(f"{count(len(text), 'character')} go with your next turn; /clear takes them away")


def _statistics(chat: Chat, argument: str) -> None:
    chat.statistics = not chat.statistics
    chat.print(f"tokens and speed are {'shown' if chat.statistics else 'not shown'} after each answer")


def _plan(chat: Chat, argument: str) -> None:
    chat.print(plan_line(chat.talk.model.plan, chat.devices))


def _clear(chat: Chat, argument: str) -> None:
    chat.talk.clear()
    chat.attached.clear()
    chat.print("forgotten")


def _needs(argument: str, cause: str, example: str) -> str:
    if not argument:
        raise UsageError(cause, (), [example], code="input-empty")
    return argument


@dataclass(frozen=True)
class _Command:
    usage: str
    help: str
    carry_out: Callable[[Chat, str], None]

    @property
    def takes_argument(self) -> bool:
        """Return whether something may stand behind it."""
        return " " in self.usage


_COMMANDS = {
    command.usage.partition(" ")[0]: command
    for command in (
        _Command("/help", "list the commands", _help),
        _Command("/system TEXT", "set what the model reads before the conversation; alone: show it", _system),
        _Command("/set OPTION VALUE", "set temperature, top_p, max_tokens, seed ...; alone: show all of them", _set),
        _Command("/retry", "ask the last question again", _retry),
        _Command("/file PATH", "add the text of a file to your next turn", _file),
        _Command("/save NAME", "save the conversation, as JSON", _save),
        _Command("/load NAME", "go on with a saved conversation; alone: list them", _load),
        _Command("/clear", "forget what was said", _clear),
        _Command("/stats", "show tokens and speed after each answer, or stop it", _statistics),
        _Command("/plan", "show where and how the model runs", _plan),
    )
}
_OTHER_NAMES = {"/?": "/help"}
#: Turns that end the chat.
LEAVE = ("/bye", "/exit", "/quit")
#: Lines that are commands without an argument.
ALONE = (*_COMMANDS, *_OTHER_NAMES, *LEAVE)
