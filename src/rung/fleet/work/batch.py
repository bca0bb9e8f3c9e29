"""``rung batch --fleet``: many requests through the router of the fleet, so many at once that no node is idle."""

from __future__ import annotations

import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from rung.core.errors import RungError
from rung.engine.batches import EMBEDDINGS, Answer, Request, Results
from rung.fleet import control_client
from rung.fleet.keys.folder import Folder
from rung.fleet.messages import BatchAnswer, BatchRequest, FleetStatus

#: Requests that are under way for each answer that nodes compute at once, and the most of all.
_AHEAD, _MOST = 2, 256
#: Seconds between two tries where the head does not answer, and that it may stay away.
_RETRY_SECONDS, _AWAY_SECONDS = 1.0, 300.0
#: Errors that pass: the head is gone or begins again, or no node has the model yet.
_PASSING = frozenset({"fleet-unreachable", "fleet-none", "fleet-busy"})


def message_of(request: Request, model: str) -> BatchRequest:
    """Return a line of a batch as the head takes it."""
    if request.url == EMBEDDINGS:
        return BatchRequest(model=model, texts=list(request.texts))
    options = {name: value for name, value in request.options.items() if name not in ("raw", "system")}
    common: dict[str, Any] = {"model": model, "options": options, "raw": bool(request.options.get("raw"))}
    if isinstance(request.prompt, str):
        return BatchRequest(prompt=request.prompt, system=request.options.get("system"), **common)
    return BatchRequest(messages=request.prompt, **common)


def width(status: FleetStatus, model: str) -> int:
    """Return how many requests are under way at once."""
    slots = sum(each.slots for node in status.nodes for each in node.models if each.model == model)
    return min(max(_AHEAD * slots, 2), _MOST)


class Line:
    """A connection to the head, made anew where it breaks: with the same command there the fleet comes back."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._client: control_client.Client | None = None

    def ask(self, message: BatchRequest, is_over: Callable[[], bool]) -> BatchAnswer:
        """Return the answer to a request. Raises ``RungError`` where the head stays away."""
        since = time.monotonic()
        while True:
            try:
                if self._client is None:
                    self._client = control_client.of_member(self._folder)
                return self._client.answer(message)
            except RungError as error:
                self.close()
                if error.code not in _PASSING or time.monotonic() - since > _AWAY_SECONDS or is_over():
                    raise
            time.sleep(_RETRY_SECONDS)

    def close(self) -> None:
        """Close it."""
        if self._client is not None:
            self._client.close()
            self._client = None


class _Workers:
    """Threads that each have one request under way. ``next_answer`` gives what they found."""

    def __init__(self, requests: Iterable[Request], model: str, count: int, folder: Folder) -> None:
        self._requests, self._lock, self._over = iter(requests), threading.Lock(), threading.Event()
        self._found: queue.SimpleQueue[tuple[Request, BatchAnswer] | Exception | None] = queue.SimpleQueue()
        self._model, self._folder, self._running = model, folder, count
        for number in range(count):
            threading.Thread(target=self._work, daemon=True, name=f"batch-{number}").start()

    def _work(self) -> None:
        """Have requests answered, one after the other."""
        line = Line(self._folder)
        try:
            while not self._over.is_set():
                with self._lock:
                    request = next(self._requests, None)
                if request is None:
                    break
                self._found.put((request, self._answer(request, line)))
            self._found.put(None)
        except Exception as error:
            self._found.put(error)
        finally:
            line.close()

    def _answer(self, request: Request, line: Line) -> BatchAnswer:
        if request.refusal:
            return BatchAnswer(error=request.refusal)
        return line.ask(message_of(request, self._model), self._over.is_set)

    def next_answer(self) -> tuple[Request, BatchAnswer] | None:
        """Return a request with its answer, None at the end. Raises what a thread raised."""
        while self._running:
            item = self._found.get()
            if isinstance(item, Exception):
                raise item
            if item is not None:
                return item
            self._running -= 1
        return None

    def stop(self) -> None:
        """Have no thread begin with another request."""
        self._over.set()


def answered(
    requests: Iterable[Request], model: str, count: int, folder: Folder
) -> Iterator[tuple[Request, BatchAnswer]]:
    """Yield requests with their answers as they come, ``count`` of them under way. Raises ``RungError``."""
    workers = _Workers(requests, model, count, folder)
    try:
        while (found := workers.next_answer()) is not None:
            yield found
    finally:
        workers.stop()


def write(
    found: Iterable[tuple[Request, BatchAnswer]], results: Results, on_answer: Callable[[], None]
) -> Counter[str]:
    """Write answers down as they come, each once; return how many each node gave, errors under no name."""
    nodes = Counter[str]()
    for request, answer in found:
        if request.key in results.done:
            continue
        if request.url == EMBEDDINGS and not answer.error:
            vectors = np.array([np.frombuffer(each, "<f4") for each in answer.vectors], np.float32)
            results.add_embeddings(request, vectors, answer.prompt_tokens)
        else:
            results.add(request, _as_answer(answer))
        nodes["" if answer.error else answer.node or "embeddings"] += 1
        on_answer()
    return nodes


def _as_answer(found: BatchAnswer) -> Answer:
    """Return an answer as that of a model in this process."""
    result: dict[str, Any] = {
        "stop_reason": found.reason,
        "prompt_tokens": found.prompt_tokens,
        "cached_tokens": found.cached_tokens,
    }
    if found.logprobs is not None:
        result["logprobs"] = found.logprobs
    answer = Answer(found.text, found.tokens, result)
    return replace(answer, error=RungError(found.error, code="fleet-answer")) if found.error else answer
