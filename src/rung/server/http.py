"""Bodies with a limit, limits of time for slow clients, and streams that end with their client."""

from __future__ import annotations

import asyncio
import math
import select
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar, cast

import h11
import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from rung.server.errors import STOPPING, ApiError, invalid_body

#: Name in an ASGI scope of the ``Protocol`` that the request came by.
CONNECTION = "rung.connection"
#: Seconds in which the head of a request must come, from the connection or the answer before on.
HEAD_SECONDS = 30.0
#: Seconds in which a client must take something of what waits for it.
READ_SECONDS = 60.0
#: How each response begins, whatever its status is.
_VERSION = b"HTTP/1.1 "
#: Seconds until the second look at whether a client that has closed its side still reads, and between two at most.
_FIRST_LOOK, _MOST_LOOK = 0.001, 0.05


class _BegunResponse:
    """A transport for a response of which ``_VERSION`` is written."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._written = transport, _VERSION
        self.close, self.is_closing = transport.close, transport.is_closing

    def write(self, data: bytes) -> None:
        """Write the rest of the response."""
        self._transport.write(data.removeprefix(self._written))
        self._written = b""


class Protocol(H11Protocol):
    """A connection. A client that sends its head byte by byte holds it for ``HEAD_SECONDS`` and no longer, one that
    reads nothing of its answers for ``READ_SECONDS``.

    A client that closes its side may still read, or be gone: both look the same. So the next byte of its answer is
    written at once, which is one whatever the answer becomes. The system of a client that is gone resets the connection
    then, which ends the answer.
    """

    _head: asyncio.TimerHandle | None = None
    _reader: asyncio.TimerHandle | None = None
    _look: asyncio.TimerHandle | None = None
    _is_half_closed = False
    #: The cycle of uvicorn whose response is a stream.
    _streamed: Any = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Read more of a request."""
        super().data_received(data)
        self._wait_for_head()

    def handle_events(self) -> None:
        """Take what was read; the application finds this connection in the scope of its request."""
        super().handle_events()
        if self.cycle is not None:  # its task has not run yet
            cast("dict[str, Any]", self.scope)[CONNECTION] = self

    def begin_stream(self) -> bool:
        """Note that the response has begun and has no length; return whether it is sent in chunks (from HTTP/1.1
        on)."""
        self._streamed = self.cycle
        return self._takes_chunks

    @property
    def _takes_chunks(self) -> bool:
        return self.scope["http_version"] >= "1.1" and self.scope["method"] != "HEAD"

    @property
    def _is_answering(self) -> bool:
        """Return whether a request that has come whole is being answered."""
        return self.cycle is not None and not self.cycle.response_complete and not self.cycle.more_body

    def eof_received(self) -> bool:  # type: ignore[override]  # which asyncio reads
        """Keep the connection of a client that has sent all while it is answered, if it still reads. Other systems than
        Linux do not say whether a connection was reset to who only asks that."""
        if not self._is_answering or self.scheme == "https" or sys.platform != "linux":
            return False
        if not self._is_half_closed:
            if not self._write_ahead():
                return False
            self._is_half_closed = True
            self._look_for_reader(_FIRST_LOOK)
        return True

    def _write_ahead(self) -> bool:
        """Write the next byte of the response, or several; return False where nobody knows it."""
        cycle = self.cycle
        if not cycle.response_started:
            self.transport.write(_VERSION)
            cycle.transport = cast("asyncio.Transport", _BegunResponse(self.transport))
        elif self._streamed is cycle:
            if not self._takes_chunks:
                return False
            self.transport.write(b"0")  # before the size of the next chunk, which stays the same
        return True

    def _look_for_reader(self, seconds: float) -> None:
        """End the connection if it was reset; look again after some seconds, and then less often."""
        poll = select.poll()
        poll.register(self.transport.get_extra_info("socket").fileno(), 0)
        if poll.poll(0):
            self.transport.abort()
        else:
            self._look = self.loop.call_later(seconds, self._look_for_reader, min(2 * seconds, _MOST_LOOK))

    async def send_chunk(self, data: bytes) -> None:
        """Send a part of such a response. h11, which would frame it, does the same with 10 times the work; what it
        knows of the response is how it began and how it ends."""
        if self.flow.write_paused:
            await self.flow.drain()
        if self.transport.is_closing():
            await asyncio.sleep(0)  # whoever waits for the end of the client comes first
        else:
            self._write_chunk(data)

    def write_now(self, data: bytes) -> bool:
        """Write a part of such a response; return False, and write nothing, where the client has to read before or is
        gone."""
        if self.flow.write_paused or self.transport.is_closing():
            return False
        self._write_chunk(data)
        return True

    def _write_chunk(self, data: bytes) -> None:
        if data:  # an empty chunk would be the last one
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP; where that is the rest of a request that was answered already, just close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        """Have nothing written while so much waits for the client; see that it reads."""
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        """Go on writing: the client has read."""
        super().resume_writing()
        self._stop_watching()

    def on_response_complete(self) -> None:
        """Wait for the next request, if one can come."""
        super().on_response_complete()
        if self._is_half_closed and not self._is_answering:
            self.transport.close()
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._stop_waiting()
        self._stop_watching()
        if self._look is not None:
            self._look.cancel()
            self._look = None

    def _wait_for_head(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:  # a request is being answered
            self._stop_waiting()
        elif self._head is None:
            self._head = self.loop.call_later(HEAD_SECONDS, self._close)

    def _close(self) -> None:
        if self.transport is not None:
            self.transport.close()
            self._watch_reader()  # what was written before is still sent

    def _watch_reader(self, before: int = -1) -> None:
        """Look from time to time whether fewer bytes wait for the client than ``before``, and hang up where not."""
        self._stop_watching()
        waiting = self.transport.get_write_buffer_size()
        if waiting == before:
            self.transport.abort()
        elif waiting:
            self._reader = self.loop.call_later(READ_SECONDS, self._watch_reader, waiting)

    def _stop_watching(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            self._reader = None

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None


#: Bytes of a body at most, and seconds that it may take to come.
MOST_BODY, BODY_SECONDS = 8 * 2**20, 60.0
#: Name in an ASGI scope of what returns how many answers come before this one; 0 where it has begun.
POSITION = "rung.position"
#: Seconds of silence after which a stream gives a sign of life, and between two that say a place in the queue.
PING_SECONDS = 1.0
#: Seconds before the first one: the place is not known at once, and most streams have a part by then.
FIRST_PING_SECONDS = 0.1
#: The last event of OpenAI's streams.
DONE = b"data: [DONE]\n\n"

T = TypeVar("T")
SendPart = Callable[[bytes], Awaitable[None]]
#: Writes a part of a response that has begun, or returns False where that has to wait.
WriteNow = Callable[[bytes], bool]
#: Writes a sign of life, of a stream before which so many answers come (0: it has its turn, or nobody knows yet).
Ping = Callable[[int], bytes]
to_json = msgspec.json.Encoder().encode


async def read_body(request: Request) -> bytes:
    """Return the body of a request. Raises ``ApiError`` for one above ``MOST_BODY``, however it is sent."""
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > MOST_BODY:
        raise _too_large()
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for part in request.stream():
                body += part
                if len(body) > MOST_BODY:
                    raise _too_large()
    except TimeoutError:
        raise ApiError(408, f"The body did not come within {BODY_SECONDS:g} s.") from None
    return bytes(body)


def _too_large() -> ApiError:
    return ApiError(413, f"The body is larger than {MOST_BODY:,} bytes.", code="body_too_large")


async def read_json(request: Request, kind: type[T]) -> T:
    """Return the body of a request as a struct. Raises ``ApiError`` that names the field which is wrong."""
    body = await read_body(request)
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError, ValueError) as error:
        raise invalid_body(error) from error


def json_response(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a response of JSON."""
    return Response(to_json(content), status, headers, media_type="application/json")


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Await ``work`` and return its result; where the client goes away before, cancel it and raise
    ``ClientDisconnect``."""
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_until_gone(request.receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        await _cancelled(task, gone)


async def _first_or_stop(work: asyncio.Task[Any], gone: asyncio.Task[Any]) -> None:
    """Wait until a stream or its client has ended. Only a server that stops cancels this: the stream then has a last
    word (``errors.stopping``), which is awaited."""
    try:
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
    except asyncio.CancelledError:
        work.cancel(STOPPING)
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    """Cancel tasks and wait for their ends."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def event(data: Any, name: str = "") -> bytes:
    """Return a server-sent event with JSON in it."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + to_json(data) + b"\n\n"


def around_text(write: Callable[[str], bytes]) -> list[bytes]:
    """Return the JSON before and after a text, in the events that ``write`` makes of texts: to join it with
    the text costs a third of writing the event."""
    mark = "text 7c1e4b"
    return write(mark).rsplit(to_json(mark), 1)


def comment(position: int) -> bytes:
    """Return a sign of life as a comment, which clients of server-sent events skip."""
    return b": queue position %d\n\n" % position if position else b": ping\n\n"


class Stream(Response):
    """A response whose parts come one by one. Where the client goes away, ``parts`` is closed at once.

    ``ping`` writes what is sent each second while an answer waits for its turn, and after each second without a part;
    None for nothing. ``on_begin`` gets what writes a part at once, while ``parts`` waits for something, if the
    connection can.
    """

    def __init__(
        self,
        parts: AsyncGenerator[bytes],
        media_type: str = "text/event-stream",
        ping: Ping | None = comment,
        on_close: Callable[[], Awaitable[None]] | None = None,
        on_begin: Callable[[WriteNow], None] = lambda write: None,
    ) -> None:
        super().__init__(media_type=media_type, headers={"cache-control": "no-store", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._parts, self._ping, self._on_close, self._on_begin = parts, ping, on_close, on_begin
        #: When the last part was sent; before the first one long ago, so that a stream which has none gives a sign.
        self._last = -math.inf

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        send_part = self._sender(scope, send)
        work = asyncio.create_task(self._send_parts(send_part))
        gone = asyncio.create_task(_until_gone(receive))
        pings = asyncio.create_task(self._send_pings(send_part, scope.get(POSITION, lambda: 0)))
        try:
            await _first_or_stop(work, gone)
            if work.done() and not gone.done():
                work.result()
                await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await _cancelled(work, gone, pings)
            await self._parts.aclose()
            if self._on_close is not None:
                await self._on_close()

    def _sender(self, scope: Scope, send: Send) -> SendPart:
        """Return the function that sends a part: the connection's own, where it can."""

        async def send_part(data: bytes) -> None:
            await send({"type": "http.response.body", "body": data, "more_body": True})

        connection: Protocol | None = scope.get(CONNECTION)
        if connection is None or not connection.begin_stream():
            return send_part
        write_now = connection.write_now

        def write(data: bytes) -> bool:
            written = write_now(data)
            if written:
                self._last = time.monotonic()
            return written

        self._on_begin(write)
        return connection.send_chunk

    async def _send_parts(self, send: SendPart) -> None:
        async for part in self._parts:
            self._last = time.monotonic()
            await send(part)

    async def _send_pings(self, send: SendPart, position: Callable[[], int]) -> None:
        await asyncio.sleep(FIRST_PING_SECONDS)
        while self._ping is not None:
            number = position()
            wait = 0.0 if number else self._last + PING_SECONDS - time.monotonic()
            if wait <= 0:
                self._last = time.monotonic()
                await send(self._ping(number))
                wait = PING_SECONDS
            await asyncio.sleep(wait)
