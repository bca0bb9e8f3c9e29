"""Bodies of OpenAI's responses, with their bounds, and what they are to chat templates."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from rung.engine.openai_forms import join_texts
from rung.server.api import tools as functions
from rung.server.api.openai_fields import (
    MOST_MESSAGES,
    Effort,
    JsonObjectFormat,
    Share,
    StreamOptions,
    TextFormat,
    Tokens,
    reasoning_options,
    schema_grammar,
)
from rung.server.api.tools import CalledFunction, FunctionName, ToolCall
from rung.server.errors import ApiError
from rung.server.protocol import Generate, Grammar, Render

_Status = Literal["in_progress", "completed", "incomplete"]


class InputText(msgspec.Struct, tag_field="type", tag="input_text", forbid_unknown_fields=True):
    """Text of a message."""

    text: str


class OutputText(msgspec.Struct, tag_field="type", tag="output_text", forbid_unknown_fields=True):
    """Text of an answer that goes back."""

    text: str
    annotations: Annotated[list[Any], Meta(max_length=1024)] = []
    logprobs: Annotated[list[Any], Meta(max_length=2**20)] | None = None


class Refusal(msgspec.Struct, tag_field="type", tag="refusal", forbid_unknown_fields=True):
    """A refusal that goes back."""

    refusal: str


class ReasoningText(msgspec.Struct, tag_field="type", tag="reasoning_text", forbid_unknown_fields=True):
    """Reasoning of an answer that goes back."""

    text: str


class SummaryText(msgspec.Struct, tag_field="type", tag="summary_text", forbid_unknown_fields=True):
    """A summary of reasoning that goes back."""

    text: str


_Content = InputText | OutputText | Refusal | ReasoningText | SummaryText
_Contents = str | Annotated[list[_Content], Meta(max_length=1024)]

#: Fields that items of a type must have.
_NEEDS = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "reasoning": (),
}


class Item(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """An item of a conversation: a message, a call, its result, or reasoning; a message needs no ``type``. ``phase``
    and ``encrypted_content`` are there where a client sends an answer back."""

    type: Literal["message", "function_call", "function_call_output", "reasoning"] = "message"
    role: Literal["user", "assistant", "system", "developer"] | None = None
    content: _Contents | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: _Contents | None = None
    summary: Annotated[list[SummaryText], Meta(max_length=1024)] | None = None
    id: str | None = None
    status: _Status | None = None
    phase: str | None = None
    encrypted_content: str | None = None

    def check(self) -> None:
        """Raise ``ApiError`` where a field is missing."""
        for name in _NEEDS[self.type]:
            if getattr(self, name) is None:
                raise ApiError(400, f"input: a {self.type} needs {name}.", param="input", code="invalid_value")


def to_messages(items: Iterable[Item]) -> list[dict[str, Any]]:
    """Return items as the messages that chat templates read: reasoning, text and calls of an answer are one."""
    found: list[dict[str, Any]] = []
    for item in items:
        item.check()
        last = found[-1] if found and found[-1]["role"] == "assistant" else None
        if item.type == "function_call_output":
            found.append({"role": "tool", "content": _text(item.output), "tool_call_id": item.call_id})
        elif item.type == "reasoning":
            thought = _text(item.content) or _text(item.summary)
            found.append({"role": "assistant", "content": "", "reasoning_content": thought})
        elif item.type == "function_call":
            if last is None:
                last = {"role": "assistant", "content": ""}
                found.append(last)
            called = CalledFunction(item.name or "", item.arguments or "")
            last.setdefault("tool_calls", []).append(ToolCall(id=item.call_id or "", function=called).to_template())
        elif item.role == "assistant" and last is not None and not last["content"] and "tool_calls" not in last:
            last["content"] = _text(item.content, "\n")
        else:
            role = "system" if item.role == "developer" else item.role
            found.append({"role": role, "content": _text(item.content, "\n")})
    return found


def _text(content: str | Iterable[_Content] | None, between: str = "") -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return join_texts((part.refusal if isinstance(part, Refusal) else part.text for part in content), between)


class Tool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A function, the only kind of tool there is."""

    type: Literal["function"]
    name: FunctionName
    description: Annotated[str, Meta(max_length=2**16)] | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def to_function(self) -> functions.Tool:
        """Return it as chat completions write it."""
        function = functions.Function(name=self.name, description=self.description, parameters=self.parameters)
        return functions.Tool("function", function)


class NamedChoice(msgspec.Struct, forbid_unknown_fields=True):
    """The function that must be called."""

    type: Literal["function"]
    name: FunctionName


class SchemaFormat(msgspec.Struct, tag_field="type", tag="json_schema", forbid_unknown_fields=True, kw_only=True):
    """JSON of a schema. ``strict`` changes nothing: every schema is kept to."""

    schema: dict[str, Any]
    name: str | None = None
    description: str | None = None
    strict: bool | None = None


class TextConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The form of an answer."""

    format: TextFormat | JsonObjectFormat | SchemaFormat | None = None
    verbosity: Literal["medium"] | None = None


class Reasoning(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """How hard the model shall think. It is given whole, so ``summary`` changes nothing."""

    effort: Effort | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None


class InputTokensRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A body of ``/v1/responses/input_tokens``."""

    input: str | Annotated[list[Item], Meta(min_length=1, max_length=MOST_MESSAGES)]
    model: Annotated[str, Meta(max_length=512)] | None = None
    instructions: str | None = None
    previous_response_id: Annotated[str, Meta(max_length=128)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedChoice | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    truncation: Literal["disabled"] | None = None
    parallel_tool_calls: bool | None = None
    conversation: None = None

    @property
    def callable_tools(self) -> list[functions.Tool]:
        """Return the tools that the answer may call."""
        tools = [] if self.tool_choice == "none" else self.tools or []
        return [each.to_function() for each in tools]

    def messages(self, before: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the conversation without ``instructions``, ``before`` and what the body adds. Raises ``ApiError``."""
        added = [Item(role="user", content=self.input)] if isinstance(self.input, str) else self.input
        return [*before, *to_messages(added)]

    def with_instructions(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return messages with the instructions before them."""
        return messages if self.instructions is None else [{"role": "system", "content": self.instructions}, *messages]

    def to_render(self, messages: list[dict[str, Any]]) -> Render:
        """Return the question for the tokens of the prompt."""
        tools = [each.to_template() for each in self.callable_tools]
        return Render(messages=self.with_instructions(messages), tools=tools)


class ResponsesRequest(InputTokensRequest, kw_only=True):
    """A body of ``/v1/responses``. Those of the last group change nothing of an answer."""

    max_output_tokens: Tokens | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    min_p: Share | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    include: (
        Annotated[list[Literal["message.output_text.logprobs", "reasoning.encrypted_content"]], Meta(max_length=16)]
        | None
    ) = None
    stream: bool | None = None
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    background: Literal[False] | None = None
    prompt: None = None

    store: bool | None = None
    metadata: Annotated[dict[str, str], Meta(max_length=16)] | None = None
    stream_options: StreamOptions | None = None
    max_tool_calls: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    user: str | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None

    def to_generate(self, messages: list[dict[str, Any]]) -> Generate:
        """Return the request to an engine for a conversation. Raises ``ApiError``."""
        names = ("temperature", "top_p", "top_k", "min_p", "seed")
        options: dict[str, Any] = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.max_output_tokens is not None:
            options["max_tokens"] = self.max_output_tokens
        if "message.output_text.logprobs" in (self.include or ()) or self.top_logprobs:
            options |= {"logprobs": True, "top_logprobs": self.top_logprobs or 0}
        return Generate(
            messages=self.with_instructions(messages),
            options=options,
            grammar=self._grammar(),
            tools=[each.to_template() for each in self.callable_tools],
            times=bool(self.timings_per_token and self.stream),
            progress=bool(self.return_progress and self.stream),
            reasoning=reasoning_options(None if self.reasoning is None else self.reasoning.effort),
        )

    def _grammar(self) -> Grammar | None:
        """Return the form that the answer must have, if any. Raises ``ApiError``."""
        choice = self.tool_choice
        named = functions.named_choice(choice.name) if isinstance(choice, NamedChoice) else choice
        call = functions.call_grammar([each.to_function() for each in self.tools or ()], named)
        match None if self.text is None else self.text.format:
            case SchemaFormat(schema=schema):
                form = schema_grammar(schema)
            case JsonObjectFormat():
                form = schema_grammar({"type": "object"})
            case _:
                return call
        if call is not None:
            raise ApiError(400, "An answer is a call or of a form.", param="tool_choice", code="invalid_value")
        return form
