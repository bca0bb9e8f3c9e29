"""An answer while it is computed."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator
from typing import Any

from rung.engine.scheduling.scheduler import Scheduler
from rung.engine.scheduling.sequence import TokenSequence
from rung.engine.stream import TextStream


class Generation:
    """An answer while it is computed: an iterable of strings; ``result`` is set when it ends.

    ``on_read`` may be set before: it is called with (tokens read, tokens to read) while the prompt is read.
    ``describe`` returns the result from this answer and why it ended, ``explain`` what to raise for an error.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        sequence: TokenSequence,
        text: TextStream,
        describe: Callable[[Generation, str], dict[str, Any]],
        explain: Callable[[Exception], Exception],
    ) -> None:
        self.result: dict[str, Any] = {}
        self.tokens: list[int] = []
        self.on_read: Callable[[int, int], None] = lambda done, total: None
        self.sequence = sequence
        #: Seconds to the first token, imports apart; 0 before it.
        self.first_token_seconds = 0.0
        self._scheduler, self._text, self._describe, self._explain = scheduler, text, describe, explain
        self._started = 0.0
        self._pieces: list[str] = []
        self._iterator = self._run()

    def __iter__(self) -> Iterator[str]:
        return self._iterator

    @property
    def text(self) -> str:
        """Return the answer so far."""
        return "".join(self._pieces)

    @property
    def stop_string(self) -> str | None:
        """Return the stop string that ended the answer, if one did."""
        return self._text.stop

    def stop(self) -> dict[str, Any]:
        """End the answer here; return the result so far."""
        self._iterator.close()
        if not self.result:
            self.result = self._describe(self, "stopped")
        return self.result

    def begin(self) -> None:
        """Have it computed whenever somebody waits for its sequence."""
        self._started = time.perf_counter()
        self._scheduler.add(self.sequence)

    def take(self) -> list[str]:
        """Return the text of the tokens that were computed since the last call, and set ``result`` where it ends.

        Raises what ended the sequence, if it was an error.
        """
        pieces = []
        while not self._text.stopped and (token := self.sequence.take()) is not None:
            self._note_first()
            self.tokens.append(token)
            pieces.append(self._text.push(token))
        over = self._text.stopped or (self.sequence.ended and not self.sequence.ahead)
        if over:
            self._note_first()
            self._scheduler.cancel(self.sequence)
            if self.sequence.error is not None:
                raise self._explain(self.sequence.error)
            pieces.append(self._text.finish())
        self._pieces += pieces
        if over:
            self.result = self._describe(self, "stop" if self._text.stopped else self.sequence.reason)
        return [piece for piece in pieces if piece]

    def _note_first(self) -> None:
        """Note when the first token came."""
        if not self.first_token_seconds:
            self.first_token_seconds = time.perf_counter() - self._started - self.sequence.seconds["ready"]

    def _run(self) -> Generator[str, None, None]:
        self.begin()
        try:
            self._read_prompt()
            while not self.result:
                yield from self.take()
                if not self.result:
                    self._scheduler.advance(self.sequence)
        finally:
            self._scheduler.cancel(self.sequence)

    def _read_prompt(self) -> None:
        """Compute until there is a token or the end, and say how far the prompt is read."""
        sequence = self.sequence
        while not (sequence.ahead or sequence.ended):
            self._scheduler.advance(sequence)
            known = sequence.cached or 0
            self.on_read(min(max(sequence.computed - known, 0), sequence.prompt - known), sequence.prompt - known)
