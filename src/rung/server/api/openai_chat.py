"""OpenAI's chat completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response

from rung.engine.openai_forms import REASONS, chat_logprobs, join_texts, template_role
from rung.server.api.chat_parser import ChatParser, FunctionCall, Part, Reasoning, Text, parse, parser_of
from rung.server.api.openai_fields import (
    FINGERPRINT,
    MOST_MESSAGES,
    MOST_TOKENS,
    Effort,
    Sampled,
    SlotNumber,
    TemplateKwargs,
    Tokens,
    ends_in_answer,
    ends_of,
    lora_scales,
    named_slot,
    new_id,
    reasoning_options,
    usage_of,
)
from rung.server.api.shared import progress, settings, timings
from rung.server.api.tools import Choice, Tool, ToolCall, call_grammar
from rung.server.errors import ApiError, openai_error
from rung.server.http import DONE, Stream, around_text, event, json_response, to_json
from rung.server.protocol import Delta, Finished, Generate, PromptRead, Render
from rung.server.service import Answers, Call, post

#: Between parts of a message that the answer goes on from, as llama-server has it.
_BETWEEN_LAST = "\n\n"


class ContentPart(msgspec.Struct, forbid_unknown_fields=True):
    """A part of a message: text, the only kind that models here read."""

    type: Literal["text", "refusal"]
    text: str = ""
    refusal: str = ""


class Message(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """A message. ``refusal``, ``annotations`` and ``audio`` are there where a client sends an answer back."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | Annotated[list[ContentPart], Meta(max_length=1024)] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: Annotated[list[ToolCall], Meta(max_length=128)] | None = None
    tool_call_id: str | None = None
    refusal: str | None = None
    annotations: Annotated[list[Any], Meta(max_length=1024)] | None = None
    audio: None = None

    def to_template(self, between: str = "\n") -> dict[str, Any]:
        """Return it as chat templates read messages, with what stands ``between`` parts."""
        content = self.content
        if isinstance(content, list):
            content = join_texts((part.text or part.refusal for part in content), between)
        found: dict[str, Any] = {"role": template_role(self.role), "content": content or ""}
        if self.tool_calls:
            found["tool_calls"] = [each.to_template() for each in self.tool_calls]
        for field in ("name", "reasoning_content", "tool_call_id"):
            if (value := getattr(self, field)) is not None:
                found[field] = value
        return found


class ChatRequest(Sampled, kw_only=True):
    """A body of ``/v1/chat/completions``. The fields from ``id_slot`` on are llama.cpp's: ``timings_per_token`` and
    ``return_progress`` are for streams, ``verbose`` adds the prompt as it was read and the settings. An answer
    goes on from a last message that is the assistant's; vLLM's ``continue_final_message``, and
    ``add_generation_prompt`` as its opposite, say whether it does."""

    messages: Annotated[list[Message], Meta(min_length=1, max_length=MOST_MESSAGES)]
    max_completion_tokens: Tokens | None = None
    logprobs: bool | None = None
    tools: Annotated[list[Tool], Meta(max_length=128)] | None = None
    tool_choice: Choice | None = None
    parallel_tool_calls: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=100)] | None = None
    reasoning_effort: Effort | None = None
    thinking_budget_tokens: Annotated[int, Meta(ge=0, le=MOST_TOKENS)] | None = None
    chat_template_kwargs: TemplateKwargs | None = None
    id_slot: SlotNumber | None = None
    cache_prompt: bool | None = None
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    verbose: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None

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
        messages = [each.to_template() for each in self.messages]
        goes_on = continues(messages, self.add_generation_prompt, self.continue_final_message)
        if goes_on:
            messages[-1] = self.messages[-1].to_template(_BETWEEN_LAST)
        return Generate(
            messages=messages,
            options=options,
            n=self.n or 1,
            grammar=form or call,
            adapters=lora_scales(self.lora),
            tools=[each.to_template() for each in self.callable_tools],
            template_kwargs=self.chat_template_kwargs or {},
            reasoning=reasoning_options(self.reasoning_effort, self.thinking_budget_tokens),
            slot=named_slot(self.id_slot),
            times=bool(self.timings_per_token and self.stream),
            progress=bool(self.return_progress and self.stream),
            details=bool(self.verbose),
            continues_last=goes_on,
        )

    @property
    def callable_tools(self) -> list[Tool]:
        """Return the tools that the answer may call."""
        return [] if self.tool_choice == "none" else self.tools or []


def continues(messages: Sequence[Mapping[str, Any]], begins: bool | None, goes_on: bool | None) -> bool:
    """Return whether an answer goes on from the last message, by ``add_generation_prompt`` and
    ``continue_final_message`` of a body. Raises ``ApiError`` where these are at odds."""
    if begins and goes_on:
        message = "An answer begins (add_generation_prompt) or goes on (continue_final_message): one is true."
        raise ApiError(400, message, param="continue_final_message", code="invalid_value")
    if goes_on is not None or begins or not ends_in_answer(messages):
        return bool(goes_on)
    if messages[-2].get("role") == "assistant":
        message = "The last two messages are the assistant's: which one goes on is not said (add_generation_prompt)."
        raise ApiError(400, message, param="messages", code="invalid_value")
    return True


async def chat(call: Call, body: ChatRequest) -> Response:
    """Answer messages."""
    generate, with_usage = body.to_generate(), body.includes_usage
    answers = await call.begin(body.model, generate, streams=bool(body.stream))
    head = {"id": new_id("chatcmpl"), "created": answers.created, "model": answers.model, **FINGERPRINT}
    if body.stream:
        parts = _chunks(answers, head, body.callable_tools, with_usage)
        return Stream(parts, on_close=answers.close, on_begin=answers.write_with)
    choices = await call.collect(answers)
    listed = [
        {
            "index": number,
            **_whole(parse(parser_of(answers, body.callable_tools), choice.text), choice.end),
            "logprobs": chat_logprobs(choice.logprobs),
        }
        for number, choice in enumerate(choices)
    ]
    cost = usage_of(answers.prompt_tokens, ends_of(choices))
    ends = ends_of(choices)
    more = {"timings": timings(ends[-1].times), "rung": answers.rung(ends), **_details(body, ends)}
    return json_response({**head, "object": "chat.completion", "choices": listed, "usage": cost, **more})


def _details(body: ChatRequest, ends: Sequence[Finished]) -> dict[str, Any]:
    """Return the field that ``verbose`` adds to an answer."""
    if not body.verbose:
        return {}
    most = body.max_completion_tokens or body.max_tokens or -1
    used = settings(ends[0], most, stream=bool(body.stream))
    return {"__verbose": {"prompt": ends[0].prompt, "generation_settings": used}}


async def input_tokens(call: Call, body: ChatRequest) -> Response:
    """Count the tokens of a prompt."""
    _, engine = call.service.engine(body.model)
    generate = body.to_generate()
    render = Render(
        messages=generate.messages,
        tools=generate.tools,
        template_kwargs=generate.template_kwargs,
        continues_last=generate.continues_last,
    )
    return json_response({"input_tokens": (await engine.ask(render))["tokens"]})


def _whole(parts: Iterable[Part], end: Finished) -> dict[str, Any]:
    """Return the message of an answer and why it ended."""
    message: dict[str, Any] = {"role": "assistant", "content": None, "refusal": None}
    for part in parts:
        message = _longer(message, part)
    calls = message.get("tool_calls")
    if not calls:
        message["content"] = message["content"] or ""
    return {"message": message, "finish_reason": "tool_calls" if calls else REASONS[end.reason]}


def _longer(message: dict[str, Any], part: Part) -> dict[str, Any]:
    """Return a message, or a piece of one, with one more part."""
    match part:
        case Text(text):
            return {**message, "content": (message.get("content") or "") + text}
        case Reasoning(text):
            return {**message, "reasoning_content": message.get("reasoning_content", "") + text}
        case FunctionCall(id, name, arguments):
            call = {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}
            return {**message, "tool_calls": [*message.get("tool_calls", ()), call]}


class _Choice:
    """One choice of a stream. Entries of tokens go with the first piece that is given out after them. ``around`` is
    what stands before and after the JSON of a text in its event."""

    def __init__(self, parser: ChatParser, around: list[bytes]) -> None:
        self._parser, self._entries, self._calls = parser, list[dict[str, Any]](), 0
        self._around = around

    def event_of(self, each: Delta) -> bytes | None:
        """Return the event of the text that an answer got longer by, where that is all there is to look at; nothing is
        changed. Most events of streams are these, so they are to be cheap."""
        if self._entries or each.logprobs or each.times is not None or not each.text or not self._parser.is_plain:
            return None
        return to_json(each.text).join(self._around)

    def push(self, each: Delta) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]] | None]]:
        """Yield the pieces that are given out now that an answer got longer, each with its entries."""
        self._entries += each.logprobs or ()
        yield from self._pieces(self._parser.push(each.text))

    def finish(self) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]] | None]]:
        """Yield the pieces that are left."""
        yield from self._pieces(self._parser.finish())

    def _pieces(self, parts: Iterable[Part]) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]] | None]]:
        for part in parts:
            delta, entries = _longer({}, part), self._entries
            for call in delta.get("tool_calls", ()):
                call["index"] = self._calls
                self._calls += 1
            self._entries = []
            yield delta, entries or None

    def reason(self, end: Finished) -> str:
        """Return why it ended."""
        return "tool_calls" if self._calls else REASONS[end.reason]


def _choices(answers: Answers, tools: Sequence[Tool], piece: Callable[[int, str], bytes]) -> list[_Choice]:
    """Return the choices of answers that have begun, which write ``piece`` of most deltas."""
    choices = [
        _Choice(parser_of(answers, tools), around_text(partial(piece, index))) for index in range(answers.request.n)
    ]
    answers.encode = lambda delta: choices[delta.index].event_of(delta)
    return choices


def _cost(answers: Answers, ends: list[Finished]) -> dict[str, Any]:
    """Return the usage and times of answers, and the facts of what computed them."""
    usage = usage_of(answers.prompt_tokens, ends)
    return {"usage": usage, "timings": timings(ends[-1].times), "rung": answers.rung(ends)}


async def _chunks(
    answers: Answers, head: dict[str, Any], tools: Sequence[Tool], with_usage: bool
) -> AsyncGenerator[bytes]:
    """Yield the events of a stream; an error ends it."""
    head = {**head, "object": "chat.completion.chunk"}
    more = {"usage": None} if with_usage else {}

    def chunk(
        index: int, delta: dict[str, Any], reason: str | None = None, logprobs: Any = None, **extra: Any
    ) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return event({**head, "choices": [choice], **more, **extra})

    ends: list[Finished] = []
    try:
        await answers.begun()
        choices = _choices(answers, tools, lambda index, text: chunk(index, {"content": text}))
        for index in range(len(choices)):
            yield chunk(index, {"role": "assistant", "content": None})
        async for each in answers.all_events():
            match each:
                case PromptRead():
                    yield chunk(each.index, {}, None, None, prompt_progress=progress(each))
                case Delta():
                    if (data := choices[each.index].event_of(each)) is not None:
                        yield data
                        continue
                    extra = {} if each.times is None else {"timings": timings(each.times)}
                    for delta, entries in choices[each.index].push(each):
                        yield chunk(each.index, delta, None, chat_logprobs(entries), **extra)
                case Finished():
                    ends.append(each)
                    for delta, entries in choices[each.index].finish():
                        yield chunk(each.index, delta, None, chat_logprobs(entries))
                    yield chunk(each.index, {}, choices[each.index].reason(each))
        if with_usage:
            yield event({**head, "choices": [], **_cost(answers, ends)})
        yield DONE
    except ApiError as error:
        yield event(openai_error(error))


ENDPOINTS = (
    post("/v1/chat/completions", ChatRequest, chat),
    post("/chat/completions", ChatRequest, chat),
    post("/v1/chat/completions/input_tokens", ChatRequest, input_tokens),
    post("/chat/completions/input_tokens", ChatRequest, input_tokens),
)
