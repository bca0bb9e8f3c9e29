"""Bodies of Anthropic's messages, with their bounds, and what they are to chat templates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from rung.server.api import tools as functions
from rung.server.api.openai_fields import (
    MOST_MESSAGES,
    MOST_TOKENS,
    Share,
    StopText,
    Tokens,
    ends_in_answer,
    join_texts,
    schema_grammar,
)
from rung.server.api.tools import FunctionName
from rung.server.errors import ApiError
from rung.server.protocol import Generate, Grammar, ReasoningOptions, Render

_Cache = dict[str, str] | None


class TextBlock(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """A block of text. ``cache_control`` changes nothing: prefixes are always kept."""

    text: str
    cache_control: _Cache = None
    citations: None = None


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking", forbid_unknown_fields=True):
    """Reasoning of the model; nothing here is signed."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use", forbid_unknown_fields=True):
    """A call in a conversation; a model may have written its ``input`` badly."""

    id: str
    name: str
    input: Any
    cache_control: _Cache = None


class ToolResultBlock(msgspec.Struct, tag_field="type", tag="tool_result", forbid_unknown_fields=True):
    """The result of a call."""

    tool_use_id: str
    content: str | Annotated[list[TextBlock], Meta(max_length=1024)] = ""
    is_error: bool | None = None
    cache_control: _Cache = None


Text = str | Annotated[list[TextBlock], Meta(max_length=1024)]
Content = str | Annotated[list[TextBlock | ThinkingBlock | ToolUseBlock | ToolResultBlock], Meta(max_length=1024)]


class Turn(msgspec.Struct, forbid_unknown_fields=True):
    """A message."""

    role: Literal["user", "assistant"]
    content: Content

    def to_template(self, names: dict[str, str]) -> Iterator[dict[str, Any]]:
        """Yield it as the messages that chat templates read: a message for each result, and one for the rest.
        ``names`` are those of functions by the id of a call, of the messages before."""
        if isinstance(self.content, str):
            yield {"role": self.role, "content": self.content}
            return
        texts, thought, calls = list[str](), "", list[dict[str, Any]]()
        for block in self.content:
            match block:
                case TextBlock():
                    texts.append(block.text)
                case ThinkingBlock():
                    thought += block.thinking
                case ToolUseBlock():
                    names[block.id] = block.name
                    function = {"name": block.name, "arguments": block.input}
                    calls.append({"id": block.id, "type": "function", "function": function})
                case ToolResultBlock():
                    found = {"role": "tool", "content": _text(block.content), "tool_call_id": block.tool_use_id}
                    yield found | ({"name": names[block.tool_use_id]} if block.tool_use_id in names else {})
        more: dict[str, Any] = {"tool_calls": calls} if calls else {}
        if thought:
            more["reasoning_content"] = thought
        text = join_texts(texts)
        if text or more or all(not isinstance(block, ToolResultBlock) for block in self.content):
            yield {"role": self.role, "content": text, **more}


class Tool(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A function of the client, the only kind of tool there is. ``strict`` changes nothing, as a call that is required
    is always valid, and neither does ``eager_input_streaming``."""

    name: FunctionName
    input_schema: dict[str, Any]
    description: Annotated[str, Meta(max_length=2**16)] | None = None
    type: Literal["custom"] | None = None
    strict: bool | None = None
    eager_input_streaming: bool | None = None
    cache_control: _Cache = None

    def to_function(self) -> functions.Tool:
        """Return it as OpenAI writes it."""
        function = functions.Function(name=self.name, description=self.description, parameters=self.input_schema)
        return functions.Tool("function", function)


class _AutoChoice(msgspec.Struct, tag_field="type", tag="auto", forbid_unknown_fields=True):
    disable_parallel_tool_use: bool | None = None


class _AnyChoice(msgspec.Struct, tag_field="type", tag="any", forbid_unknown_fields=True):
    disable_parallel_tool_use: bool | None = None


class _NoChoice(msgspec.Struct, tag_field="type", tag="none", forbid_unknown_fields=True):
    pass


class _ToolChoice(msgspec.Struct, tag_field="type", tag="tool", forbid_unknown_fields=True):
    name: FunctionName
    disable_parallel_tool_use: bool | None = None


Choice = _AutoChoice | _AnyChoice | _NoChoice | _ToolChoice


class _Enabled(msgspec.Struct, tag_field="type", tag="enabled", forbid_unknown_fields=True):
    budget_tokens: Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
    display: Literal["summarized"] | None = None


class _Adaptive(msgspec.Struct, tag_field="type", tag="adaptive", forbid_unknown_fields=True):
    display: Literal["summarized"] | None = None


class _Disabled(msgspec.Struct, tag_field="type", tag="disabled", forbid_unknown_fields=True):
    pass


class SchemaFormat(msgspec.Struct, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    """JSON of a schema."""

    schema: dict[str, Any]


class OutputConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """The form of an answer, and how hard the model shall think."""

    format: SchemaFormat | None = None
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None


class CountRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A body of ``/v1/messages/count_tokens``."""

    model: Annotated[str, Meta(max_length=512)]
    messages: Annotated[list[Turn], Meta(min_length=1, max_length=MOST_MESSAGES)]
    system: Text | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    tool_choice: Choice | None = None
    thinking: _Enabled | _Adaptive | _Disabled | None = None
    output_config: OutputConfig | None = None
    cache_control: _Cache = None

    @property
    def callable_tools(self) -> list[functions.Tool]:
        """Return the tools that the answer may call."""
        tools = [] if isinstance(self.tool_choice, _NoChoice) else self.tools or []
        return [each.to_function() for each in tools]

    def to_template(self) -> list[dict[str, Any]]:
        """Return the messages as chat templates read them."""
        found = [] if self.system is None else [{"role": "system", "content": _text(self.system)}]
        names: dict[str, str] = {}
        for each in self.messages:
            found += each.to_template(names)
        return found

    def to_render(self) -> Render:
        """Return the question for the tokens of the prompt."""
        messages, tools = self.to_template(), [each.to_template() for each in self.callable_tools]
        return Render(messages=messages, tools=tools, continues_last=ends_in_answer(messages))

    def reasoning(self) -> ReasoningOptions:
        """Return how the model thinks; ``adaptive`` is the template's own way."""
        effort = None if self.output_config is None else self.output_config.effort
        match self.thinking:
            case _Enabled(budget_tokens=budget):
                return ReasoningOptions(enabled=True, budget=budget, effort=effort)
            case _Disabled():
                return ReasoningOptions(enabled=False)
        return ReasoningOptions(effort=effort)


class MessagesRequest(CountRequest, kw_only=True):
    """A body of ``/v1/messages``. ``metadata`` and ``service_tier`` change nothing of an answer."""

    max_tokens: Tokens
    stop_sequences: Annotated[list[StopText], Meta(max_length=64)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    stream: bool | None = None
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None

    def to_generate(self) -> Generate:
        """Return the request to an engine. Raises ``ApiError``."""
        names = ("max_tokens", "temperature", "top_p", "top_k")
        options = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.stop_sequences:
            options["stop"] = self.stop_sequences
        messages = self.to_template()
        return Generate(
            messages=messages,
            continues_last=ends_in_answer(messages),
            options=options,
            grammar=self._grammar(),
            tools=[each.to_template() for each in self.callable_tools],
            reasoning=self.reasoning(),
        )

    def _grammar(self) -> Grammar | None:
        """Return the form that the answer must have, if any. Raises ``ApiError``."""
        tools = [each.to_function() for each in self.tools or ()]
        call = functions.call_grammar(tools, self._choice())
        form = None if self.output_config is None else self.output_config.format
        if form is None:
            return call
        if call is not None:
            raise ApiError(400, "An answer is a call or of a form.", param="tool_choice", code="invalid_value")
        return schema_grammar(form.schema)

    def _choice(self) -> functions.Choice | None:
        """Return the choice of tools in OpenAI's words."""
        match self.tool_choice:
            case _AnyChoice():
                return "required"
            case _ToolChoice(name=name):
                return functions.named_choice(name)
            case _NoChoice():
                return "none"
        return None if self.tool_choice is None else "auto"


def _text(content: Text) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)
