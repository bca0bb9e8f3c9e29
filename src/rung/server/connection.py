"""uvicorn's HTTP protocol with limits on the time of a head and of a client that does not read, which close
connections that nobody uses, and a short way for the parts of a stream."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

#: Name in an ASGI scope of the ``Protocol`` that the request came by.
CONNECTION = "rung.connection"
#: Seconds in which the head of a request must come, from the connection or the answer before on.
HEAD_SECONDS = 30.0
#: Seconds in which a client must take something of what waits for it.
READ_SECONDS = 60.0


class Protocol(H11Protocol):
    """A connection. A client that sends its head byte by byte holds it for ``HEAD_SECONDS`` and no longer, one that
    reads nothing of its answers for ``READ_SECONDS``."""

    _head: asyncio.TimerHandle | None = None
    _reader: asyncio.TimerHandle | None = None

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

    @property
    def takes_chunks(self) -> bool:
        """Return whether the response that has begun, if it has no length, is sent in chunks (from HTTP/1.1 on)."""
        return self.scope["http_version"] >= "1.1" and self.scope["method"] != "HEAD"

    async def send_chunk(self, data: bytes) -> None:
        """Send a part of such a response. h11, which would frame it, does the same with 10 times the work; what it
        knows of the response is how it began and how it ends."""
        if self.flow.write_paused:
            await self.flow.drain()
        if self.transport.is_closing():
            await asyncio.sleep(0)  # whoever waits for the end of the client comes first
        elif data:  # an empty chunk would be the last one
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
        """Wait for the next request."""
        super().on_response_complete()
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._stop_waiting()
        self._stop_watching()

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
