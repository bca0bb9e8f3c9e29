"""Anthropic's messages, streamed as its events or whole, and the count of a prompt's tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response

from rung.server.api.openai_fields import MOST_MESSAGES, Share, StopText, Tokens, new_id
from rung.server.errors import ApiError, anthropic_error
from rung.server.http import Stream, event, json_response, read_json
from rung.server.protocol import Delta, Finished, Generate, Render
from rung.server.service import Answers, Call, Endpoint

#: Anthropic's words for why an answer ended.
_REASONS = {"end": "end_turn", "stop": "stop_sequence", "length": "max_tokens", "context": "max_tokens"}


class TextBlock(msgspec.Struct, forbid_unknown_fields=True):
    """A block of text. ``cache_control`` changes nothing: prefixes are always kept."""

    type: Literal["text"]
    text: str
    cache_control: dict[str, str] | None = None
    citations: None = None


Content = str | Annotated[list[TextBlock], Meta(max_length=1024)]


class Turn(msgspec.Struct, forbid_unknown_fields=True):
    """A message."""

    role: Literal["user", "assistant"]
    content: Content


class Thinking(msgspec.Struct, forbid_unknown_fields=True):
    """The only setting that every model meets: no thinking apart."""

    type: Literal["disabled"]


class CountRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A body of ``/v1/messages/count_tokens``."""

    model: Annotated[str, Meta(max_length=512)]
    messages: Annotated[list[Turn], Meta(min_length=1, max_length=MOST_MESSAGES)]
    system: Content | None = None
    thinking: Thinking | None = None

    def to_template(self) -> list[dict[str, Any]]:
        """Return the messages as chat templates read them."""
        before = [] if self.system is None else [{"role": "system", "content": _text(self.system)}]
        return [*before, *({"role": each.role, "content": _text(each.content)} for each in self.messages)]


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
        """Return the request to an engine."""
        names = ("max_tokens", "temperature", "top_p", "top_k")
        options = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.stop_sequences:
            options["stop"] = self.stop_sequences
        return Generate(messages=self.to_template(), options=options)


def _text(content: Content) -> str:
    return content if isinstance(content, str) else "".join(block.text for block in content)


async def messages(call: Call) -> Response:
    """Answer messages."""
    body = await read_json(call.request, MessagesRequest)
    answers = await call.begin(body.model, body.to_generate())
    head = {"id": new_id("msg"), "type": "message", "role": "assistant", "model": answers.model}
    if body.stream:
        return Stream(_events(answers, head), on_close=answers.close)
    (choice,) = await call.collect(answers)
    content = [{"type": "text", "text": choice.text}]
    return json_response({**head, "content": content, **_ending(choice.end), "usage": _usage(choice.end)})


def _ending(end: Finished) -> dict[str, Any]:
    return {"stop_reason": _REASONS[end.reason], "stop_sequence": end.stop_string}


def _usage(end: Finished) -> dict[str, int]:
    """Return what an answer cost; Anthropic counts the tokens that were cached apart."""
    return {
        "input_tokens": end.prompt_tokens - end.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": end.cached_tokens,
        "output_tokens": end.completion_tokens,
    }


async def _events(answers: Answers, head: dict[str, Any]) -> AsyncGenerator[bytes]:
    """Yield the events of a stream; an error ends it."""

    def said(name: str, **fields: Any) -> bytes:
        return event({"type": name, **fields}, name)

    usage = {"input_tokens": answers.prompt_tokens, "output_tokens": 0}
    start = {**head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    try:
        yield said("message_start", message=start)
        yield said("content_block_start", index=0, content_block={"type": "text", "text": ""})
        async for each in answers:
            if isinstance(each, Delta):
                yield said("content_block_delta", index=0, delta={"type": "text_delta", "text": each.text})
            else:
                yield said("content_block_stop", index=0)
                yield said("message_delta", delta=_ending(each), usage=_usage(each))
        yield said("message_stop")
    except ApiError as error:
        yield event(anthropic_error(error), "error")


async def count_tokens(call: Call) -> Response:
    """Count the tokens of messages."""
    body = await read_json(call.request, CountRequest)
    _, engine = call.service.engine(body.model)
    rendered = await engine.ask(Render(messages=body.to_template()))
    return json_response({"input_tokens": rendered["tokens"]})


ENDPOINTS = (
    Endpoint("POST", "/v1/messages", messages, anthropic_error),
    Endpoint("POST", "/v1/messages/count_tokens", count_tokens, anthropic_error),
)
