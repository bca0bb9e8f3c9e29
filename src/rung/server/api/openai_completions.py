"""OpenAI's completions: prompts that are continued as they are, as texts or token ids."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import Annotated, Any

from msgspec import Meta
from starlette.responses import Response

from rung.engine.openai_forms import REASONS, text_logprobs
from rung.server.api.openai_fields import (
    FINGERPRINT,
    MOST_CHOICES,
    MOST_TOKENS,
    Sampled,
    ends_of,
    lora_scales,
    new_id,
    usage_of,
)
from rung.server.api.shared import Prompts, prompts_of, timings
from rung.server.errors import ApiError, openai_error
from rung.server.http import DONE, Stream, around_text, event, json_response, to_json
from rung.server.protocol import Delta, Echo, Finished, Generate
from rung.server.service import Answers, Call, Choice, post

#: Tokens of an answer where nobody says how many, as OpenAI has it.
_TOKENS = 16


class CompletionRequest(Sampled, kw_only=True):
    """A body of ``/v1/completions``."""

    prompt: Prompts
    logprobs: Annotated[int, Meta(ge=0, le=100)] | None = None
    max_tokens: Annotated[int, Meta(ge=0, le=MOST_TOKENS)] | None = None
    echo: bool | None = None
    best_of: Annotated[int, Meta(ge=1, le=MOST_CHOICES)] | None = None

    def to_generate(self) -> Generate:
        """Return the request to an engine. Raises ``ApiError``."""
        options = {"max_tokens": _TOKENS, **self.options()}
        if self.best_of not in (None, self.n or 1):
            raise ApiError(400, "best_of is not supported beside n.", param="best_of", code="unknown_parameter")
        if self.logprobs is not None:
            options |= {"logprobs": True, "top_logprobs": self.logprobs}
        return Generate(
            prompts=[*prompts_of(self.prompt)],
            options=options,
            n=self.n or 1,
            echo=bool(self.echo),
            grammar=self.form(),
            adapters=lora_scales(self.lora),
            prompt_logprobs=self.logprobs if self.echo else None,
        )


async def complete(call: Call, body: CompletionRequest) -> Response:
    """Continue prompts."""
    generate, with_usage = body.to_generate(), body.includes_usage
    answers = await call.begin(body.model, generate, streams=bool(body.stream))
    head = {
        "id": new_id("cmpl"),
        "object": "text_completion",
        "created": answers.created,
        "model": answers.model,
        **FINGERPRINT,
    }
    if body.stream:
        parts = _chunks(answers, generate, head, with_usage)
        return Stream(parts, on_close=answers.close, on_begin=answers.write_with)
    choices = await call.collect(answers)
    listed = [
        {
            "index": number,
            **_whole(choice, answers.echoes[number // generate.n] if answers.echoes else None),
            "finish_reason": REASONS[choice.end.reason],
        }
        for number, choice in enumerate(choices)
    ]
    ends = ends_of(choices)
    more = {"usage": usage_of(answers.prompt_tokens, ends), "timings": timings(ends[-1].times)}
    return json_response({**head, "choices": listed, **more, "rung": answers.rung(ends)})


def _whole(choice: Choice, echo: Echo | None) -> dict[str, Any]:
    """Return the text of an answer with its log probabilities, behind its prompt where that is asked for."""
    if echo is None:
        return {"text": choice.text, "logprobs": text_logprobs(choice.logprobs)}
    entries = None if echo.logprobs is None else [*echo.logprobs, *(choice.logprobs or ())]
    return {"text": echo.text + choice.text, "logprobs": text_logprobs(entries)}


async def _chunks(
    answers: Answers, generate: Generate, head: dict[str, Any], with_usage: bool
) -> AsyncGenerator[bytes]:
    """Yield the events of a stream; an error ends it."""
    more = {"usage": None} if with_usage else {}
    offsets: dict[int, int] = {}

    def chunk(index: int, text: str, reason: str | None, logprobs: Any) -> bytes:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        return event({**head, "choices": [choice], **more})

    around = [around_text(partial(chunk, number, reason=None, logprobs=None)) for number in range(generate.answers)]

    def encode(delta: Delta) -> bytes | None:
        return to_json(delta.text).join(around[delta.index]) if delta.text and delta.logprobs is None else None

    ends: list[Finished] = []
    try:
        await answers.begun()
        answers.encode = encode
        for number in range(generate.answers if answers.echoes else 0):
            echo = answers.echoes[number // generate.n]
            offsets[number] = sum(len(entry["token"]) for entry in echo.logprobs or ())
            yield chunk(number, echo.text, None, text_logprobs(echo.logprobs))
        async for each in answers:
            if isinstance(each, Delta) and (data := encode(each)) is not None:
                yield data
            elif isinstance(each, Delta):
                offset = offsets.get(each.index, 0)
                offsets[each.index] = offset + sum(len(entry["token"]) for entry in each.logprobs or ())
                yield chunk(each.index, each.text, None, text_logprobs(each.logprobs, offset))
            else:
                ends.append(each)
                yield chunk(each.index, "", REASONS[each.reason], None)
        if with_usage:
            cost = usage_of(answers.prompt_tokens, ends)
            yield event({**head, "choices": [], "usage": cost, "rung": answers.rung(ends)})
        yield DONE
    except ApiError as error:
        yield event(openai_error(error))


ENDPOINTS = (post("/v1/completions", CompletionRequest, complete),)
