"""Many prompts at once: ``generate_many``, and files of prompts that are answered line by line."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from rung.core.errors import BadFile, DiskFull, RungError, UsageError
from rung.core.files import FULL
from rung.core.locks import lock_open_file
from rung.engine.generation import Generation
from rung.engine.openai_forms import (
    LABELS,
    OPTIONS,
    REASONS,
    chat_logprobs,
    join_texts,
    options_of,
    template_role,
    text_logprobs,
    usage,
)
from rung.engine.scheduling.scheduler import Scheduler
from rung.formats.codec import Floats

#: Prompts for each sequence that is computed which wait for room: their tokens are known when there is some.
_QUEUE = 2


@dataclass(frozen=True)
class Answer:
    """The answer to one of many prompts: its text and tokens, and ``result`` as ``Generation`` has it.

    Where there is none, ``error`` says why; text and tokens are those that came before it.
    """

    text: str
    tokens: list[int]
    result: dict[str, Any]
    error: RungError | None = None


def as_completed(scheduler: Scheduler, jobs: Iterator[Callable[[], Generation]]) -> Iterator[tuple[int, Answer]]:
    """Yield the number of each job with its answer, as they are done. A job starts an answer."""
    most, left = _QUEUE * scheduler.parallel, enumerate(jobs)
    live: dict[int, Generation] = {}
    try:
        while True:
            while len(live) < most and (job := next(left, None)) is not None:
                number, start = job
                try:
                    live[number] = start()
                    live[number].begin()
                except RungError as error:
                    yield number, Answer("", [], {}, error)
            if not live:
                return
            scheduler.advance(*(each.sequence for each in live.values()))
            for number, each in list(live.items()):
                if (answer := _take(each)) is not None:
                    del live[number]
                    yield number, answer
    finally:
        for each in live.values():
            scheduler.cancel(each.sequence)


def _take(generation: Generation) -> Answer | None:
    """Return the answer where it has ended, or None."""
    error = None
    try:
        generation.take()
    except RungError as found:
        error = found
    if not generation.result and error is None:
        return None
    return Answer(generation.text, list(generation.tokens), generation.result, error)


#: Fields with the only values that may be asked for: those by which nothing changes.
_PLAIN = {"n": (1, None), "stream": (False, None), "best_of": (1, None), "echo": (False, None)}
#: Options of ``generate`` that OpenAI has not.
_OWN = ("system", "raw")
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
    fields = {name: value for name, value in body.items() if value is not None and name not in LABELS}
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
    fields = {name: value for name, value in body.items() if value is not None and name not in LABELS}
    model = fields.pop("model", None)
    try:
        prompt = _prompt(fields, url)
        if url == COMPLETION and "logprobs" in fields:  # a number there, True elsewhere
            fields |= {"logprobs": True, "top_logprobs": fields["logprobs"]}
        options = {name: fields.pop(name) for name in _OWN if name in fields}
        for name, value in fields.items():
            _check(name, value)
        options |= options_of(fields)
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
        content = join_texts(part["text"] for part in content)
    if not isinstance(content, str):
        raise ValueError("a message has no content")
    return {"role": template_role(message["role"]), "content": content}


def _check(name: str, value: Any) -> None:
    """Raise ``ValueError`` for a field that is unknown or makes no sense; ``Sampling`` looks at values more closely."""
    if name in _PLAIN and value in _PLAIN[name]:
        return
    if name in _PLAIN or name not in OPTIONS:
        raise ValueError(f"{name} {value!r} is not supported" if name in _PLAIN else f"{name} is not supported")
    if name == "stop":
        several = [value] if isinstance(value, str) else value
        if not isinstance(several, list) or not all(isinstance(each, str) and each for each in several):
            raise ValueError("stop is neither a text nor a list of texts")
    elif name not in ("logit_bias", "logprobs"):
        whole = OPTIONS[name] == "max_tokens"
        if isinstance(value, bool) or not isinstance(value, int if whole else int | float) or (whole and value < 1):
            raise ValueError(f"{name} {value!r} makes no sense")


class Results:
    """The answers that are there, by the keys of their requests. Made by ``opened``."""

    def __init__(self, path: Path, file: IO[bytes], model: str) -> None:
        self.path, self._file, self._model = path, file, model
        self.done: set[str | int] = set()
        self._read()

    def _read(self) -> None:
        """Note what is done, and cut off a line that was not written to its end. Raises ``BadFile``."""
        whole = 0
        self._file.seek(0)
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                break
            try:
                entry = json.loads(line)
                self.done.add(entry["custom_id"] if "custom_id" in entry else entry["line"])
            except (ValueError, KeyError, TypeError) as error:
                raise BadFile(
                    f"{self.path} is there and is no file of answers: line {number} is none",
                    [line[:80].decode("utf-8", "replace").strip()],
                    ["name another file for the answers"],
                ) from error
            whole += len(line)
        self._file.truncate(whole)
        self._file.seek(whole)

    def add(self, request: Request, answer: Answer) -> None:
        """Write an answer down. Raises ``DiskFull``."""
        self._write(request, self._entry(request, answer))

    def add_embeddings(self, request: Request, vectors: Floats, tokens: int) -> None:
        """Write the embeddings [texts, hidden] of a request down, whose texts have so many tokens. Raises
        ``DiskFull``."""
        packs = request.options["encoding_format"] == "base64"
        shown = [_base64(each) if packs else each.tolist() for each in vectors]
        data = [{"object": "embedding", "index": n, "embedding": each} for n, each in enumerate(shown)]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        self._write(
            request, _response(request, 200, {"object": "list", "data": data, "model": self._model, "usage": usage})
        )

    def refuse(self, request: Request, error: RungError) -> None:
        """Write down why a request of OpenAI's has no answer. Raises ``DiskFull``."""
        self._write(request, _response(request, 400, _error(error.cause)))

    def _write(self, request: Request, entry: dict[str, Any]) -> None:
        line = json.dumps(entry, ensure_ascii=False).encode() + b"\n"
        start = self._file.tell()
        try:
            self._file.write(line)
            self._file.flush()
        except OSError as error:
            if error.errno not in FULL:
                raise
            os.truncate(self._file.fileno(), start)
            raise DiskFull(
                f"There is no room for {self.path}.",
                [f"{len(self.done):,} answers are in it"],
                ["make room and give the same command again: it goes on after them"],
            ) from error
        self.done.add(request.key)

    def _entry(self, request: Request, answer: Answer) -> dict[str, Any]:
        reason = "" if answer.error is None else answer.error.cause
        if not request.url and isinstance(request.key, int):
            prompt = {"prompt" if isinstance(request.prompt, str) else "messages": request.prompt}
            if reason:
                return {"line": request.key, **prompt, "error": reason}
            ended = REASONS[answer.result["stop_reason"]]
            more = {name: answer.result[name] for name in ("logprobs",) if name in answer.result}
            found = {"text": answer.text, "finish_reason": ended, **more, "usage": _usage(answer)}
            return {"line": request.key, **prompt, **found}
        return (
            _response(request, 400, _error(reason)) if reason else _response(request, 200, self._body(request, answer))
        )

    def _body(self, request: Request, answer: Answer) -> dict[str, Any]:
        ended = REASONS[answer.result["stop_reason"]]
        chats = request.url != COMPLETION
        text = {"message": {"role": "assistant", "content": answer.text}} if chats else {"text": answer.text}
        return {
            "id": f"{'chatcmpl' if chats else 'cmpl'}-{request.key}",
            "object": "chat.completion" if chats else "text_completion",
            "created": int(time.time()),
            "model": self._model,
            "choices": [{"index": 0, **text, "finish_reason": ended, "logprobs": _logprobs(answer, chats)}],
            "usage": _usage(answer),
        }


def _response(request: Request, status: int, body: dict[str, Any]) -> dict[str, Any]:
    response = {"status_code": status, "request_id": f"req_{request.key}", "body": body}
    return {"id": f"batch_req_{request.key}", "custom_id": request.key, "response": response, "error": None}


def _error(reason: str) -> dict[str, Any]:
    return {"error": {"message": reason, "type": "invalid_request_error", "param": None, "code": None}}


def _base64(vector: Floats) -> str:
    """Return float32, little endian, as OpenAI writes them."""
    return base64.b64encode(vector.astype("<f4").tobytes()).decode()


def _logprobs(answer: Answer, chats: bool) -> dict[str, Any] | None:
    entries = answer.result.get("logprobs")
    return chat_logprobs(entries) if chats else text_logprobs(entries)


def _usage(answer: Answer) -> dict[str, Any]:
    return usage(answer.result["prompt_tokens"], len(answer.tokens), answer.result["cached_tokens"])


@contextmanager
def opened(path: Path, model: str) -> Iterator[Results]:
    """Open the file of answers of ``model``, which may have some already. One without any is not left behind.

    Raises ``UsageError`` where it cannot be written or another process writes it, and ``BadFile``.
    """
    try:
        file = open(path, "a+b")  # noqa: SIM115 - closed below
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.", code="output-unwritable") from error
    with file:
        if not lock_open_file(file):
            raise UsageError(f"Another process writes {path}.", ways_out=["wait for it, or name another file"])
        try:
            yield Results(path, file, model)
        finally:
            if not os.fstat(file.fileno()).st_size:
                with suppress(OSError):  # Windows keeps what is open
                    path.unlink()
