"""OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response

from rung.server.api.openai_fields import (
    MOST_MESSAGES,
    REASONS,
    Sampled,
    Tokens,
    chat_logprobs,
    ends_of,
    new_id,
    usage,
)
from rung.server.errors import ApiError, openai_error
from rung.server.http import DONE, Stream, event, json_response, read_json
from rung.server.protocol import Delta, Finished, Generate
from rung.server.service import Answers, Call, Endpoint


class Part(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a message: text, the only kind that models here read."""

    type: Literal["text", "refusal"]
    text: str = ""
    refusal: str = ""


class Message(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message. ``refusal``, ``annotations`` and ``audio`` are there where a client sends an answer back."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[Part], Meta(max_length=1024)] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: None = None

    def to_template(self) -> dict[str, Any]:
        """Return it as chat templates read messages; ``developer`` is the newer word for ``system``."""
        content = self.content
        if isinstance(content, list):
            content = "".join(part.text or part.refusal for part in content)
        found: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": content or ""}
        for field in ("name", "reasoning_content"):
            if (value := getattr(self, field)) is not None:
                found[field] = value
        return found


class ChatRequest(Sampled, kw_only=True):
    """A body of ``/v1/chat/completions``."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MOST_MESSAGES)]
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=100)] | None = None

    def to_generate(self) -> Generate:
        """Return the request to an engine. Raises ``ApiError``."""
        options = self.options()
        if self.top_logprobs is not None and not self.logprobs:
            raise ApiError(400, "top_logprobs needs logprobs=true.", param="top_logprobs", code="invalid_value")
        if self.logprobs:
            options |= {"logprobs": True, "top_logprobs": self.top_logprobs or 0}
        if self.max_completion_tokens is not None:
            options["max_tokens"] = self.max_completion_tokens
        messages = [each.to_template() for each in self.messages]
        return Generate(messages=messages, options=options, n=self.n or 1, grammar=self.form())


async def chat(call: Call) -> Response:
    """Answer messages."""
    body = await read_json(call.request, ChatRequest)
    generate, with_usage = body.to_generate(), body.includes_usage
    answers = await call.begin(body.model, generate)
    head = {"id": new_id("chatcmpl"), "created": answers.created, "model": answers.model}
    if body.stream:
        return Stream(_chunks(answers, head, generate.n, with_usage), on_close=answers.close)
    choices = await call.collect(answers)
    listed = [
        {
            "index": number,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": chat_logprobs(choice.logprobs),
            "finish_reason": REASONS[choice.end.reason],
        }
        for number, choice in enumerate(choices)
    ]
    cost = usage(answers.prompt_tokens, ends_of(choices))
    return json_response({**head, "object": "chat.completion", "choices": listed, "usage": cost})


async def _chunks(answers: Answers, head: dict[str, Any], n: int, with_usage: bool) -> AsyncGenerator[bytes]:
    """Yield the events of a stream; an error ends it."""
    head = {**head, "object": "chat.completion.chunk"}
    more = {"usage": None} if with_usage else {}

    def chunk(index: int, delta: dict[str, Any], reason: str | None = None, logprobs: Any = None) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return event({**head, "choices": [choice], **more})

    ends: list[Finished] = []
    try:
        for index in range(n):
            yield chunk(index, {"role": "assistant", "content": ""})
        async for each in answers:
            if isinstance(each, Delta):
                yield chunk(each.index, {"content": each.text}, None, chat_logprobs(each.logprobs))
            else:
                ends.append(each)
                yield chunk(each.index, {}, REASONS[each.reason])
        if with_usage:
            yield event({**head, "choices": [], "usage": usage(answers.prompt_tokens, ends)})
        yield DONE
    except ApiError as error:
        yield event(openai_error(error))


ENDPOINTS = (
    Endpoint("POST", "/v1/chat/completions", chat),
    Endpoint("POST", "/chat/completions", chat),
)
