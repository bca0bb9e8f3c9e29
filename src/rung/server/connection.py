"""uvicorn's HTTP protocol with a limit on the time of a head, which closes connections whose requests do not begin,
and a short way for the parts of a stream."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol

#: Name in an ASGI scope of the ``Protocol`` that the request came by.
CONNECTION = "rung.connection"
#: Seconds in which the head of a request must come, from the connection or the answer before on.
HEAD_SECONDS = 30.0


class Protocol(H11Protocol):
    """A connection. A client that sends its head byte by byte holds it for ``HEAD_SECONDS`` and no longer."""

    _head: asyncio.TimerHandle | None = None

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
        """Return whether the response that has begun, if it has no length, is sent in chunks (HTTP/1.1)."""
        return self.scope["http_version"] != "1.0" and self.scope["method"] != "HEAD"

    async def send_chunk(self, data: bytes) -> None:
        """Send a part of such a response. h11, which would frame it, does the same with 10 times the work; what it
        knows of the response is how it began and how it ends."""
        if self.flow.write_paused:
            await self.flow.drain()
        if not self.transport.is_closing():
            self.transport.write(b"%x\r\n%b\r\n" % (len(data), data))

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        super().connection_lost(exc)
        self._stop_waiting()

    def _wait_for_head(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:  # a request is being answered
            self._stop_waiting()
        elif self._head is None:
            self._head = self.loop.call_later(HEAD_SECONDS, self._close)

    def _close(self) -> None:
        if self.transport is not None:
            self.transport.close()

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None
