"""Chat templates: messages to the text that a model was trained to answer.

Templates come with models from anywhere, so they run in jinja2's immutable sandbox in a child process
(``child.py``) with 2 s, a limit on what they write and one on memory; a template that does not hold to them
costs a ``TemplateError``.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from rung.core.errors import TemplateError
from rung.core.text import size
from rung.run.script_process import ScriptProcess

SECONDS = 2.0
CHARACTERS = 16 * 2**20
_MOST_SOURCE = 2**20
_SCRIPT = Path(__file__).with_name("child.py")
_MARK = "system text 5d1f"
#: Marks around what models think before they answer, as DeepSeek and Qwen write them and most others since.
REASONING_OPEN, REASONING_CLOSE = "<think>", "</think>"

Message = Mapping[str, Any]


class Template:
    """A chat template.

    ``named`` has the texts of ``bos_token``, ``eos_token`` ... that templates use. The child process starts at
    once, beside whatever the caller does next, and ends with this object.
    """

    def __init__(self, source: str, named: Mapping[str, str] | None = None, seconds: float = SECONDS) -> None:
        if len(source) > _MOST_SOURCE:
            raise _failed(f"it is {size(len(source))} long, which no template needs")
        self._source = source
        self._named = dict(named or {})
        self._seconds = seconds
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._child: ScriptProcess | None = ScriptProcess(_SCRIPT)

    def render(
        self,
        messages: Sequence[Message],
        *,
        answer: bool = True,
        tools: Sequence[Message] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The text of ``messages`` (``{"role", "content"}``), with the beginning of an answer if ``answer``.

        Where the template has no system role, the system text goes in front of the first user turn. ``tools`` are
        functions (``{"type", "function"}``) that an answer may call; a template that knows none gets them described in
        the system message, calls as what assistants said, and results as what users said. ``kwargs`` are further
        variables, such as ``enable_thinking``.
        Raises ``TemplateError`` when the template fails, takes too long or writes too much.
        """
        messages = list(messages)
        if (tools or any(_of_tool(message) for message in messages)) and not self.has_tools:
            messages, tools = _with_tools(messages, tools), ()
        if any(message.get("role") == "system" for message in messages) and not self.has_system_role:
            messages = _without_system(messages)
        text, error = self._ask(messages, answer, tools, kwargs)
        if error:
            raise _failed(error)
        return text

    @cached_property
    def has_system_role(self) -> bool:
        """Return whether a system message gets through the template: some refuse it, some leave it out."""
        probe = [{"role": "system", "content": _MARK}, {"role": "user", "content": "hello"}]
        return _MARK in self._ask(probe, True)[0]

    @cached_property
    def has_tools(self) -> bool:
        """Return whether tools get through the template: many leave them out."""
        function = {"name": "probe", "description": _MARK, "parameters": {"type": "object", "properties": {}}}
        probe = [{"role": "user", "content": "hello"}]
        return _MARK in self._ask(probe, True, [{"type": "function", "function": function}])[0]

    @property
    def has_reasoning(self) -> bool:
        """Return whether its model thinks, between marks, before it answers."""
        return has_reasoning(self._source)

    def close(self) -> None:
        """Ends the child process; the next ``render`` starts another."""
        with self._lock:
            if self._child is not None:
                self._child.end()
                self._child = None

    def _ask(
        self,
        messages: Sequence[Message],
        answer: bool,
        tools: Sequence[Message] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> tuple[str, str]:
        """The text and an empty error, or an empty text and the error."""
        variables = {
            **(kwargs or {}),
            **self._named,
            "messages": [_with_reasoning(message) for message in messages],
            "tools": list(tools) or None,
            "documents": None,
            "add_generation_prompt": answer,
        }
        limits = {"seconds": self._seconds, "characters": CHARACTERS}
        if self._process != os.getpid():  # a fork: the child process is its parent's, whom it answers
            self._start()
        with self._lock:
            # nobody else's from here: after an interrupt its answer, which may still come, is to no later question
            child, self._child = self._child or ScriptProcess(_SCRIPT), None
            try:
                found = child.ask({"source": self._source, "variables": variables, **limits}, self._seconds)
            except BaseException:
                child.end()
                raise
            if found is None:
                child.end()
                return "", f"it did not end within {self._seconds:g} s, or broke the process that rendered it"
            self._child = child
        return str(found.get("text", "")), str(found.get("error", ""))


def has_reasoning(source: str) -> bool:
    """Return whether the model of a template thinks, between marks, before it answers."""
    return REASONING_OPEN in source or REASONING_CLOSE in source


def _failed(why: str) -> TemplateError:
    return TemplateError(
        "The model's chat template failed.", [why], ["rung run MODEL --raw PROMPT   # without a template"]
    )


def _with_reasoning(message: Message) -> dict[str, Any]:
    # Names under which templates look for what an assistant thought, as transformers gives them.
    names = ("reasoning_content", "thinking", "reasoning")
    thought = next((message[name] for name in names if message.get(name) is not None), None)
    return dict(message) if thought is None else {"thinking": thought, **message, "reasoning_content": thought}


def _of_tool(message: Message) -> bool:
    return message.get("role") == "tool" or bool(message.get("tool_calls"))


def _with_tools(messages: Sequence[Message], tools: Sequence[Message]) -> list[Message]:
    """Return messages in which tools, calls and results are text."""
    found: list[Message] = []
    for message in messages:
        if message.get("role") == "tool":
            found.append({"role": "user", "content": f"Result of the function: {message['content']}"})
        elif message.get("tool_calls"):
            calls = "\n".join(json.dumps(call["function"], ensure_ascii=False) for call in message["tool_calls"])
            found.append({"role": "assistant", "content": f"{message.get('content') or ''}{calls}"})
        else:
            found.append(message)
    if not tools:
        return found
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    words = (
        f"You may call these functions:\n{listed}\n"
        'To call one, answer with nothing but {"name": its name, "arguments": an object of its parameters}.'
    )
    if found and found[0].get("role") == "system":
        return [{**found[0], "content": f"{found[0]['content']}\n\n{words}"}, *found[1:]]
    return [{"role": "system", "content": words}, *found]


def _without_system(messages: Sequence[Message]) -> list[Message]:
    system = "\n\n".join(str(message["content"]) for message in messages if message.get("role") == "system")
    turns = [dict(message) for message in messages if message.get("role") != "system"]
    for turn in turns:
        if turn.get("role") == "user":
            turn["content"] = f"{system}\n\n{turn['content']}"
            return list(turns)
    return [{"role": "user", "content": system}, *turns]
