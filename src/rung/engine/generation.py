"""An answer while it is computed: its tokens, and its text in whole characters and before a stop string."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from rung.core.errors import UsageError
from rung.engine.scheduling.scheduler import Scheduler
from rung.engine.scheduling.sequence import TokenSequence
from rung.engine.tokenizers.tokenizer import Tokenizer


class StopStrings:
    """Holds back text that may be the beginning of a stop string.

    ``found`` is the stop string that came, if one did; what follows it is not let through.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = tuple(dict.fromkeys(stops))
        if "" in self._stops:
            raise UsageError("A stop string must not be empty.")
        self._pending = ""
        self.found: str | None = None

    def push(self, text: str) -> str:
        """The text that is certain not to belong to a stop string."""
        if self.found is not None:
            return ""
        pending = self._pending + text
        hits = [(at, -len(stop), stop) for stop in self._stops if (at := pending.find(stop)) >= 0]
        if hits:
            at, _, self.found = min(hits)  # the first; of those beginning together the longest
            self._pending = ""
            return pending[:at]
        keep = max((self._overlap(pending, stop) for stop in self._stops), default=0)
        self._pending = pending[len(pending) - keep :]
        return pending[: len(pending) - keep]

    @staticmethod
    def _overlap(text: str, stop: str) -> int:
        """Length of the longest end of ``text`` that ``stop`` begins with."""
        for length in range(min(len(text), len(stop) - 1), 0, -1):
            if text.endswith(stop[:length]):
                return length
        return 0

    def finish(self) -> str:
        """Return the pending characters that turned out to be text."""
        pending, self._pending = self._pending, ""
        return pending


class TextStream:
    """Text out of tokens, one after the other.

    ``stops``: strings at which the answer ends. ``start``: the tokens begin a text, so the space that encoding puts
    before one goes.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Iterable[str] = (), *, start: bool = False) -> None:
        self._tokens = tokenizer.stream(start=start)
        self._stops = StopStrings(stops)

    @property
    def stopped(self) -> bool:
        """Return whether a stop string came; it and what follows it are no part of the text."""
        return self._stops.found is not None

    @property
    def stop(self) -> str | None:
        """The stop string that came."""
        return self._stops.found

    def push(self, token: int) -> str:
        """The text that is certain after ``token``, maybe none."""
        return self._stops.push(self._tokens.push(token))

    def finish(self) -> str:
        """The rest of the text, when no more tokens come. A character cut short becomes U+FFFD."""
        return self._stops.push(self._tokens.flush()) + self._stops.finish()


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
