"""The lines of a file of prompts: what each asks for, and what it is called."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rung.core.errors import UsageError

#: Fields of ``generate`` by what OpenAI's requests, and others like them, call them.
_OPTIONS = {
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
    "repeat_penalty": "repeat_penalty",
    "repetition_penalty": "repeat_penalty",
}
#: Fields that change nothing of an answer.
_LABELS = ("user", "metadata", "store", "safety_identifier", "service_tier")
#: Fields with the only values that may be asked for: those by which nothing changes.
_PLAIN = {"n": (1, None), "stream": (False, None), "best_of": (1, None), "echo": (False, None)}
CHAT, COMPLETION, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
#: Ways to write an embedding: a list of numbers, or its float32 in base64.
_ENCODINGS = ("float", "base64")


@dataclass(frozen=True)
class Request:
    """Hold a request: a prompt or messages, with the options of ``Model.generate``; or texts for ``Model.embed``.

    ``key`` names it in the file of answers: its ``custom_id``, or the number of the line. ``url`` is empty where the
    line is none of OpenAI's. ``refusal`` says why it cannot be answered.
    """

    key: str | int
    prompt: str | list[dict[str, str]] = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    url: str = ""
    model: str | None = None
    refusal: str = ""
    texts: tuple[str, ...] = ()


def read(file: Path) -> Iterator[Request]:
    """Yield the request of each line that is not empty.

    Raises ``UsageError`` for a file that cannot be read, with the line for one that begins like JSON and is none, and
    for a ``custom_id`` that is there twice.
    """
    keys: set[str | int] = set()
    try:
        with open(file, encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, 1):
                if line.strip():
                    request = _request(line.strip(), number, f"{file.name}, line {number}")
                    if request.key in keys:
                        raise UsageError(f"{file.name}, line {number}: custom_id {request.key!r} is there twice.")
                    keys.add(request.key)
                    yield request
    except (OSError, UnicodeDecodeError) as error:
        reason = "it is no UTF-8 text" if isinstance(error, UnicodeDecodeError) else error.strerror or str(error)
        raise UsageError(
            f"{file} cannot be read: {reason}.",
            ["it must be a file of prompts, one a line"],
            ["rung batch prompts.jsonl answers.jsonl --model smollm2"],
            code="file-unreadable",
        ) from error


def _request(line: str, number: int, where: str) -> Request:
    if not line.startswith(("{", '"')):
        return Request(number, line)
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where} begins like JSON and is none: {error}", code="json-invalid") from error
    if isinstance(fields, str):
        return Request(number, fields)
    if "custom_id" not in fields and "body" not in fields:
        return _of_body(number, fields, "")
    key, url, body = fields.get("custom_id"), fields.get("url", CHAT), fields.get("body")
    if not isinstance(key, str) or not key:
        raise UsageError(f"{where} has no custom_id.", [f'{{"custom_id": "1", "url": "{CHAT}", "body": {{...}}}}'])
    if url not in (CHAT, COMPLETION, EMBEDDINGS):
        return Request(key, url=str(url), refusal=f"url {url!r} is none of {CHAT}, {COMPLETION} and {EMBEDDINGS}")
    if not isinstance(body, dict):
        return Request(key, url=url, refusal="body is no object")
    return _of_input(key, body) if url == EMBEDDINGS else _of_body(key, body, url)


def _of_input(key: str, body: dict[str, Any]) -> Request:
    """Return the request for embeddings that a body makes."""
    fields = {name: value for name, value in body.items() if value is not None and name not in _LABELS}
    model, texts, encoding = (
        fields.pop("model", None),
        fields.pop("input", None),
        fields.pop("encoding_format", "float"),
    )
    several = [texts] if isinstance(texts, str) else texts
    refusal = ""
    if not isinstance(several, list) or not several or not all(isinstance(text, str) for text in several):
        refusal, several = "input is neither a text nor a list of texts", []
    elif encoding not in _ENCODINGS:
        refusal = f"encoding_format {encoding!r} is none of {' and '.join(_ENCODINGS)}"
    elif fields:
        refusal = f"{next(iter(fields))} is not supported"
    return Request(key, "", {"encoding_format": encoding}, EMBEDDINGS, model, refusal, tuple(several))


def _of_body(key: str | int, body: dict[str, Any], url: str) -> Request:
    fields = {name: value for name, value in body.items() if value is not None and name not in _LABELS}
    model = fields.pop("model", None)
    try:
        prompt = _prompt(fields, url)
        if url == COMPLETION and "logprobs" in fields:  # a number there, True elsewhere
            fields |= {"logprobs": True, "top_logprobs": fields["logprobs"]}
        options = dict(_option(name, value) for name, value in fields.items() if name not in _PLAIN)
        for name, values in _PLAIN.items():
            if name in fields and fields[name] not in values:
                raise ValueError(f"{name} {fields[name]!r} is not supported")
    except ValueError as error:
        return Request(key, url=url, model=model, refusal=str(error))
    return Request(key, prompt, options, url, model)


def _prompt(fields: dict[str, Any], url: str) -> str | list[dict[str, str]]:
    """Take the prompt or the messages out of a body. Raises ``ValueError``."""
    if url == COMPLETION or (not url and "prompt" in fields):
        prompt = fields.pop("prompt", None)
        if not isinstance(prompt, str):
            raise ValueError("prompt is no text")
        if url:
            fields["raw"] = True
        return prompt
    messages = fields.pop("messages", None)
    if not isinstance(messages, list) or not messages:
        raise ValueError("messages are no list" if url else "there is neither a prompt nor messages")
    return [_message(message) for message in messages]


def _message(message: Any) -> dict[str, str]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ValueError("a message has no role")
    content = message.get("content")
    if isinstance(content, list):
        if not all(isinstance(part, dict) and isinstance(part.get("text"), str) for part in content):
            raise ValueError("a message has content that is no text")
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str):
        raise ValueError("a message has no content")
    return {"role": message["role"], "content": content}


def _option(name: str, value: Any) -> tuple[str, Any]:
    if name in ("system", "raw"):
        return name, value
    if name not in _OPTIONS:
        raise ValueError(f"{name} is not supported")
    if name == "stop":
        several = [value] if isinstance(value, str) else value
        if not isinstance(several, list) or not all(isinstance(each, str) and each for each in several):
            raise ValueError("stop is neither a text nor a list of texts")
        return name, tuple(several)
    if name in ("logit_bias", "logprobs"):  # ``Sampling`` checks them
        return name, value
    whole = name in ("max_tokens", "max_completion_tokens")
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or (whole and value < 1):
        raise ValueError(f"{name} {value!r} makes no sense")
    return _OPTIONS[name], value
