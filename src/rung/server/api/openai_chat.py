"""OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response

from rung.engine.batches.openai_forms import REASONS, chat_logprobs
from rung.server.api.openai_fields import (
    MOST_MESSAGES,
    Sampled,
    Tokens,
    ends_of,
    new_id,
    usage_of,
)
from rung.server.api.tools import Choice, Tool, ToolCall, call_grammar, find_calls, may_begin_call
from rung.server.errors import ApiError, openai_error
from rung.server.http import DONE, Stream, event, json_response, read_json
from rung.server.protocol import Delta, Finished, Generate
from rung.server.service import Answers, Call, Endpoint
from rung.server.service import Choice as Whole


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
    tool_calls: Annotated[list[ToolCall], Meta(max_length=128)] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    annotations: list[Any] | None = None
    audio: None = None

    def to_template(self) -> dict[str, Any]:
        """Return it as chat templates read messages; ``developer`` is the newer word for ``system``."""
        content = self.content
        if isinstance(content, list):
            content = "".join(part.text or part.refusal for part in content)
        found: dict[str, Any] = {"role": "system" if self.role == "developer" else self.role, "content": content or ""}
        if self.tool_calls:
            found["tool_calls"] = [each.to_template() for each in self.tool_calls]
        for field in ("name", "reasoning_content", "tool_call_id"):
            if (value := getattr(self, field)) is not None:
                found[field] = value
        return found


class ChatRequest(Sampled, kw_only=True):
    """A body of ``/v1/chat/completions``."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MOST_MESSAGES)]
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
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
        form, call = self.form(), call_grammar(self.tools or (), self.tool_choice)
        if form is not None and call is not None:
            raise ApiError(400, "An answer is a call or of a form.", param="tool_choice", code="invalid_value")
        return Generate(
            messages=[each.to_template() for each in self.messages],
            options=options,
            n=self.n or 1,
            grammar=form or call,
            tools=[each.to_template() for each in self.callable_tools],
        )

    @property
    def callable_tools(self) -> list[Tool]:
        """Return the tools that the answer may call."""
        return [] if self.tool_choice == "none" else self.tools or []


async def chat(call: Call) -> Response:
    """Answer messages."""
    body = await read_json(call.request, ChatRequest)
    generate, with_usage = body.to_generate(), body.includes_usage
    answers = await call.begin(body.model, generate)
    head = {"id": new_id("chatcmpl"), "created": answers.created, "model": answers.model}
    if body.stream:
        chunks = _chunks(answers, head, body.callable_tools, generate.n, with_usage)
        return Stream(chunks, on_close=answers.close)
    choices = await call.collect(answers)
    listed = [
        {
            "index": number,
            **_whole(choice, body.callable_tools),
            "logprobs": chat_logprobs(choice.logprobs),
        }
        for number, choice in enumerate(choices)
    ]
    cost = usage_of(answers.prompt_tokens, ends_of(choices))
    ran = answers.rung(ends_of(choices))
    return json_response({**head, "object": "chat.completion", "choices": listed, "usage": cost, "rung": ran})


def _whole(choice: Whole, tools: Sequence[Tool]) -> dict[str, Any]:
    """Return the message of an answer, a text or calls, and why it ended."""
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    reason = REASONS[choice.end.reason]
    if tools and (calls := find_calls(choice.text, tools)):
        message |= {"content": None, "tool_calls": calls}
        reason = "tool_calls"
    return {"message": message, "finish_reason": reason}


class _Held:
    """Text of an answer that may be a call, which is not shown before that is known."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._tools, self._text, self._entries = tools, "", list[dict[str, Any]]()
        self._shows = not tools

    def push(self, each: Delta) -> tuple[str, list[dict[str, Any]] | None] | None:
        """Return what is shown now of an answer that got longer, with the entries of its tokens, or None."""
        self._text += each.text
        self._entries += each.logprobs or ()
        self._shows = self._shows or not may_begin_call(self._text)
        if not self._shows:
            return None
        text, entries = self._text, self._entries
        self._text, self._entries = "", []
        return text, entries or None

    def finish(self) -> tuple[str, list[dict[str, Any]]]:
        """Return what was not shown: text, or calls."""
        calls = [] if self._shows else find_calls(self._text, self._tools)
        return ("", [{"index": number, **call} for number, call in enumerate(calls)]) if calls else (self._text, [])


async def _chunks(
    answers: Answers, head: dict[str, Any], tools: Sequence[Tool], n: int, with_usage: bool
) -> AsyncGenerator[bytes]:
    """Yield the events of a stream; an error ends it."""
    texts = [_Held(tools) for _ in range(n)]
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
                if shown := texts[each.index].push(each):
                    yield chunk(each.index, {"content": shown[0]}, None, chat_logprobs(shown[1]))
            else:
                ends.append(each)
                rest, calls = texts[each.index].finish()
                if rest or calls:
                    yield chunk(each.index, {"tool_calls": calls} if calls else {"content": rest})
                yield chunk(each.index, {}, "tool_calls" if calls else REASONS[each.reason])
        if with_usage:
            yield event(
                {**head, "choices": [], "usage": usage_of(answers.prompt_tokens, ends), "rung": answers.rung(ends)}
            )
        yield DONE
    except ApiError as error:
        yield event(openai_error(error))


ENDPOINTS = (
    Endpoint("POST", "/v1/chat/completions", chat),
    Endpoint("POST", "/chat/completions", chat),
)
