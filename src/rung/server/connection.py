"""Close connections whose requests do not begin: uvicorn's HTTP protocol with a limit on the time of a head."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

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
