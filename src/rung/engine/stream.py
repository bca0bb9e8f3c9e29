"""The text of an answer as it grows: whole characters only, and never part of a stop string."""

from __future__ import annotations

from collections.abc import Iterable

from rung.core.errors import UsageError
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
