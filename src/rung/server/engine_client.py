"""An engine from the HTTP process's side: its child process, started again when it ends, and requests by id."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

from rung.core.errors import RungError
from rung.server import protocol
from rung.server.errors import ApiError
from rung.server.protocol import (
    Cancel,
    Failed,
    Finished,
    Generate,
    Load,
    ModelInfo,
    Note,
    Progress,
    Question,
    Ready,
    Started,
    Step,
    Value,
)

#: What an answer consists of: its beginning, what it got longer by, and its end.
Event = Started | protocol.Delta | Finished

#: Seconds that a request waits for an engine that is being started.
_START_SECONDS = 30.0
#: Seconds to wait before an engine is started again, at first and at most; twice as long each time it ends unready.
_FIRST_PAUSE, _MOST_PAUSE = 0.1, 30.0
#: Seconds that an engine has to end by itself.
_END_SECONDS = 1.0
#: Nothing of the folder that this process runs in stands for a module of the child.
_CHILD = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from rung.server.engine_child import main; main()"


class EngineClient:
    """One model: a child process that is kept running, and the requests that it answers.

    ``on_note`` is called with sentences for whoever started the server, ``on_progress`` while weights are read.
    """

    def __init__(
        self,
        load: Load,
        on_note: Callable[[str], None] = lambda text: None,
        on_progress: Callable[[str, int, int], None] = lambda label, done, total: None,
    ) -> None:
        self._load, self._on_note, self._on_progress = load, on_note, on_progress
        self._ids = itertools.count(1)
        self._events: dict[int, asyncio.Queue[Event | Value | Failed]] = {}
        self._ready = asyncio.Event()
        self._writer: asyncio.StreamWriter | None = None
        self._process: subprocess.Popen[bytes] | None = None
        #: The model, once it is loaded.
        self.model: ModelInfo | None = None
        #: Why it cannot be loaded, if that is so.
        self.failed: Failed | None = None
        #: How often the child was started.
        self.starts = 0

    @property
    def is_ready(self) -> bool:
        """Return whether it answers now."""
        return self._ready.is_set()

    @property
    def process_id(self) -> int | None:
        """Return the id of the child process, if there is one."""
        return None if self._process is None else self._process.pid

    async def run(self) -> None:
        """Keep the engine running until this is cancelled. Raises ``RungError`` where the model cannot be loaded the
        first time."""
        pause = _FIRST_PAUSE
        while True:
            was_ready = await self._run_once()
            if self.failed is not None and self.model is None:
                raise _load_error(self.failed)
            if self.model is None:
                raise RungError(
                    "The engine ended while it loaded the model.",
                    ["the system may have ended it, for want of memory"],
                    ["rung serve MODEL --memory 2GB"],
                    code="engine-failed",
                )
            pause = _FIRST_PAUSE if was_ready else min(2 * pause, _MOST_PAUSE)
            self._on_note("The engine has ended; it is started again.")
            await asyncio.sleep(pause)

    async def _run_once(self) -> bool:
        """Start the child and read what it says until it ends; return whether it had loaded its model."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = process = subprocess.Popen(
                [sys.executable, "-P", "-c", _CHILD, json.dumps(sys.path)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # signals of the terminal are for this process, which ends the engine
            )
        self.starts += 1
        self.failed = None
        reader, self._writer = await asyncio.open_connection(sock=ours)
        try:
            self._send(self._load)
            while True:
                header = await reader.readexactly(protocol.HEADER)
                self._take(protocol.read_from_engine(await reader.readexactly(protocol.length(header))))
        except (asyncio.IncompleteReadError, OSError):
            return self._ready.is_set()
        finally:
            self._lose()
            await asyncio.shield(asyncio.to_thread(_end, process))

    def _take(self, message: protocol.FromEngine) -> None:
        """Hand a message to whom it is for."""
        match message:
            case Step():
                for delta in message.deltas:
                    self._put(delta.id, delta)
            case Started() | Finished() | Value():
                self._put(message.id, message)
            case Failed(id=0):
                self.failed = message
            case Failed():
                self._put(message.id, message)
            case Ready():
                self.model = message.model
                self._ready.set()
            case Note():
                self._on_note(message.text)
            case Progress():
                self._on_progress(message.label, message.done, message.total)

    def _put(self, number: int, event: Event | Value | Failed) -> None:
        if (events := self._events.get(number)) is not None:  # else it was cancelled a moment ago
            events.put_nowait(event)

    def _lose(self) -> None:
        """Tell all requests that their engine has ended."""
        self._ready.clear()
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        cause = "The engine ended while it computed this answer; it is started again."
        for number, events in self._events.items():
            events.put_nowait(Failed(id=number, status=503, code="engine_ended", cause=cause))

    def _send(self, message: protocol.ToEngine) -> None:
        if self._writer is not None:
            self._writer.write(protocol.frame(message))

    async def loaded(self) -> ModelInfo:
        """Return the model once it is loaded, however long that takes."""
        await self._ready.wait()
        assert self.model is not None
        return self.model

    async def wait_ready(self) -> ModelInfo:
        """Return the model once it is loaded. Raises ``ApiError`` (503) where that takes too long."""
        started = time.monotonic()
        try:
            async with asyncio.timeout(_START_SECONDS):
                return await self.loaded()
        except TimeoutError:
            waited = time.monotonic() - started
            raise ApiError(
                503, f"The model is not loaded after {waited:.0f} s.", code="model_loading", retry_after=10
            ) from None

    async def generate(self, request: Generate) -> AsyncGenerator[Event]:
        """Yield what comes of a request: ``Started``, then deltas and ends of its answers.

        Where the iterator is closed before, the request is cancelled. Raises ``ApiError``.
        """
        await self.wait_ready()
        number = request.id = next(self._ids)
        events = self._events[number] = asyncio.Queue()
        left = request.answers
        self._send(request)
        try:
            while left:
                found = await events.get()
                if isinstance(found, Failed):
                    left = 0
                    raise ApiError.of_failure(found)
                assert not isinstance(found, Value)
                left -= isinstance(found, Finished)
                yield found
        finally:
            del self._events[number]
            if left:
                self._send(Cancel(number))

    async def ask(self, question: Question) -> Any:
        """Return the answer to a question. Raises ``ApiError``."""
        await self.wait_ready()
        number = question.id = next(self._ids)
        events = self._events[number] = asyncio.Queue()
        self._send(question)
        try:
            found = await events.get()
        finally:
            del self._events[number]
        if isinstance(found, Failed):
            raise ApiError.of_failure(found)
        assert isinstance(found, Value)
        return found.value


def _load_error(failed: Failed) -> RungError:
    """Return the error of a model that could not be loaded, as the child raised it."""
    error = RungError(failed.cause, failed.facts, failed.ways_out, code=failed.code)
    error.exit_code = failed.exit_code
    return error


def _end(process: subprocess.Popen[bytes]) -> None:
    """Wait for the end of a process whose socket is closed, and end it where it does not."""
    try:
        process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
