"""The file of answers: a line for each, written as it comes, so that the same command goes on after a stop."""

from __future__ import annotations

import base64
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from rung.core.errors import BadFile, DiskFull, RungError, UsageError
from rung.core.files import FULL
from rung.core.locks import lock_open_file
from rung.engine.batches.generate_many import Answer
from rung.engine.batches.openai_forms import REASONS, chat_logprobs, text_logprobs, usage
from rung.engine.batches.requests import COMPLETION, Request
from rung.formats.codec import Floats


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
