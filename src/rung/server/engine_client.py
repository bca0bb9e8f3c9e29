"""An engine from the HTTP process's side: its child process, while it is wanted, and requests by id."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from rung.core.errors import RungError
from rung.server import protocol
from rung.server.engines import START_SECONDS, Event, Replay, TakeNow, take_none, with_seed
from rung.server.errors import ApiError
from rung.server.protocol import (
    Behind,
    Cancel,
    Counts,
    Delta,
    Failed,
    Finished,
    Forward,
    Generate,
    Load,
    ModelInfo,
    Note,
    Planned,
    Proceed,
    Progress,
    PromptRead,
    Question,
    Queued,
    Ready,
    Started,
    Stats,
    Step,
    SteppedDown,
    Value,
)

#: Seconds to wait before an engine is started again, at first and at most; twice as long each time it ends unready.
_FIRST_PAUSE, _MOST_PAUSE = 0.1, 30.0
#: Seconds that an engine has to end by itself.
_END_SECONDS = 1.0
#: Seconds in which it gives its counts; the last ones count where it takes longer.
_COUNT_SECONDS = 1.0
#: Sends a batch and its hidden states to other machines; gives the hidden states behind their layers.
SendOn = Callable[[bytes, bytes], Awaitable[bytes]]
#: Ends of processes that a request may live through: it may be why they end.
_MOST_RESTARTS = 2
#: Signals that the code of a process gives itself.
_OF_CODE = frozenset({signal.SIGILL, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE} if os.name == "posix" else ())
#: What requests hear whose engine is not there any more.
_STOPPED = Failed(id=0, status=503, code="engine_ended", cause="The engine ended while it computed this answer.")
#: What they hear where it is there again, with another model.
_REPLACED = Failed(
    id=0, status=503, code="model_replaced", cause="The model was replaced while it computed this answer."
)
#: What is wrong where a process ends without a word.
_ENDED = Failed(
    id=0,
    status=503,
    code="engine-failed",
    cause="The engine ended while it loaded the model.",
    facts=["the system may have ended it, for want of memory"],
    ways_out=["rung serve MODEL --memory 2GB"],
)
#: Nothing of the folder that this process runs in stands for a module of the child.
_CHILD = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from rung.server.child.engine_child import main; main()"
)


class _Events:
    """Events of a request in their order, for the one task that waits for it; ``asyncio.Queue`` costs twice as much."""

    def __init__(self) -> None:
        self._items: deque[Event | Failed] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, item: Event | Failed) -> None:
        """Add an event."""
        self._items.append(item)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    @property
    def is_awaited(self) -> bool:
        """Return whether the task waits, and so has all events that came."""
        return not self._items and self._waiter is not None and not self._waiter.done()

    async def get(self) -> Event | Failed:
        """Return the next event."""
        while not self._items:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._items.popleft()


@dataclass
class _Request(Replay):
    """A request that is answered: its events, and at how many ends of processes it was there. ``take`` is asked for
    deltas before they are events: to wake a task for each costs more than all else that is done for it."""

    events: _Events = field(default_factory=_Events)
    take: TakeNow = take_none
    restarts: int = 0


class Home(Protocol):
    """Give models the memory that they share."""

    async def load_of(self, engine: EngineClient) -> Load:
        """Return how to load a model now."""

    async def reserve(self, engine: EngineClient, memory: Mapping[str, int]) -> bool:
        """Return once a model may take so many bytes of each device; False where it must not."""


class EngineClient:
    """One model: a child process while it is loaded, and the requests that it answers.

    The first request loads it. A process that ends by itself is started again. ``home`` decides when it may take its
    memory. ``on_note`` is called with sentences for whoever started the server, ``on_progress`` while weights are read.
    """

    def __init__(
        self,
        name: str,
        load: Load,
        home: Home,
        on_note: Callable[[str], None] = lambda text: None,
        on_progress: Callable[[str, int, int], None] = lambda label, done, total: None,
    ) -> None:
        self.name, self.load, self._home = name, load, home
        self._on_note, self._on_progress = on_note, on_progress
        self._ids = itertools.count(1)
        self._requests: dict[int, _Request] = {}
        self._questions: dict[int, asyncio.Queue[Value | Failed]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._task: asyncio.Task[None] | None = None
        self._change = asyncio.Event()
        self._ready = self._draining = False
        self._counts = Counts(0, 0, 0, 0)
        #: Answers that are computed; how often the child was started.
        self._using = self.starts = 0
        self._expiry: asyncio.TimerHandle | None = None
        self._expiring: asyncio.Task[None] | None = None
        #: Seconds that it stays loaded after an answer; without end where it is ``math.inf``.
        self.keep_alive = math.inf
        #: When it was used last, when it was loaded, and when it will be unloaded (``time.monotonic``).
        self.used = self.ready_since = 0.0
        #: Most bytes that it takes, by device; empty where it is not loaded.
        self.memory: dict[str, int] = {}
        self.adapters: dict[int, float] | None = None
        #: The model, once it was loaded; why it could not be loaded.
        self.model: ModelInfo | None = None
        self.failed: Failed | None = None
        #: How many answers come before requests that wait for room, by id.
        self.positions: dict[int, int] = {}
        #: Steps down since it was loaded, and what a process that is started again is loaded with.
        self.steps: list[dict[str, Any]] = []
        self._less: dict[str, Any] = {}
        self._level = ""
        #: Has other machines compute their layers of a batch, where they have some: begins at once, in order.
        self.forward: SendOn | None = None
        self._forwarding: set[asyncio.Future[None]] = set()

    @property
    def is_ready(self) -> bool:
        """Return whether it takes requests now."""
        return self._ready and not self._draining

    @property
    def is_loaded(self) -> bool:
        """Return whether it is loaded, or is being loaded."""
        return self._task is not None

    @property
    def is_starting(self) -> bool:
        """Return whether it is being loaded."""
        return self._task is not None and not self._ready

    @property
    def is_busy(self) -> bool:
        """Return whether it computes for anybody."""
        return self._using > 0

    @property
    def expires(self) -> float | None:
        """Return in how many seconds it is unloaded if nobody uses it, None where it stays."""
        return None if math.isinf(self.keep_alive) else max(self.used + self.keep_alive - time.monotonic(), 0.0)

    @property
    def process_id(self) -> int | None:
        """Return the id of the child process, if there is one."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Load the model, unless it is loaded."""
        if self._task is None:
            self.failed, self.steps, self._less, self._level = None, [], {}, ""
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """End the process at once."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})

    async def unload(self) -> None:
        """End the process once its answers have ended; requests that come meanwhile load the model again."""
        self._draining = True
        try:
            while self._using:
                await self._change.wait()
            await self.stop()
        finally:
            self._draining = False
            self._changed()

    def keep(self, seconds: float) -> None:
        """Keep the model so many seconds after each answer from now on; at 0 it is unloaded when it is idle."""
        self.keep_alive = seconds
        self._wait_for_expiry()

    def _changed(self) -> None:
        """Have everybody look again who waits for something here."""
        self._change.set()
        self._change = asyncio.Event()

    async def _run(self) -> None:
        """Keep the process running until it cannot load its model, or this is cancelled."""
        pause, was_loaded = _FIRST_PAUSE, False
        try:
            while True:
                was_ready = await self._run_once()
                was_loaded |= was_ready
                if self.failed is not None and self._less.get("memory"):
                    self._take_as_much()
                    continue
                if self.failed is not None:
                    return
                if not was_loaded:
                    self.failed = _ENDED
                    return
                self._give_up()
                pause = _FIRST_PAUSE if was_ready else min(2 * pause, _MOST_PAUSE)
                self._on_note(f"The engine of {self.name} has ended; it is started again.")
                await asyncio.sleep(pause)
        finally:
            self._task = None
            self._fail_all(self.failed or _STOPPED)
            self._changed()

    def _take_as_much(self) -> None:
        """Load the same plan again where none is smaller: a new process begins with less."""
        self.failed = None
        del self._less["memory"]
        for step in self.steps:
            if step["op"] == "plan":
                step["to"] = "the same plan in a new process"

    def _give_up(self) -> None:
        """End requests that were there whenever a process ended: they may be why."""
        for number, request in list(self._requests.items()):
            request.restarts += 1
            if request.restarts > _MOST_RESTARTS:
                request.events.put(msgspec.structs.replace(_STOPPED, id=number))
                del self._requests[number]

    def _fail_all(self, failed: Failed) -> None:
        """Tell all requests why nothing more comes of them."""
        for request in self._requests.values():
            request.events.put(failed)

    def _step_down(self, step: dict[str, Any], options: Mapping[str, Any]) -> None:
        """Note a step down: of all tokens that come from now on, and of the process that comes next."""
        self._on_note(f"{self.name} steps down from {step['rung']} to {step['to']}: {step['reason']}")
        self.steps.append(step)
        self._less |= options
        for request in self._requests.values():
            request.step_down()

    def _judge(self, status: int) -> None:
        """Step down where the process ended by a signal of its own code, as of an instruction that is not there."""
        if -status in _OF_CODE and self.model is not None and self.model.lower_level:
            self._level = self.model.lower_level
            reason = f"the engine ended by {signal.Signals(-status).name}"
            step = {"op": "decode_step", "rung": "its level of CPU instructions", "device": "cpu", "step": "broken"}
            self._step_down({**step, "reason": reason, "to": self._level}, {})
        elif self.model is not None and not self.model.same_bytes:
            for request in self._requests.values():
                request.step_down()  # what is computed again may differ in its last digits

    async def _run_once(self) -> bool:
        """Start the child and read what it says until it ends; return whether it had loaded its model."""
        load = await self._home.load_of(self)
        load = msgspec.structs.replace(load, options={**load.options, **self._less}, level=self._level)
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = process = subprocess.Popen(
                [sys.executable, "-P", "-c", _CHILD, json.dumps(sys.path)],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # signals of the terminal are for this process, which ends the engine
            )
        self.starts += 1
        reader, self._writer = await asyncio.open_connection(sock=ours)
        reserving: set[asyncio.Task[None]] = set()
        try:
            self._send(load)
            while True:
                header = await reader.readexactly(protocol.HEADER)
                message = protocol.read_from_engine(await reader.readexactly(protocol.length(header)))
                if isinstance(message, Planned):
                    reserving = {asyncio.create_task(self._reserve(message))}
                else:
                    self._take(message)
        except (asyncio.IncompleteReadError, OSError):
            was_ready = self._ready
        finally:
            for task in reserving:
                task.cancel()
            self._lose()
            status = await asyncio.shield(asyncio.to_thread(_end, process))
            self._process = None
            self.memory = {}
            self._changed()
        if was_ready:
            self._judge(status)
        return was_ready

    async def _reserve(self, message: Planned) -> None:
        """Let the process read the weights when there is room for them."""
        if await self._home.reserve(self, message.memory):
            self._send(Proceed())
        elif self._writer is not None:
            cause = f"There is no room for {self.name} beside the other models."
            self.failed = Failed(id=0, status=503, code="no_room", cause=cause)
            self._writer.close()

    def _take(self, message: protocol.FromEngine) -> None:
        """Hand a message to whom it is for."""
        match message:
            case Step():
                for delta in message.deltas:
                    self._put_delta(delta)
            case Started():
                if (request := self._requests.get(message.id)) is not None and request.begin():
                    request.events.put(message)
            case PromptRead():
                if (request := self._requests.get(message.id)) is not None:
                    request.events.put(message)
            case Finished():
                self._put_end(message)
            case Value():
                self._put_value(message)
            case Failed(id=0):
                self.failed = msgspec.structs.replace(message, status=503)
            case Failed():
                self._put_value(message)
                if (request := self._requests.get(message.id)) is not None:
                    request.events.put(message)
            case Forward():
                self._send_on(message)
            case Queued():
                self.positions = message.positions
            case SteppedDown():
                if self._ready:  # else whoever loads the model has the same
                    self._step_down(message.step, message.options)
            case Ready():
                self._note_ready(message.model)
            case Note():
                self._on_note(message.text)
            case Progress():
                self._on_progress(message.label, message.done, message.total)

    def _send_on(self, message: Forward) -> None:
        """Have other machines compute their layers of a batch, and send the engine what comes back."""
        assert self.forward is not None, "an engine that has all layers sends none on"
        task = asyncio.ensure_future(self._bring_back(message, self.forward, self._writer))
        self._forwarding.add(task)
        task.add_done_callback(self._forwarding.discard)

    async def _bring_back(self, message: Forward, forward: SendOn, writer: asyncio.StreamWriter | None) -> None:
        """Send the process at ``writer`` what other machines make of a batch, or why they do not; nobody after it."""
        try:
            answer = Behind(message.id, await forward(message.batch, message.hidden))
        except Exception as error:  # whatever it is: the engine waits for a word
            answer = Behind(message.id, error=str(error) or type(error).__name__)
        if writer is self._writer:
            self._send(answer)

    def _note_ready(self, model: ModelInfo) -> None:
        room = f"{model.parallel} answers at once, context {model.context:,}"
        self._on_note(f"{self.name} is ready: {model.format} on {' + '.join(model.devices)}, {room}")
        self._on_note(f"{self.name} sandbox: {model.sandbox}")
        if self.model is not None and self.model.files != model.files:
            self._end_begun()
        self.model, self._ready = model, True
        if list(self.memory) == model.devices:  # with a draft model and adapters
            self.memory = {device: max(count, model.memory) for device, count in self.memory.items()}
        self.used = self.ready_since = time.monotonic()
        for request in self._requests.values():
            if not request.is_over:
                self._send(request.go_on())
        self._wait_for_expiry()
        self._changed()

    def _end_begun(self) -> None:
        """End requests of which tokens may have come: what goes on with them is another model."""
        self._on_note(f"The files of {self.name} have changed: it is another model now.")
        for number, request in list(self._requests.items()):
            if request.is_started:
                request.events.put(msgspec.structs.replace(_REPLACED, id=number))
                del self._requests[number]

    def _put_delta(self, delta: Delta) -> None:
        """Hand on a delta. Whatever ``take`` raises is for the task of its request alone, which has the delta then."""
        if (request := self._requests.get(delta.id)) is None:  # it was cancelled a moment ago
            return
        request.add(delta)
        try:
            taken = request.events.is_awaited and request.take(delta)
        except Exception:  # this task reads for all requests; the other one says the same delta, and fails at it
            taken = False
        if not taken:
            request.events.put(delta)

    def _put_end(self, end: Finished) -> None:
        """Hand on the end of an answer, with steps down that its process does not know of."""
        if (request := self._requests.get(end.id)) is not None:
            request.end(end)
            known = end.report.get("steps", [])
            end.report["steps"] = [*(step for step in self.steps if step not in known), *known]
            request.events.put(end)

    def _put_value(self, answer: Value | Failed) -> None:
        if (events := self._questions.get(answer.id)) is not None:
            events.put_nowait(answer)

    def _lose(self) -> None:
        """Close the connection to a process that has ended or shall end. Its questions have no answer."""
        self._ready, self.positions, self._counts = False, {}, Counts(0, 0, 0, 0)
        if self._writer is not None:
            self._writer.close()
            self._writer = None
        for task in self._forwarding:
            task.cancel()
        for events in self._questions.values():
            events.put_nowait(_STOPPED)

    def _send(self, message: protocol.ToEngine) -> None:
        if self._writer is not None:
            self._writer.write(protocol.frame(message))

    async def loaded(self) -> ModelInfo:
        """Return the model once it is loaded, however long that takes. Raises ``RungError`` where it cannot be."""
        tried = False
        while not self.is_ready:
            if self._task is None:
                if tried and self.failed is not None:
                    raise _load_error(self.failed)
                self.start()
            tried = True
            await self._change.wait()
        self.used = time.monotonic()
        assert self.model is not None
        return self.model

    async def wait_ready(self, limit: float | None = START_SECONDS) -> ModelInfo:
        """Return the model once it is loaded. Raises ``ApiError`` (503) where that takes longer or cannot be."""
        started = time.monotonic()
        try:
            async with asyncio.timeout(limit):
                return await self.loaded()
        except TimeoutError:
            waited = time.monotonic() - started
            raise ApiError(
                503, f"{self.name} is not loaded after {waited:.0f} s.", code="model_loading", retry_after=10
            ) from None
        except RungError as error:
            raise ApiError(503, error.cause + "".join(f" ({each})" for each in error.facts), code=error.code) from error

    @contextlib.contextmanager
    def _in_use(self) -> Iterator[None]:
        """Keep the model loaded in the block."""
        self._using += 1
        try:
            yield
        finally:
            self._using -= 1
            self.used = time.monotonic()
            self._wait_for_expiry()
            self._changed()

    def _wait_for_expiry(self) -> None:
        """Unload the model when nobody has used it for ``keep_alive`` seconds."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if self._ready and not self._using and (seconds := self.expires) is not None:
            self._expiry = asyncio.get_running_loop().call_later(seconds, self._expire)

    def _expire(self) -> None:
        if self.is_ready and not self._using:
            self._on_note(f"{self.name} is unloaded: nobody has used it for {self.keep_alive:g} s.")
            self._expiring = asyncio.create_task(self.unload())

    async def generate(self, request: Generate, take: TakeNow = take_none) -> AsyncGenerator[Event]:
        """Yield what comes of a request: ``Started``, then deltas and ends of its answers. Where the process ends, the
        next one goes on with it.

        Where the iterator is closed before, the request is cancelled. Raises ``ApiError``.
        """
        await self.wait_ready()
        number = request.id = next(self._ids)
        request = with_seed(request)
        known = self._requests[number] = _Request(request, take=take)
        if self.steps:
            known.step_down()
        left = request.answers
        with self._in_use():
            self._send(request)
            try:
                while left:
                    found = await known.events.get()
                    if isinstance(found, Failed):
                        left = 0
                        raise ApiError.of_failure(found)
                    left -= isinstance(found, Finished)
                    yield found
            finally:
                self._requests.pop(number, None)
                if left:
                    self._send(Cancel(number))

    async def ask(self, question: Question) -> Any:
        """Return the answer to a question. Raises ``ApiError``."""
        await self.wait_ready()
        with self._in_use():
            return await self._answer(question)

    async def counts(self) -> Counts:
        """Return the counts of running work, the last known ones where the process has none within ``_COUNT_SECONDS``;
        zeros where the model is not loaded, which this does not change."""
        if not self._ready:
            return Counts(0, 0, 0, 0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_COUNT_SECONDS):
                self._counts = msgspec.convert(await self._answer(Stats()), Counts)
        return self._counts

    async def _answer(self, question: Question) -> Any:
        number = question.id = next(self._ids)
        events = self._questions[number] = asyncio.Queue()
        self._send(question)
        try:
            found = await events.get()
        finally:
            del self._questions[number]
        if isinstance(found, Failed):
            raise ApiError.of_failure(found)
        return found.value


def _load_error(failed: Failed) -> RungError:
    """Return the error of a model that could not be loaded, as the child raised it."""
    error = RungError(failed.cause, failed.facts, failed.ways_out, code=failed.code)
    error.exit_code = failed.exit_code
    return error


def _end(process: subprocess.Popen[bytes]) -> int:
    """Wait for the end of a process whose socket is closed, and end it where it does not; return its status."""
    try:
        return process.wait(_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
