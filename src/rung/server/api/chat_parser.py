"""Parse what an answer says: what the model thinks first, text, and calls of functions.

The text comes in pieces of any length, and each part is given out as soon as it is known what it is.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from rung.engine.chat import REASONING_CLOSE, REASONING_OPEN
from rung.server.api.tools import Tool, new_call_id
from rung.server.service import Answers

#: Marks around a call, as most models that know tools write it.
_CALL_OPEN, _CALL_CLOSE = "<tool_call>", "</tool_call>"
#: Digits of an integer from which on a float is as good.
_LONG_INTEGER = 19
_BLANKS = re.compile(r"\s*$")


@dataclass(frozen=True)
class Reasoning:
    """A piece of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True)
class Text:
    """A piece of the answer."""

    text: str


@dataclass(frozen=True)
class FunctionCall:
    """A call, whole; ``arguments`` are an object of JSON."""

    id: str
    name: str
    arguments: str

    def decoded(self) -> Any:
        """Return the arguments as an object."""
        return msgspec.json.decode(self.arguments)


Part = Reasoning | Text | FunctionCall


class ChatParser:
    """Parse one answer. ``tools`` are those that it may call; ``reasons``: what stands between the marks of reasoning
    is no text; ``is_reasoning``: the prompt ends within them."""

    def __init__(self, tools: Sequence[Tool] = (), *, reasons: bool = False, is_reasoning: bool = False) -> None:
        self._names = {tool.function.name for tool in tools}
        self._reasons, self._thought, self._calls, self._rest = reasons, False, 0, ""
        self._state, self._unmarked, self._shown = ("reasoning" if is_reasoning else "begin"), False, False

    @property
    def is_plain(self) -> bool:
        """Return whether all text that comes from now on is text of the answer."""
        return self._state == "text" and not self._names and not self._rest

    def push(self, text: str) -> list[Part]:
        """Return the parts that are known once the answer is longer by ``text``."""
        self._rest += text
        return list(self._parse(ended=False))

    def finish(self) -> list[Part]:
        """Return the parts that are known now that the answer has ended."""
        return list(self._parse(ended=True))

    def _parse(self, ended: bool) -> Iterator[Part]:
        """Yield parts state by state, until one needs more text."""
        steps = {"begin": self._begin, "reasoning": self._reason, "text": self._text, "call": self._call}
        before = None
        while self._state != before:
            before = self._state
            yield from steps[before](ended)

    def _begin(self, ended: bool) -> Iterator[Part]:
        """Find out what the answer begins with: reasoning, a call, or text."""
        begun = self._rest.lstrip()
        if self._thought:
            self._rest = begun
        if self._reasons and begun.startswith(REASONING_OPEN):
            self._rest, self._state = begun[len(REASONING_OPEN) :], "reasoning"
        elif self._names and begun.startswith(("{", _CALL_OPEN)):
            self._rest, self._state = begun.removeprefix(_CALL_OPEN), "call"
            self._unmarked = begun.startswith("{")
        elif not self._may_begin(begun) or ended:
            self._state = "text"
        yield from ()

    def _may_begin(self, begun: str) -> bool:
        """Return whether what begins so may become reasoning or a call."""
        marks = [REASONING_OPEN] * self._reasons + [_CALL_OPEN] * bool(self._names)
        return any(mark.startswith(begun) for mark in marks)

    def _reason(self, ended: bool) -> Iterator[Part]:
        if not self._shown:
            self._rest = self._rest.lstrip()
        thought, found, rest = self._rest.partition(REASONING_CLOSE)
        if found:
            self._rest, self._state, self._reasons, self._thought = rest, "begin", False, True
            thought = thought.rstrip()
        elif not ended:
            thought, self._rest = _before_mark(self._rest, REASONING_CLOSE)
        else:
            self._rest = ""
        if thought:
            self._shown = True
            yield Reasoning(thought)

    def _text(self, ended: bool) -> Iterator[Part]:
        if not self._names:
            yield from self._flush()
            return
        text, found, rest = self._rest.partition(_CALL_OPEN)
        if found:
            text, self._rest, self._state, self._unmarked = text.rstrip(), rest, "call", False
        elif not ended:
            text, self._rest = _before_mark(self._rest, _CALL_OPEN)
        else:
            text, self._rest = text.rstrip() if self._calls else text, ""
        if text:
            yield Text(text)

    def _call(self, ended: bool) -> Iterator[Part]:
        """Read a call to its end; one that is none is text."""
        written, found, rest = self._rest, "", ""
        if not self._unmarked:
            written, found, rest = self._rest.partition(_CALL_CLOSE)
        if not (found or ended):
            return
        self._rest, self._state = rest, "text"
        if (call := self._read(written)) is not None:
            self._calls += 1
            yield call
        else:
            yield Text(written if self._unmarked else f"{_CALL_OPEN}{written}{found}")

    def _read(self, written: str) -> FunctionCall | None:
        """Return the call that a text is, or None."""
        try:
            found = _decoded(written)
        except (RecursionError, ValueError):
            return None
        if not isinstance(found, dict) or found.get("name") not in self._names:
            return None
        arguments = found.get("arguments", found.get("parameters"))
        if not isinstance(arguments, dict):
            return None
        return FunctionCall(new_call_id(), found["name"], msgspec.json.encode(arguments).decode())

    def _flush(self) -> Iterator[Part]:
        text, self._rest = self._rest, ""
        if text:
            yield Text(text)


def _before_mark(text: str, mark: str) -> tuple[str, str]:
    """Return the text before what may be the beginning of a mark with blanks before it, and that."""
    for length in range(min(len(mark) - 1, len(text)), -1, -1):
        if text.endswith(mark[:length]):
            end = len(text) - length
            break
    blanks = _BLANKS.search(text[:end])
    assert blanks is not None
    return text[: blanks.start()], text[blanks.start() :]


def parser_of(answers: Answers, tools: Sequence[Tool]) -> ChatParser:
    """Return the parser of an answer that has begun. One by a grammar is parsed as it is and begins with no
    reasoning."""
    reasons = answers.reasons and answers.request.grammar is None
    return ChatParser(tools, reasons=reasons, is_reasoning=reasons and answers.is_reasoning)


def parse(parser: ChatParser, text: str) -> list[Part]:
    """Return the parts of an answer that is whole, neighbors of a kind as one."""
    found: list[Part] = []
    for part in (*parser.push(text), *parser.finish()):
        match found[-1:], part:
            case [Text(before)], Text(more):
                found[-1] = Text(before + more)
            case [Reasoning(before)], Reasoning(more):
                found[-1] = Reasoning(before + more)
            case _:
                found.append(part)
    return found


def _decoded(written: str) -> Any:
    """Return the value of a text of JSON; a number beyond all floats is the largest. Raises ``ValueError``."""
    try:
        return msgspec.json.decode(written)
    except msgspec.DecodeError as error:
        if not str(error).startswith("Number out of range"):
            raise ValueError(str(error)) from None
        number = _within_floats
        found = json.loads(written, parse_int=number, parse_float=number, parse_constant=number)
        return msgspec.json.decode(msgspec.json.encode(found))  # halves of characters are refused here, too


def _within_floats(written: str) -> float:
    if not written.strip("-")[:1].isdecimal():
        raise ValueError(f"{written} is no number of JSON")
    if written.strip("-").isdecimal() and len(written) < _LONG_INTEGER:
        return int(written)
    return max(-sys.float_info.max, min(float(written), sys.float_info.max))
