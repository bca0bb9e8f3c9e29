"""The turns of a chat, and the files they are saved in."""

from __future__ import annotations

import contextlib
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rung.cli.chat.options import check_options
from rung.cli.input.text import decode, kind_of, text_of
from rung.cli.options import GenerationOptions
from rung.core.errors import BadFile, ModelNotFound, UsageError
from rung.core.files import FULL
from rung.core.settings import CACHE
from rung.core.text import close, quoted, size
from rung.models.files.jsonfile import read_object

if TYPE_CHECKING:
    from rung.engine.generation import Generation
    from rung.engine.model import Model

#: Bytes of a saved conversation, and of a file that goes with a turn: more than the context of any model.
MOST_BYTES = 8 * 2**20
_NAME = re.compile(r"[\w-][\w.-]*")
_ROLES = ("user", "assistant")


class Conversation:
    """The turns so far. Without a chat template the text of all turns is continued instead.

    ``options`` are those of ``Model.chat``; ``dropped`` counts the messages that the last turn had no room for, and
    ``room`` the tokens that it left for the answer.
    """

    def __init__(self, model: Model, options: GenerationOptions, system: str | None, raw: bool) -> None:
        self.model = model
        self.chats = model.card.chat_template is not None and not raw
        self.options = options
        self.system = system
        self.dropped, self.room = 0, 0
        self.messages: list[dict[str, str]] = []

    def clear(self) -> None:
        """Forget all turns."""
        self.messages.clear()

    def say(self, text: str) -> Generation:
        """Return the answer to a turn. The oldest turns go where the context holds them and an answer no longer."""
        turns = [*self.messages, {"role": "user", "content": text}]
        self.room = self.model.room_after(self._prompt(turns))
        while len(turns) > 1 and self.room < self.answer_room:
            del turns[:2]
            self.room = self.model.room_after(self._prompt(turns))
        prompt = self._prompt(turns)
        if isinstance(prompt, str):
            answer = self.model.generate(prompt, raw=True, **self.options.keywords())
        else:
            answer = self.model.chat(prompt, **self.options.keywords())
        self.dropped = len(self.messages) + 1 - len(turns)
        self.messages = turns  # not before: a turn that is too long by itself costs no other
        return answer

    @property
    def answer_room(self) -> int:
        """The tokens that are kept for an answer: as many as it may have, a quarter of the context by default."""
        context = self.model.plan.context
        most = self.options.max_tokens
        return max(min(context // 4 if most is None else most, context // 2), 1)

    def add_answer(self, text: str) -> None:
        """Keep what the model answered."""
        self.messages.append({"role": "assistant", "content": text})

    def drop_question(self) -> None:
        """Forget the last turn, which got no answer: the next one would be the second of two in a row."""
        if self.messages and self.messages[-1]["role"] == "user":
            self.messages.pop()

    def take_last_question(self) -> str | None:
        """Remove the last question with its answer and return it; None where there is none."""
        while self.messages:
            message = self.messages.pop()
            if message["role"] == "user":
                return message["content"]
        return None

    def _prompt(self, turns: list[dict[str, str]]) -> str | list[dict[str, str]]:
        if not self.chats:
            return (self.system or "") + "".join(turn["content"] for turn in turns)
        first = [{"role": "system", "content": self.system}] if self.system else []
        return [*first, *turns]

    def save(self, name: str) -> Path:
        """Write the conversation where ``path_of`` says, readable by this user only. Raises ``UsageError``."""
        path = path_of(name)
        saved = {
            "model": self.model.card.name,
            "system": self.system,
            "options": self.options.keywords(),
            "messages": self.messages,
        }
        data = (json.dumps(saved, indent=1, ensure_ascii=True) + "\n").encode()
        partial = path.with_name(f".{path.name}-{os.getpid()}")
        try:
            if path.parent == _folder():
                path.parent.mkdir(parents=True, exist_ok=True)
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(data)
            partial.replace(path)
        except OSError as error:
            with contextlib.suppress(OSError):
                partial.unlink()
            reason = "the disk is full" if error.errno in FULL else error.strerror
            raise UsageError(
                f"{path} cannot be written: {reason}.", (), ["/save OTHER_FOLDER/NAME.json"], code="output-unwritable"
            ) from error
        return path

    def load(self, name: str) -> str:
        """Take the conversation of a file in place of this one; return the name of the model that it was held with.

        Raises ``ModelNotFound`` and ``BadFile``, and changes nothing then.
        """
        path = path_of(name)
        if not path.is_file():
            names = saved_names()
            near = close(name, names) or names[:1]
            ways = [f"/load {each}" for each in near] or ["/save NAME   # saves this one"]
            saved_are = ", ".join(names) or "none"
            raise ModelNotFound(f"There is no saved conversation {name!r}.", [f"saved are: {saved_are}"], ways)
        saved = read_object(path, MOST_BYTES, ["/save NAME"])
        messages, system, options = saved.get("messages"), saved.get("system"), saved.get("options", {})
        if not isinstance(messages, list) or not _is_talk(messages):
            raise _bad(path, "it has no list of messages whose roles are user and assistant in turn")
        if not isinstance(system, str | None) or not isinstance(options, dict):
            raise _bad(path, "its system text is no text, or its options are no object")
        self.options = replace(self.options, **check_options(options).keywords())
        self.messages, self.system = [{"role": m["role"], "content": m["content"]} for m in messages], system
        return str(saved.get("model", ""))


def path_of(name: str) -> Path:
    """Return where a conversation of that name lies: in the cache folder, or the path that it is.

    Raises ``UsageError`` for a name that is neither.
    """
    if "/" in name or "\\" in name or name.endswith(".json"):
        return Path(name).expanduser()
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is no name of a conversation.",
            ["a name has letters, digits, - _ and points; anything else is a path"],
            ["/save holiday", "/save ./holiday.json"],
        )
    return _folder() / f"{name}.json"


def saved_names() -> list[str]:
    """Return the names of the conversations in the cache folder."""
    folder = _folder()
    return sorted(path.stem for path in folder.glob("[!.]*.json")) if folder.is_dir() else []


def read_text(name: str) -> str:
    """Return the text of a file. Raises ``UsageError`` where there is none, and for what is no text."""
    path = Path(name).expanduser()
    ways = ["/file PATH"]
    try:
        with open(path, "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.", (), ways, code="file-unreadable") from error
    if len(data) > MOST_BYTES:
        raise UsageError(f"{path} is larger than {size(MOST_BYTES)}, which no context holds.", (), ways)
    if (kind := kind_of(data)) is not None:
        getting = text_of(kind)
        first = [f"in another terminal:  {getting} > FILE.txt"] if getting else []
        raise UsageError(
            f"{path} is {kind}; a model reads text.", (), [*first, "/file FILE.txt"], code="input-not-text"
        )
    return decode(data)


def _folder() -> Path:
    folder: Path = CACHE.read()
    return folder / "chats"


def _is_talk(messages: list[Any]) -> bool:
    for index, message in enumerate(messages):
        if not isinstance(message, dict) or message.get("role") != _ROLES[index % 2]:
            return False
        if not isinstance(message.get("content"), str):
            return False
    return len(messages) % 2 == 0


def _bad(path: Path, reason: str) -> BadFile:
    return BadFile(f"{path} is no saved conversation.", [reason], [f"rm {quoted(path)}", "/save NAME"])
