"""The machines that have the further layers of a model, as its engine knows them: hidden states there and back."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial

from rung.core.errors import RungError
from rung.server.protocol import Behind, Forward, FromEngine, ToEngine

#: The code of an error that says that a machine with layers is lost.
STAGE_LOST = "fleet-stage-lost"


class Machines:
    """Send hidden states on by ``send``, and wait for those that come back.

    Until a thread reads ``messages`` (``has_reader``), whoever waits reads them: nothing else comes then.
    """

    def __init__(self, send: Callable[[FromEngine], None], messages: Iterator[ToEngine]) -> None:
        self._send, self._messages, self.has_reader = send, messages, False
        self._numbers = itertools.count(1)
        self._waiting: dict[int, Future[Behind]] = {}

    def forward(self, batch: bytes, hidden: bytes) -> Callable[[], bytes]:
        """Send a batch on; return a function that waits for its hidden states. It raises ``RungError`` where a machine
        is lost."""
        number = next(self._numbers)
        found = self._waiting[number] = Future[Behind]()
        self._send(Forward(number, batch, hidden))
        return partial(self._wait, found)

    def take(self, message: Behind) -> None:
        """Hand hidden states to whom they are for."""
        if (waiting := self._waiting.pop(message.id, None)) is not None:
            waiting.set_result(message)

    def _wait(self, found: Future[Behind]) -> bytes:
        while not self.has_reader and not found.done():
            message = next(self._messages, None)
            if message is None:
                raise RungError("The server has ended.", code="fleet-stage-lost")
            if isinstance(message, Behind):
                self.take(message)
        behind = found.result()
        if behind.error:
            raise RungError(
                "A machine that has layers of the model is lost.",
                [behind.error],
                ["rung fleet status   # the nodes that are there"],
                code="fleet-stage-lost",
            )
        return behind.hidden
