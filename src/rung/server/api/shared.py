"""Fields that several families of endpoints have in common."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from rung.server.api.openai_fields import MOST_PROMPTS, TokenId
from rung.server.errors import ApiError
from rung.server.protocol import Finished, PromptRead, Times


class TextPrompt(msgspec.Struct, forbid_unknown_fields=True):
    """llama.cpp's object of a prompt; what it has beside the text (``multimodal_data``) is not read here."""

    prompt_string: str


_Parts = Annotated[list[TokenId | str], Meta(max_length=2**20)]
Prompts = str | TextPrompt | Annotated[list[str | TokenId | TextPrompt | _Parts], Meta(max_length=2**20)]


def prompts_of(prompt: Prompts, field: str = "prompt", most: int = MOST_PROMPTS) -> list[str | list[int | str]]:
    """Return the prompts of a ``field`` of a body, each a text, or token ids that may have texts among them. Raises
    ``ApiError`` for more than ``most``.

    A list with token ids in it is one prompt; a list of texts is several.
    """
    if not isinstance(prompt, list):
        return [_one(prompt)]
    if any(isinstance(each, int) for each in prompt) and all(isinstance(each, int | str) for each in prompt):
        return [[each for each in prompt if isinstance(each, int | str)]]
    several = [_one(each) for each in prompt if not isinstance(each, int)]
    if not several or len(several) != len(prompt) or len(several) > most or [] in several:
        raise ApiError(
            400,
            f"{field} is a text, token ids, or a list of up to {most:,} of them.",
            param=field,
            code="invalid_value",
        )
    return several


def _one(prompt: str | TextPrompt | list[int | str]) -> str | list[int | str]:
    return prompt.prompt_string if isinstance(prompt, TextPrompt) else prompt


#: Settings of llama.cpp for samplers that rung has not, each with the value that turns it off there.
_OFF = {
    "dynatemp_range": 0.0,
    "dynatemp_exponent": 1.0,
    "top_n_sigma": -1.0,
    "xtc_probability": 0.0,
    "xtc_threshold": 0.1,
    "dry_multiplier": 0.0,
    "mirostat": 0,
    "adaptive_target": -1.0,
    "adaptive_decay": 0.0,
}
#: What a bias of this size means: the token shall not come.
_FORBIDS = -100.0
#: llama.cpp's number for a seed that was drawn, where nothing is drawn with it.
_NO_SEED = 2**32 - 1


def timings(times: Times) -> dict[str, float]:
    """Return tokens and milliseconds as llama.cpp writes them."""
    return {
        "cache_n": times.cached,
        **_rates("prompt", times.read, times.read_seconds),
        **_rates("predicted", times.predicted, times.predicted_seconds, max(times.predicted - 1, 0)),
    }


def _rates(name: str, tokens: int, seconds: float, computed: int | None = None) -> dict[str, float]:
    """Return a count, milliseconds, and rates of those that took the time: the first token comes of the prompt."""
    computed = tokens if computed is None else computed
    return {
        f"{name}_n": tokens,
        f"{name}_ms": 1e3 * seconds,
        f"{name}_per_token_ms": 1e3 * seconds / computed if computed else 0.0,
        f"{name}_per_second": computed / seconds if seconds else 0.0,
    }


def progress(read: PromptRead) -> dict[str, Any]:
    """Return how far a prompt is read: tokens, those that were known before among them, and milliseconds."""
    times = read.times
    return {
        "total": read.total,
        "cache": times.cached,
        "processed": times.cached + times.read,
        "time_ms": round(1e3 * times.read_seconds),
    }


def settings(end: Finished, n_predict: int, *, stream: bool) -> dict[str, Any]:
    """Return the settings that an answer had, as llama.cpp names them."""
    known = {**end.settings}
    biases = [
        {"token": token, "bias": None if bias <= _FORBIDS else bias} for token, bias in known.pop("logit_bias", ())
    ]
    logprobs, top = known.pop("logprobs", False), known.pop("top_logprobs", 0)
    seed = _NO_SEED if end.seed is None else end.seed
    found = {**known, "seed": known.get("seed") if known.get("seed") is not None else seed, **_OFF}
    return {
        **found,
        "logit_bias": biases,
        "n_probs": top if logprobs else 0,
        "n_predict": n_predict,
        "max_tokens": n_predict,
        "stream": stream,
    }


def selected(document: dict[str, Any], fields: list[str]) -> dict[str, Any]:
    """Return the fields of a document that paths name, as ``generation_settings/n_predict``, under these names; those
    that are not there are left out."""
    found = {}
    for path in fields:
        value: Any = document
        for name in path.split("/"):
            value = value.get(name, ...) if isinstance(value, dict) else ...
        if value is not ...:
            found[path] = value
    return found
