"""Additions of llama.cpp to answers: times, how far a prompt is read, and the settings that an answer had."""

from __future__ import annotations

from typing import Any

from rung.server.protocol import Finished, PromptRead, Times

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
