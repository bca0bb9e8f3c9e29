"""Anthropic's messages, streamed as its events or whole, and the count of a prompt's tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from typing import Any

from starlette.responses import Response

from rung.server.api.anthropic_fields import CountRequest, MessagesRequest
from rung.server.api.chat_parser import ChatParser, FunctionCall, Part, Reasoning, Text, parse, parser_of
from rung.server.api.openai_fields import new_id
from rung.server.errors import ApiError, anthropic_error
from rung.server.http import Stream, event, json_response
from rung.server.protocol import Delta, Finished
from rung.server.service import Answers, Call, post

#: Anthropic's words for why an answer ended.
_REASONS = {"end": "end_turn", "stop": "stop_sequence", "length": "max_tokens", "context": "max_tokens"}


async def messages(call: Call, body: MessagesRequest) -> Response:
    """Answer messages."""
    generate = body.to_generate()
    answers = await call.begin(body.model, generate)
    head = {"id": new_id("msg"), "type": "message", "role": "assistant", "model": answers.model}
    parser = parser_of(answers, generate, body.callable_tools)
    if body.stream:
        return Stream(_events(answers, head, parser), on_close=answers.close)
    (choice,) = await call.collect(answers)
    parts = parse(parser, choice.text)
    ending = _ending(choice.end, any(isinstance(part, FunctionCall) for part in parts))
    return json_response({**head, "content": _content(parts), **ending, "usage": _usage(choice.end)})


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


async def _events(answers: Answers, head: dict[str, Any], parser: ChatParser) -> AsyncGenerator[bytes]:
    """Yield the events of a stream; an error ends it."""
    usage = {"input_tokens": answers.prompt_tokens, "output_tokens": 0}
    start = {**head, "content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
    blocks = _Blocks()
    try:
        yield _event("message_start", message=start)
        async for each in answers:
            parts = parser.push(each.text) if isinstance(each, Delta) else parser.finish()
            for data in blocks.write(parts):
                yield data
            if isinstance(each, Finished):
                for data in blocks.finish():
                    yield data
                yield _event("message_delta", delta=_ending(each, blocks.calls), usage=_usage(each))
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
