"""OpenAI's responses: streams of its events or whole, kept for the responses that go on from them."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import msgspec
from starlette.responses import Response

from rung.server.api.chat_parser import ChatParser, parse, parser_of
from rung.server.api.responses.fields import InputTokensRequest, Item, ResponsesRequest, to_messages
from rung.server.api.responses.output import Event, Output, new_item_id
from rung.server.api.shared import progress, timings
from rung.server.errors import ApiError, openai_error
from rung.server.http import Stream, event, json_response
from rung.server.protocol import Delta, Encode, Finished, PromptRead
from rung.server.service import Answers, Call, Endpoint, post


@dataclass
class _Generation:
    """A response while it is made, and the conversation that it goes on from."""

    call: Call
    body: ResponsesRequest
    messages: list[dict[str, Any]]
    answers: Answers
    id: str = field(default_factory=lambda: new_item_id("resp"))
    output: Output = field(default_factory=Output)

    @cached_property
    def parser(self) -> ChatParser:
        """Return the parser of the answer, once that has begun."""
        return parser_of(self.answers, self.body.callable_tools)

    def shown(self, status: str, **more: Any) -> dict[str, Any]:
        """Return the response."""
        body = self.body
        fields = msgspec.to_builtins(body)
        echoed = ("instructions", "max_output_tokens", "max_tool_calls", "previous_response_id", "temperature", "top_p")
        named = ("safety_identifier", "prompt_cache_key", "user")
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.answers.created,
            "completed_at": None,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "model": self.answers.model,
            "output": self.output.items,
            **{name: fields[name] for name in (*echoed, *named)},
            "parallel_tool_calls": True if body.parallel_tool_calls is None else body.parallel_tool_calls,
            "tools": fields["tools"] or [],
            "tool_choice": fields["tool_choice"] or "auto",
            "text": {"format": {"type": "text"}} if body.text is None or body.text.format is None else fields["text"],
            "reasoning": fields["reasoning"] or {"effort": None, "summary": None},
            "truncation": "disabled",
            "top_logprobs": body.top_logprobs or 0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "background": False,
            "service_tier": "default",
            "store": body.store is not False,
            "metadata": body.metadata or {},
            "usage": None,
            **more,
        }

    async def finish(self, end: Finished) -> dict[str, Any]:
        """Return the response that has ended, and keep it."""
        thought = 0
        if self.output.thought:
            _, engine = self.call.service.engine(self.answers.model)
            thought = len((await engine.ask(Encode(text=self.output.thought, special=True, bos=False)))["ids"])
        usage = {
            "input_tokens": end.prompt_tokens,
            "input_tokens_details": {"cached_tokens": end.cached_tokens, "cache_write_tokens": 0},
            "output_tokens": end.completion_tokens,
            "output_tokens_details": {"reasoning_tokens": min(thought, end.completion_tokens)},
            "total_tokens": end.prompt_tokens + end.completion_tokens,
        }
        cut = _is_cut(end)
        found = self.shown(
            "incomplete" if cut else "completed",
            completed_at=int(time.time()),
            incomplete_details={"reason": "max_output_tokens"} if cut else None,
            usage=usage,
            rung=self.answers.rung([end]),
        )
        if self.body.store is not False:
            messages = to_messages(msgspec.convert(self.output.items, list[Item]))
            self.call.service.responses.put(self.call.owner, found, [*self.messages, *messages])
        return found


def _is_cut(end: Finished) -> bool:
    return end.reason in ("length", "context")


def _before(call: Call, body: InputTokensRequest) -> list[dict[str, Any]]:
    """Return the conversation that a body goes on from. Raises ``ApiError``."""
    if body.previous_response_id is None:
        return []
    found = call.service.responses.get(call.owner, body.previous_response_id)
    if found is None:
        message = f"There is no response {body.previous_response_id!r} any more: the newest ones are kept, in memory."
        raise ApiError(400, message, param="previous_response_id", code="previous_response_not_found")
    return found[1]


async def respond(call: Call, body: ResponsesRequest) -> Response:
    """Make a response."""
    messages = body.messages(_before(call, body))
    generate = body.to_generate(messages)
    answers = await call.begin(body.model, generate, streams=bool(body.stream))
    generation = _Generation(call, body, messages, answers)
    if body.stream:
        return Stream(_events(generation), on_close=answers.close)
    (choice,) = await call.collect(answers)
    for _ in generation.output.push(parse(generation.parser, choice.text), choice.logprobs or ()):
        pass  # the events of a stream
    for _ in generation.output.finish("incomplete" if _is_cut(choice.end) else "completed"):
        pass
    return json_response(await generation.finish(choice.end))


async def _events(generation: _Generation) -> AsyncGenerator[bytes]:
    """Yield the events of a stream; an error ends it."""
    number = 0

    def written(found: Event) -> bytes:
        nonlocal number
        name, fields = found
        number += 1
        return event({"type": name, "sequence_number": number - 1, **fields}, name)

    try:
        yield written(("response.created", {"response": generation.shown("in_progress")}))
        yield written(("response.in_progress", {"response": generation.shown("in_progress")}))
        await generation.answers.begun()
        async for each in generation.answers.all_events():
            if isinstance(each, PromptRead):
                shown = {"response": generation.shown("in_progress"), "prompt_progress": progress(each)}
                yield written(("response.in_progress", shown))
                continue
            if isinstance(each, Delta):
                times = {} if each.times is None else {"timings": timings(each.times)}
                for name, fields in generation.output.push(generation.parser.push(each.text), each.logprobs or ()):
                    yield written((name, {**fields, **times}))
                continue
            for found in generation.output.push(generation.parser.finish()):
                yield written(found)
            for found in generation.output.finish("incomplete" if _is_cut(each) else "completed"):
                yield written(found)
            response = await generation.finish(each)
            yield written((f"response.{response['status']}", {"response": response, "timings": timings(each.times)}))
    except ApiError as error:
        about = openai_error(error)["error"]
        failed = generation.shown("failed", error={"code": "server_error", "message": about["message"]})
        yield written(("error", {"code": about["code"], "message": about["message"], "param": about["param"]}))
        yield written(("response.failed", {"response": failed}))


async def input_tokens(call: Call, body: InputTokensRequest) -> Response:
    """Count the tokens of a prompt."""
    _, engine = call.service.engine(body.model)
    rendered = await engine.ask(body.to_render(body.messages(_before(call, body))))
    return json_response({"object": "response.input_tokens", "input_tokens": rendered["tokens"]})


def _missing(id: str) -> ApiError:
    return ApiError(404, f"There is no response {id!r}.", code="response_not_found")


async def show(call: Call) -> Response:
    """Show a response that is kept."""
    id = call.request.path_params["response"]
    if (found := call.service.responses.get(call.owner, id)) is None:
        raise _missing(id)
    return json_response(found[0])


async def delete(call: Call) -> Response:
    """Forget a response."""
    id = call.request.path_params["response"]
    if not call.service.responses.delete(call.owner, id):
        raise _missing(id)
    return json_response({"id": id, "object": "response", "deleted": True})


ENDPOINTS = (
    post("/v1/responses", ResponsesRequest, respond),
    post("/responses", ResponsesRequest, respond),
    post("/v1/responses/input_tokens", InputTokensRequest, input_tokens),
    post("/responses/input_tokens", InputTokensRequest, input_tokens),
    Endpoint("GET", "/v1/responses/{response}", show),
    Endpoint("DELETE", "/v1/responses/{response}", delete),
)
