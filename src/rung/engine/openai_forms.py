"""Forms of OpenAI that answers have in batches and over HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

#: OpenAI's words for why an answer ended.
REASONS = {"end": "stop", "stop": "stop", "length": "length", "context": "length", "stopped": "stop"}


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
