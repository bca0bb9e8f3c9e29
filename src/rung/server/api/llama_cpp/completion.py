"""llama.cpp's own completions: prompts that are continued as they are, and holes that are filled."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any

import msgspec
from msgspec import Meta
from starlette.responses import Response

from rung.server.api.openai_completions import prompts_of
from rung.server.api.openai_fields import (
    MOST_TOKENS,
    GrammarText,
    LoraScales,
    Penalty,
    Repeat,
    Share,
    SlotNumber,
    StopText,
    TokenId,
    lora_scales,
    named_slot,
    schema_grammar,
)
from rung.server.errors import ApiError, openai_error
from rung.server.http import Stream, event, json_response
from rung.server.protocol import Delta, Finished, Generate, Grammar, Infill
from rung.server.service import Answers, Call, Choice, post

_STOPS = {"end": "eos", "stop": "word", "length": "limit", "context": "limit"}
_Bias = Annotated[float, Meta(ge=-100, le=100)]


class Options(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Options of llama.cpp's completions. ``cache_prompt`` changes nothing of an answer: prefixes are always shared.
    ``id_slot`` is the slot whose content it then is, -1 any. ``seed`` -1 draws anew, ``n_predict`` -1 goes on to the
    end."""

    model: Annotated[str, Meta(max_length=512)] | None = None
    n_predict: Annotated[int, Meta(ge=-1, le=MOST_TOKENS)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=100)] | None = None
    top_k: Annotated[int, Meta(ge=0, le=2**31)] | None = None
    top_p: Share | None = None
    min_p: Share | None = None
    typical_p: Share | None = None
    repeat_penalty: Repeat | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Meta(ge=-1, le=2**63 - 1)] | None = None
    stop: Annotated[list[StopText], Meta(max_length=64)] | None = None
    logit_bias: Annotated[list[tuple[TokenId, _Bias]], Meta(max_length=4096)] | None = None
    n_probs: Annotated[int, Meta(ge=0, le=100)] | None = None
    grammar: GrammarText | None = None
    json_schema: dict[str, Any] | None = None
    lora: LoraScales = None
    return_tokens: bool | None = None
    stream: bool | None = None
    cache_prompt: bool | None = None
    id_slot: SlotNumber | None = None

    def to_options(self) -> dict[str, Any]:
        """Return the options of ``Model.chat``."""
        names = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty")
        more = ("presence_penalty", "frequency_penalty", "stop")
        found: dict[str, Any] = {name: value for name in names + more if (value := getattr(self, name)) is not None}
        if self.n_predict is not None and self.n_predict >= 0:
            found["max_tokens"] = self.n_predict
        if self.seed is not None and self.seed >= 0:
            found["seed"] = self.seed
        if self.logit_bias is not None:
            found["logit_bias"] = dict(self.logit_bias)
        if self.n_probs or self.return_tokens:
            found |= {"logprobs": True, "top_logprobs": self.n_probs or 0}
        return found

    def form(self) -> Grammar | None:
        """Return the form that the answer must have, if any. Raises ``ApiError``."""
        if self.grammar is not None and self.json_schema is not None:
            raise ApiError(
                400, "An answer has one form: grammar or json_schema.", param="grammar", code="invalid_value"
            )
        if self.json_schema is not None:
            return schema_grammar(self.json_schema)
        return None if self.grammar is None else Grammar("gbnf", self.grammar)


class CompletionRequest(Options, kw_only=True):
    """A body of ``/completion``."""

    prompt: str | list[str | TokenId | list[TokenId]]

    def to_generate(self) -> Generate:
        """Return the request to an engine. Raises ``ApiError``."""
        return Generate(
            prompts=[*prompts_of(self.prompt)],
            options=self.to_options(),
            grammar=self.form(),
            adapters=lora_scales(self.lora),
            slot=named_slot(self.id_slot),
        )


class ExtraFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Another file of the project."""

    text: str
    filename: str = "tmp"


class InfillRequest(Options, kw_only=True):
    """A body of ``/infill``: the answer goes on from ``prompt``, between ``input_prefix`` and ``input_suffix``."""

    input_prefix: str
    input_suffix: str
    prompt: str = ""
    input_extra: Annotated[list[ExtraFile], Meta(max_length=256)] = []

    def to_generate(self) -> Generate:
        """Return the request to an engine. Raises ``ApiError``."""
        extra = [{"filename": each.filename, "text": each.text} for each in self.input_extra]
        hole = Infill(prefix=self.input_prefix, suffix=self.input_suffix, prompt=self.prompt, extra=extra)
        adapters = lora_scales(self.lora)
        return Generate(
            prompts=[hole],
            options=self.to_options(),
            grammar=self.form(),
            adapters=adapters,
            slot=named_slot(self.id_slot),
        )


async def complete(call: Call, body: CompletionRequest) -> Response:
    """Continue prompts."""
    return await _answer(call, body)


async def infill(call: Call, body: InfillRequest) -> Response:
    """Fill a hole."""
    return await _answer(call, body)


async def _answer(call: Call, body: CompletionRequest | InfillRequest) -> Response:
    generate = body.to_generate()
    answers = await call.begin(body.model, generate)
    if body.stream:
        return Stream(_events(answers, body), on_close=answers.close)
    choices = await call.collect(answers)
    listed = [_whole(answers, body, number, choice) for number, choice in enumerate(choices)]
    return json_response(listed if len(listed) > 1 else listed[0])


def _tokens(body: Options, entries: list[dict[str, Any]] | None) -> dict[str, Any]:
    """Return the tokens of a piece, and their probabilities where a body names a number of them."""
    listed = entries or []
    found: dict[str, Any] = {"tokens": [each["id"] for each in listed] if body.return_tokens else []}
    return found | ({"completion_probabilities": listed} if body.n_probs else {})


def _whole(answers: Answers, body: Options, index: int, choice: Choice) -> dict[str, Any]:
    piece = {"content": choice.text, **_tokens(body, choice.logprobs)}
    return {"index": index, **piece, **_ending(answers, choice.end)}


def _ending(answers: Answers, end: Finished) -> dict[str, Any]:
    """Return how an answer ended, and its times in milliseconds."""
    read = end.prompt_tokens - end.cached_tokens
    return {
        "id_slot": end.slot,
        "stop": True,
        "model": answers.model,
        "tokens_predicted": end.completion_tokens,
        "tokens_evaluated": end.prompt_tokens,
        "tokens_cached": end.cached_tokens,
        "truncated": False,
        "stop_type": _STOPS[end.reason],
        "stopping_word": end.stop_string or "",
        "timings": {
            "cache_n": end.cached_tokens,
            **_times("prompt", read, end.prompt_seconds),
            **_times("predicted", end.completion_tokens, end.seconds),
        },
    }


def _times(name: str, tokens: int, seconds: float) -> dict[str, float]:
    return {
        f"{name}_n": tokens,
        f"{name}_ms": 1e3 * seconds,
        f"{name}_per_token_ms": 1e3 * seconds / tokens if tokens else 0.0,
        f"{name}_per_second": tokens / seconds if seconds else 0.0,
    }


async def _events(answers: Answers, body: Options) -> AsyncGenerator[bytes]:
    """Yield the events of a stream; an error ends it."""
    try:
        async for each in answers:
            if isinstance(each, Delta):
                piece = {"content": each.text, **_tokens(body, each.logprobs)}
                yield event({"index": each.index, **piece, "stop": False, "id_slot": -1})
            else:
                yield event({"index": each.index, "content": "", "tokens": [], **_ending(answers, each)})
    except ApiError as error:
        yield event(openai_error(error))


ENDPOINTS = (
    post("/completion", CompletionRequest, complete),
    post("/completions", CompletionRequest, complete),
    post("/infill", InfillRequest, infill),
)
