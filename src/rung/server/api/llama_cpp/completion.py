"""llama.cpp's own completions: prompts that are continued as they are, and holes that are filled."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.responses import Response

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
    is_token_id,
    lora_scales,
    named_slot,
    schema_grammar,
)
from rung.server.api.shared import Prompts, progress, prompts_of, selected, settings, timings
from rung.server.errors import ApiError, openai_error
from rung.server.http import Stream, event, json_response
from rung.server.protocol import Delta, Finished, Generate, Grammar, Infill, PromptRead
from rung.server.service import Answers, Call, Choice, post

_STOPS = {"end": "eos", "stop": "word", "length": "limit", "context": "limit"}
_Bias = Annotated[float, Meta(ge=-100, le=100)] | Literal[False]
#: A token by its id, or all those of a text.
_Biased = TokenId | Annotated[str, Meta(min_length=1, max_length=256)]
_FORBIDDEN = -100.0


class Options(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """Options of llama.cpp's completions. ``cache_prompt`` changes nothing of an answer: prefixes are always shared.
    ``id_slot`` is the slot whose content it then is, -1 any. ``seed`` -1 draws anew, ``n_predict`` -1 goes on to the
    end. ``logit_bias`` names tokens by ids or texts, false forbids them, as ``ignore_eos`` does those of an end.
    ``timings_per_token`` and ``return_progress`` are for streams; ``response_fields`` chooses fields by paths."""

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
    logit_bias: (
        Annotated[list[tuple[_Biased, _Bias]], Meta(max_length=4096)]
        | Annotated[dict[str, _Bias], Meta(max_length=4096)]
        | None
    ) = None
    ignore_eos: bool | None = None
    n_probs: Annotated[int, Meta(ge=0, le=100)] | None = None
    grammar: GrammarText | None = None
    json_schema: dict[str, Any] | None = None
    lora: LoraScales = None
    return_tokens: bool | None = None
    stream: bool | None = None
    cache_prompt: bool | None = None
    id_slot: SlotNumber | None = None
    timings_per_token: bool | None = None
    return_progress: bool | None = None
    response_fields: Annotated[list[Annotated[str, Meta(max_length=256)]], Meta(max_length=64)] | None = None

    def to_options(self) -> dict[str, Any]:
        """Return the options of ``Model.chat``."""
        names = ("temperature", "top_k", "top_p", "min_p", "typical_p", "repeat_penalty")
        more = ("presence_penalty", "frequency_penalty", "stop")
        found: dict[str, Any] = {name: value for name in names + more if (value := getattr(self, name)) is not None}
        if self.n_predict is not None and self.n_predict >= 0:
            found["max_tokens"] = self.n_predict
        if self.seed is not None and self.seed >= 0:
            found["seed"] = self.seed
        if ids := {name: bias for name, bias in self._biases() if isinstance(name, int)}:
            found["logit_bias"] = ids
        if self.n_probs or self.return_tokens:
            found |= {"logprobs": True, "top_logprobs": self.n_probs or 0}
        return found

    def _biases(self) -> list[tuple[int | str, float]]:
        """Return biases by ids and texts; a key of an object that is a number is an id."""
        listed = self.logit_bias.items() if isinstance(self.logit_bias, dict) else self.logit_bias or ()
        is_object = isinstance(self.logit_bias, dict)
        return [
            (
                int(name) if is_object and isinstance(name, str) and is_token_id(name) else name,
                _FORBIDDEN if bias is False else bias,
            )
            for name, bias in listed
        ]

    def generate(self, prompts: list[str | list[int | str] | Infill]) -> Generate:
        """Return the request to an engine for prompts. Raises ``ApiError``."""
        return Generate(
            prompts=prompts,
            options=self.to_options(),
            grammar=self.form(),
            adapters=lora_scales(self.lora),
            slot=named_slot(self.id_slot),
            text_bias=[(name, bias) for name, bias in self._biases() if isinstance(name, str)],
            ignore_end=bool(self.ignore_eos),
            times=bool(self.timings_per_token and self.stream),
            progress=bool(self.return_progress and self.stream),
            details=True,
        )

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

    prompt: Prompts

    def to_generate(self) -> Generate:
        """Return the request to an engine. Raises ``ApiError``."""
        return self.generate([*prompts_of(self.prompt)])


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
        return self.generate([hole])


async def complete(call: Call, body: CompletionRequest) -> Response:
    """Continue prompts."""
    return await _answer(call, body)


async def infill(call: Call, body: InfillRequest) -> Response:
    """Fill a hole."""
    return await _answer(call, body)


async def _answer(call: Call, body: CompletionRequest | InfillRequest) -> Response:
    generate = body.to_generate()
    answers = await call.begin(body.model, generate, streams=bool(body.stream))
    if body.stream:
        return Stream(_events(answers, body), on_close=answers.close)
    choices = await call.collect(answers)
    listed = [_whole(answers, body, number, choice) for number, choice in enumerate(choices)]
    if body.response_fields:
        listed = [selected(each, body.response_fields) for each in listed]
    return json_response(listed if len(listed) > 1 else listed[0])


def _tokens(body: Options, entries: list[dict[str, Any]] | None, end: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the tokens of a piece, and their probabilities where a body names a number of them; the token that is the
    ``end`` is no part of the answer, and has probabilities, too."""
    listed = entries or []
    found: dict[str, Any] = {"tokens": [each["id"] for each in listed] if body.return_tokens else []}
    return found | ({"completion_probabilities": [*listed, *([end] if end else [])]} if body.n_probs else {})


def _whole(answers: Answers, body: Options, index: int, choice: Choice) -> dict[str, Any]:
    piece = {"content": choice.text, **_tokens(body, choice.logprobs, choice.end.end_token)}
    return {"index": index, **piece, **_ending(answers, body, choice.end, choice.text)}


def _ending(answers: Answers, body: Options, end: Finished, text: str) -> dict[str, Any]:
    """Return how an answer of a text ended, and its times in milliseconds."""
    n_predict = -1 if body.n_predict is None else body.n_predict
    return {
        "id_slot": end.slot,
        "stop": True,
        "model": answers.model,
        "tokens_predicted": end.completion_tokens,
        "tokens_evaluated": end.prompt_tokens,
        "tokens_cached": end.cached_tokens,
        "generation_settings": settings(end, n_predict, stream=bool(body.stream)),
        "prompt": end.prompt,
        "has_new_line": "\n" in text,
        "truncated": end.reason == "context",
        "stop_type": _STOPS[end.reason],
        "stopping_word": end.stop_string or "",
        "timings": timings(end.times),
        "rung": answers.rung([end]),
    }


async def _events(answers: Answers, body: Options) -> AsyncGenerator[bytes]:
    """Yield the events of a stream; an error ends it."""
    texts: dict[int, str] = {}
    try:
        await answers.begun()
        async for each in answers.all_events():
            match each:
                case Delta():
                    texts[each.index] = texts.get(each.index, "") + each.text
                    yield event(_piece(body, each))
                case PromptRead():
                    yield event({**_head(each.index), "tokens": [], "prompt_progress": progress(each), **_so_far(each)})
                case Finished():
                    if body.n_probs and each.end_token:
                        yield event({**_head(each.index), **_tokens(body, None, each.end_token)})
                    ending = _ending(answers, body, each, texts.get(each.index, ""))
                    yield event({"index": each.index, "content": "", "tokens": [], **ending})
    except ApiError as error:
        yield event(openai_error(error))


def _head(index: int) -> dict[str, Any]:
    return {"index": index, "content": "", "stop": False, "id_slot": -1}


def _so_far(each: Delta | PromptRead) -> dict[str, Any]:
    return {} if each.times is None else {"timings": timings(each.times)}


def _piece(body: Options, delta: Delta) -> dict[str, Any]:
    """Return the event of a piece; its tokens are always there."""
    piece = {**_head(delta.index), **_tokens(body, delta.logprobs), "content": delta.text}
    return {**piece, "tokens": delta.tokens, **_so_far(delta)}


ENDPOINTS = (
    post("/completion", CompletionRequest, complete),
    post("/completions", CompletionRequest, complete),
    post("/infill", InfillRequest, infill),
)
