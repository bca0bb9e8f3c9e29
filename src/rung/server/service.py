"""Give endpoints the models by name, answers that end with their client, and earlier responses."""

from __future__ import annotations

import asyncio
import functools
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rung.server import protocol
from rung.server.admission import Admission, Ticket
from rung.server.engines import START_SECONDS, Engine, Event, Pool
from rung.server.errors import STOPPING, ApiError, ErrorStyle, number_too_large, openai_error, stopping
from rung.server.http import POSITION, WriteNow, read_json, unless_gone
from rung.server.metrics import Totals
from rung.server.protocol import Delta, Echo, Finished, Generate, ModelInfo, NumberTooLarge, PromptRead, Started
from rung.server.store.client import StoreClient

#: Responses, and bytes of all together, at most.
MOST_RESPONSES, MOST_BYTES = 1024, 64 * 2**20


@dataclass(frozen=True)
class _Stored:
    owner: str
    data: bytes


class ResponseStore:
    """Responses by id. Each is for the owner of its request only; the one that was used least recently goes first."""

    def __init__(self, most: int = MOST_RESPONSES, most_bytes: int = MOST_BYTES) -> None:
        self._most, self._most_bytes, self._bytes = most, most_bytes, 0
        self._stored: OrderedDict[str, _Stored] = OrderedDict()

    def put(self, owner: str, response: dict[str, Any], messages: list[dict[str, Any]]) -> None:
        """Keep a response, with the messages of its conversation as chat templates read them."""
        # JSON, as it was sent: numbers of a client's schema may have more bits than msgpack takes
        stored = _Stored(owner, msgspec.json.encode([response, messages]))
        if len(stored.data) > self._most_bytes:
            return
        self._stored[response["id"]] = stored
        self._bytes += len(stored.data)
        while len(self._stored) > self._most or self._bytes > self._most_bytes:
            _, dropped = self._stored.popitem(last=False)
            self._bytes -= len(dropped.data)

    def get(self, owner: str, id: str) -> tuple[dict[str, Any], list[dict[str, Any]]] | None:
        """Return a response and its messages, or None where there is none of that owner."""
        stored = self._stored.get(id)
        if stored is None or stored.owner != owner:
            return None
        self._stored.move_to_end(id)
        response, messages = msgspec.json.decode(stored.data)
        return response, messages

    def delete(self, owner: str, id: str) -> bool:
        """Forget a response; return whether there was one of that owner."""
        if self.get(owner, id) is None:
            return False
        self._bytes -= len(self._stored.pop(id).data)
        return True


#: How often the clients of OpenAI and Anthropic have sent a request before.
_RETRIES = "x-stainless-retry-count"


@dataclass
class Service:
    """The models that are served, by the names that clients give them. ``saves_slots``: what slots have computed may be
    saved and restored."""

    pool: Pool
    make_admission: Callable[[], Admission] = Admission
    totals: Totals = field(default_factory=Totals)
    responses: ResponseStore = field(default_factory=ResponseStore)
    store: StoreClient = field(default_factory=StoreClient)
    created: int = field(default_factory=lambda: int(time.time()))
    saves_slots: bool = False

    def __post_init__(self) -> None:
        self._admissions: dict[str, Admission] = {}

    def admission(self, engine: Engine) -> Admission:
        """Return the queue of a model."""
        return self._admissions.setdefault(engine.name, self.make_admission())

    def engine(self, name: str | None) -> tuple[str, Engine]:
        """Return the model of a name, with the name that it is served by; without a name the first one.

        Raises ``ApiError`` (404) for an unknown name.
        """
        engine = self.pool.find(name)
        return engine.name, engine


#: A request to an engine, or what makes one once the model is known.
ToGenerate = Generate | Callable[[ModelInfo], Generate]
#: Seconds in which a stream's request is understood, or refused with a status; else the stream begins before.
BEGIN_SECONDS = 0.5


@contextmanager
def _until_stop() -> Iterator[None]:
    """Raise ``ApiError`` where the server stops meanwhile."""
    try:
        yield
    except asyncio.CancelledError as error:
        if STOPPING in error.args:
            raise stopping() from None
        raise


class Answers:
    """The answers to one request while they are computed: an asynchronous iterable of deltas and ends, which begins
    when the request is understood (``begun``)."""

    def __init__(self, engine: Engine, totals: Totals) -> None:
        self.model, self.created = engine.name, int(time.time())
        #: The request, and tokens of its prompts; known when it is understood.
        self.request = Generate()
        self.prompt_tokens = 0
        self.echoes: list[Echo] = []
        self.reasons = self.is_reasoning = False
        self._engine, self._totals = engine, totals
        #: Gives what a stream says of a delta, None where it takes more than that to say it; nothing is changed by it.
        self.encode: Callable[[Delta], bytes | None] = lambda delta: None
        self._write: WriteNow = lambda data: False
        self._beginning: asyncio.Task[None] | None = None
        self._ticket: Ticket | None = None
        self._events: AsyncGenerator[Event] | None = None

    def write_with(self, write: WriteNow) -> None:
        """Write what ``encode`` gives of deltas when they come, where nothing else has to be written before."""
        self._write = write

    def _take(self, delta: Delta) -> bool:
        data = self.encode(delta)
        return data is not None and self._write(data)

    @property
    def position(self) -> int:
        """Return how many answers come before this one; 0 where it has begun, or nobody knows yet."""
        return self._engine.positions.get(self.request.id, 0)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Have ``work`` begin the answers: it ends with ``start``."""
        self._beginning = asyncio.create_task(work)

    async def start(self, request: Generate, ticket: Ticket) -> None:
        """Have a request computed that has its places; return when it is understood. Raises ``ApiError``."""
        self.request, self._ticket = request, ticket
        self._events = self._engine.generate(request, self._take)
        started = await anext(self._events)
        assert isinstance(started, Started)
        self.prompt_tokens, self.echoes = started.prompt_tokens, started.echoes
        self.reasons, self.is_reasoning = started.reasons, started.is_reasoning

    async def begun(self, seconds: float | None = None) -> None:
        """Wait until the request is understood, or for so many seconds. Raises ``ApiError`` where it is refused, or the
        server stops before."""
        assert self._beginning is not None
        with _until_stop():
            done, _ = await asyncio.wait({self._beginning}, timeout=seconds)
        for task in done:
            task.result()

    async def __aiter__(self) -> AsyncGenerator[Delta | Finished]:
        async for event in self.all_events():
            if not isinstance(event, PromptRead) and (isinstance(event, Finished) or event.text or event.logprobs):
                yield event

    async def all_events(self) -> AsyncGenerator[Delta | Finished | PromptRead]:
        """Yield deltas without a text, too, and how far prompts are read, where a request asks for that. Raises
        ``ApiError``, also where the server stops before."""
        assert self._events is not None
        with _until_stop():
            async for event in self._events:
                if isinstance(event, Finished):
                    self._totals.add(event)
                yield event  # type: ignore[misc]  # ``Started`` was the first one

    def rung(self, ends: Sequence[Finished]) -> dict[str, Any]:
        """Return the facts of an answer: ``devices``, ``format``, and ``steps`` (down), ``rungs``, ``predicted`` and
        ``measured`` of its report (``rung.core.types.Report``; bytes, tokens per second). ``same_bytes_until`` is the
        number of tokens before the first that came after a step down, where there was one."""
        known = self._engine.model
        ran = {} if known is None else {"devices": known.devices, "format": known.format}
        return {**ran, **(ends[-1].report if ends else {})}

    async def close(self) -> None:
        """Give everything back; what is not computed yet is cancelled."""
        if self._beginning is not None:
            self._beginning.cancel()
            await asyncio.gather(self._beginning, return_exceptions=True)
        if self._events is not None:
            await self._events.aclose()
        if self._ticket is not None:
            self._ticket.release()


@dataclass
class Choice:
    """One answer, whole."""

    text: str
    logprobs: list[dict[str, object]] | None
    end: Finished


@dataclass(frozen=True)
class Call:
    """A request, its owner, and the service that answers it."""

    request: Request
    service: Service
    owner: str

    async def begin(self, model: str | None, generate: ToGenerate, *, streams: bool = False) -> Answers:
        """Have answers computed; return when the request is understood. With ``streams`` return after ``BEGIN_SECONDS``
        at the latest: whoever writes the stream waits for the rest (``Answers.begun``), and its client has signs of
        life. Raises ``ApiError``, and ``ClientDisconnect`` where the client goes away before."""
        _, engine = self.service.engine(model)
        answers = Answers(engine, self.service.totals)
        self.request.scope[POSITION] = lambda: answers.position
        answers.begin(self._begin(engine, answers, generate, None if streams else START_SECONDS))
        try:
            await unless_gone(self.request, answers.begun(BEGIN_SECONDS if streams else None))
        except BaseException:
            await answers.close()
            raise
        return answers

    async def _begin(self, engine: Engine, answers: Answers, generate: ToGenerate, limit: float | None) -> None:
        """Begin answers when the model is loaded, within so many seconds, and there is a place. Raises ``ApiError``."""
        info = await engine.wait_ready(limit)
        request = generate if isinstance(generate, Generate) else generate(info)
        request.owner = self.owner
        if request.adapters is None:
            request.adapters = engine.adapters
        admission = self.service.admission(engine)
        admission.parallel = info.parallel
        is_new = self.request.headers.get(_RETRIES) == "0"
        try:
            ticket = admission.enter(self.owner, request.answers, self._digest(request), is_new)
        except NumberTooLarge as error:
            raise number_too_large(error) from error
        except ApiError:
            self.service.totals.refused += 1
            raise
        await answers.start(request, ticket)

    def _digest(self, generate: Generate) -> bytes:
        """Return a value that only this request has when it comes again: of its wishes and its address."""
        address = self.request.client.host if self.request.client else ""
        return protocol.digest(generate) + address.encode()

    async def collect(self, answers: Answers) -> list[Choice]:
        """Return all answers whole, in their order. Raises as ``begin``."""
        try:
            return await unless_gone(self.request, _collect(answers))
        finally:
            await answers.close()


async def _collect(answers: Answers) -> list[Choice]:
    texts: dict[int, list[str]] = {}
    logprobs: dict[int, list[dict[str, object]]] = {}
    ends: dict[int, Finished] = {}
    async for event in answers:
        if isinstance(event, Delta):
            texts.setdefault(event.index, []).append(event.text)
            if event.logprobs is not None:
                logprobs.setdefault(event.index, []).extend(event.logprobs)
        else:
            ends[event.index] = event
    return [Choice("".join(texts.get(n, ())), logprobs.get(n), ends[n]) for n in sorted(ends)]


Handler = Callable[[Call], Awaitable[Response]]
B = TypeVar("B")


@dataclass(frozen=True)
class Endpoint:
    """A row of what is served: a path, maybe with ``{names}``, its method and handler; ``style`` writes its errors,
    ``body`` is what the body of a request is read into."""

    method: str
    path: str
    handler: Handler
    style: ErrorStyle = openai_error
    needs_key: bool = True
    body: type[Any] | None = None


def post(
    path: str, body: type[B], handler: Callable[[Call, B], Awaitable[Response]], style: ErrorStyle = openai_error
) -> Endpoint:
    """Return the row of an endpoint whose handler gets the body of a request."""
    return Endpoint("POST", path, with_body(body, handler), style, body=body)


def with_body(body: type[B], handler: Callable[[Call, B], Awaitable[Response]]) -> Handler:
    """Return a handler that reads the body of a request for another one."""

    @functools.wraps(handler)
    async def read(call: Call) -> Response:
        return await handler(call, await read_json(call.request, body))

    return read
