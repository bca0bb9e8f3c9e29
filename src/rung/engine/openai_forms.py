"""Forms of OpenAI that requests and answers have in batches and over HTTP: what their fields mean is said here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

#: OpenAI's words for why an answer ended.
REASONS = {"end": "stop", "stop": "stop", "length": "length", "context": "length", "stopped": "stop"}

#: Options of ``Model.generate`` by what OpenAI's bodies, and others like them, call them. Of two fields of one option
#: the later one here counts.
OPTIONS = {
    "max_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "logit_bias": "logit_bias",
    "logprobs": "logprobs",
    "top_logprobs": "top_logprobs",
    "seed": "seed",
    "stop": "stop",
    "repetition_penalty": "repeat_penalty",
    "repeat_penalty": "repeat_penalty",
}
#: Fields that change nothing of an answer.
LABELS = ("user", "metadata", "store", "safety_identifier", "service_tier", "prompt_cache_key")


def options_of(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that fields of a body mean; one that is None means nothing."""
    found = {option: fields[name] for name, option in OPTIONS.items() if fields.get(name) is not None}
    if isinstance(found.get("stop"), str):
        found["stop"] = [found["stop"]]
    return found


def join_texts(texts: Iterable[str], between: str = "\n") -> str:
    """Return the text of a message that came in parts, each on a line of its own: templates read one text, and
    llama-server and vLLM join parts so."""
    return between.join(filter(None, texts))


def template_role(role: str) -> str:
    """Return a role as chat templates know it; ``developer`` is the newer word for ``system``."""
    return "system" if role == "developer" else role


def usage(prompt: int, answer: int, cached: int) -> dict[str, Any]:
    """Return token counts as OpenAI's ``usage``: of the prompts, of the answers, and of the cached prompts."""
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def chat_logprobs(entries: Sequence[dict[str, Any]] | None) -> dict[str, Any] | None:
    """Return log probabilities, entries as ``Model.chat`` has them, as chat completions have them."""
    return None if entries is None else {"content": [_without_id(each) for each in entries], "refusal": None}


def _without_id(entry: dict[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in entry.items() if name != "id"}
    if "top_logprobs" in found:
        found["top_logprobs"] = [_without_id(each) for each in found["top_logprobs"]]
    return found


def text_logprobs(entries: Sequence[dict[str, Any]] | None, offset: int = 0) -> dict[str, Any] | None:
    """Return log probabilities as completions have them, of tokens whose text begins at ``offset``."""
    if entries is None:
        return None
    tokens = [entry["token"] for entry in entries]
    return {
        "tokens": tokens,
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": [None if entry["logprob"] is None else _likely(entry) for entry in entries],
        "text_offset": [*accumulate(map(len, tokens), initial=offset)][: len(tokens)],
    }


def _likely(entry: dict[str, Any]) -> dict[str, float]:
    return {like["token"]: like["logprob"] for like in entry["top_logprobs"]}
