"""Anthropic's messages, streamed as its events or whole, and the count of a prompt's tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response

from rung.engine.openai_forms import join_texts
from rung.server.api import tools as functions
from rung.server.api.chat_parser import FunctionCall, Part, Reasoning, Text, parse, parser_of
from rung.server.api.openai_fields import (
    MOST_MESSAGES,
    MOST_TOKENS,
    Share,
    StopText,
    Tokens,
    ends_in_answer,
    new_id,
    schema_grammar,
)
from rung.server.api.tools import FunctionName
from rung.server.errors import ApiError, anthropic_error
from rung.server.http import Stream, comment, event, json_response
from rung.server.protocol import Delta, Finished, Generate, Grammar, ReasoningOptions, Render
from rung.server.service import Answers, Call, post

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


TextContent = str | Annotated[list[TextBlock], Meta(max_length=1024)]
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
    system: TextContent | None = None
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


def _text(content: TextContent) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)


#: Anthropic's words for why an answer ended.
_REASONS = {"end": "end_turn", "stop": "stop_sequence", "length": "max_tokens", "context": "max_tokens"}


async def messages(call: Call, body: MessagesRequest) -> Response:
    """Answer messages."""
    generate = body.to_generate()
    answers = await call.begin(body.model, generate, streams=bool(body.stream))
    head = {"id": new_id("msg"), "type": "message", "role": "assistant", "model": answers.model}
    if body.stream:
        return Stream(_events(answers, head, body.callable_tools), ping=_ping, on_close=answers.close)
    (choice,) = await call.collect(answers)
    parts = parse(parser_of(answers, body.callable_tools), choice.text)
    ending = _ending(choice.end, any(isinstance(part, FunctionCall) for part in parts))
    cost = {"usage": _usage(choice.end), "rung": answers.rung([choice.end])}
    return json_response({**head, "content": _content(parts), **ending, **cost})


def _content(parts: Sequence[Part]) -> list[dict[str, Any]]:
    """Return the content blocks of an answer: one at least."""
    return [_block(part) for part in parts] or [{"type": "text", "text": ""}]


def _block(part: Part) -> dict[str, Any]:
    """Return the content block that a part is. Nobody here signs what a model thinks."""
    match part:
        case Text(text):
            return {"type": "text", "text": text}
        case Reasoning(text):
            return {"type": "thinking", "thinking": text, "signature": ""}
        case FunctionCall(id, name, _):
            return {"type": "tool_use", "id": id, "name": name, "input": part.decoded()}


def _ending(end: Finished, calls: bool) -> dict[str, Any]:
    return {"stop_reason": "tool_use" if calls else _REASONS[end.reason], "stop_sequence": end.stop_string}


def _usage(end: Finished) -> dict[str, int]:
    """Return the token counts of an answer; Anthropic counts cached tokens apart."""
    return {
        "input_tokens": end.prompt_tokens - end.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": end.cached_tokens,
        "output_tokens": end.completion_tokens,
    }


def _event(name: str, **fields: Any) -> bytes:
    return event({"type": name, **fields}, name)


def _ping(position: int) -> bytes:
    """Return a sign of life: Anthropic's, behind the place in the queue where there is one."""
    return (comment(position) if position else b"") + _event("ping")


class _Blocks:
    """Write the parts of a stream as content blocks, one after the other."""

    def __init__(self) -> None:
        self._index, self._kind = -1, ""
        self.calls = False

    def write(self, parts: Iterable[Part]) -> Iterator[bytes]:
        """Yield the events of parts; a part goes on with the block before it where that is of its kind."""
        for part in parts:
            block = _block(part)
            kind = block["type"]
            if kind != self._kind or kind == "tool_use":
                yield from self.close()
                self._index, self._kind = self._index + 1, kind
                yield self._start(block)
            yield self._delta(part)
            self.calls = self.calls or kind == "tool_use"

    def _start(self, block: dict[str, Any]) -> bytes:
        empty: dict[str, Any] = {"text": "", "thinking": "", "signature": "", "input": {}}
        begun = {name: empty.get(name, value) for name, value in block.items() if name != "type"}
        return _event("content_block_start", index=self._index, content_block={"type": block["type"], **begun})

    def _delta(self, part: Part) -> bytes:
        match part:
            case Text(text):
                delta = {"type": "text_delta", "text": text}
            case Reasoning(text):
                delta = {"type": "thinking_delta", "thinking": text}
            case FunctionCall(_, _, arguments):
                delta = {"type": "input_json_delta", "partial_json": arguments}
        return _event("content_block_delta", index=self._index, delta=delta)

    def close(self) -> Iterator[bytes]:
        """Yield the event that ends the last block, if there is one."""
        if self._index >= 0:
            yield _event("content_block_stop", index=self._index)

    def finish(self) -> Iterator[bytes]:
        """Yield the events that end the last block; an answer has one at least."""
        if self._index < 0:
            yield from self.write([Text("")])
        yield from self.close()


async def _events(answers: Answers, head: dict[str, Any], tools: Sequence[functions.Tool]) -> AsyncGenerator[bytes]:
    """Yield the events of a stream; an error ends it."""
    blocks = _Blocks()
    try:
        await answers.begun()
        parser = parser_of(answers, tools)
        usage = {"input_tokens": answers.prompt_tokens, "output_tokens": 0}
        start = {**head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        yield _event("message_start", message=start)
        async for each in answers:
            parts = parser.push(each.text) if isinstance(each, Delta) else parser.finish()
            for data in blocks.write(parts):
                yield data
            if isinstance(each, Finished):
                for data in blocks.finish():
                    yield data
                cost = {"usage": _usage(each), "rung": answers.rung([each])}
                yield _event("message_delta", delta=_ending(each, blocks.calls), **cost)
        yield _event("message_stop")
    except ApiError as error:
        yield event(anthropic_error(error), "error")


async def count_tokens(call: Call, body: CountRequest) -> Response:
    """Count the tokens of messages."""
    _, engine = call.service.engine(body.model)
    rendered = await engine.ask(body.to_render())
    return json_response({"input_tokens": rendered["tokens"]})


ENDPOINTS = (
    post("/v1/messages", MessagesRequest, messages, anthropic_error),
    post("/v1/messages/count_tokens", CountRequest, count_tokens, anthropic_error),
)
