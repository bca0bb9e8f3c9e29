"""The work of the scheduler: a sequence of tokens that an answer makes longer, or one whose logits are asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Many

import numpy as np

from rung.engine.scheduling.kv_cache import Tokens
from rung.engine.scheduling.speculation import Guesser
from rung.formats.codec import Floats


class Sequence:
    """Tokens, how many of them a cache has, and what is done with the logits.

    ``ids`` are all tokens so far; those that ``cache`` does not have are computed next. Sequences of an ``owner`` share
    what they have computed. An interrupt may come between any two lines of ``accept``: it is then called again.
    """

    #: Whether keys and values of earlier sequences may be used.
    shares = True
    #: What guesses the next tokens, if anything does.
    guesser: Guesser | None = None

    def __init__(self, ids: Many[int], owner: str = "") -> None:
        self.ids = list(ids)
        self.prompt = len(self.ids)
        self.owner = owner
        self.cache: Tokens | None = None
        self.error: Exception | None = None
        #: Why it ended; empty while it goes on.
        self.reason = ""
        #: Tokens of the prompt that were not computed, since an earlier sequence began alike; None before it begins.
        self.cached: int | None = None
        #: Seconds: of imports for it, of steps that read its prompt, and of those that computed a token.
        self.seconds = {"ready": 0.0, "prefill": 0.0, "decode": 0.0}
        #: Whether somebody waits for it now; the thread that last did, and until when (``time.monotonic``).
        self.waiting = False
        self.thread, self.used = threading.get_ident(), time.monotonic()

    @property
    def ended(self) -> bool:
        """Return whether nothing more is computed of it."""
        return bool(self.reason)

    @property
    def computed(self) -> int:
        """Return how many tokens the cache has."""
        return 0 if self.cache is None else self.cache.length

    @property
    def ahead(self) -> bool:
        """Return whether it has a token that nobody has taken, so that it need not be computed further yet."""
        return False

    def end(self, reason: str, error: Exception | None = None) -> None:
        """End it, unless it has ended."""
        if not self.reason:
            self.error, self.reason = error, reason

    @property
    def most_guesses(self) -> int:
        """Return how many of the next tokens may be guessed."""
        return 0

    def logits_of(self, count: int) -> int:
        """Return of how many of the next ``count`` tokens, the last ones, logits are needed."""
        raise NotImplementedError

    def accept(self, logits: Floats, start: int, guesses: Many[int] = ()) -> int:
        """Take the logits [rows, vocabulary] of tokens from ``start`` on, and return how many ``guesses`` were right.

        The last rows are those after each of the guesses. The next step overwrites the logits.
        """
        raise NotImplementedError


class TokenSequence(Sequence):
    """A sequence that gets longer by a token whenever all of its tokens are computed.

    ``choose`` returns the next token from logits [vocabulary]; the sequence ends with one of ``ends``, after ``most``
    tokens, or when ``context`` tokens are computed.
    """

    def __init__(
        self,
        ids: Many[int],
        choose: Callable[[Floats], int],
        *,
        ends: frozenset[int],
        context: int,
        most: int | None = None,
        owner: str = "",
    ) -> None:
        super().__init__(ids, owner)
        self._choose, self._ends, self._context, self._most = choose, ends, context, most
        self.guesser = Guesser()
        self._taken = 0

    @property
    def ahead(self) -> bool:
        """Return whether a token was chosen that nobody has taken."""
        return len(self.ids) - self.prompt > self._taken

    @property
    def ended(self) -> bool:
        """Return whether no further token is chosen."""
        if not self.reason and self._most is not None and len(self.ids) - self.prompt >= self._most:
            self.end("length")
        if not self.reason and len(self.ids) > self._context:
            self.end("context")
        return bool(self.reason)

    def take(self) -> int | None:
        """Return the next token that was chosen, or None where there is none now."""
        if not self.ahead:
            return None
        self._taken += 1
        return self.ids[self.prompt + self._taken - 1]

    @property
    def most_guesses(self) -> int:
        """Return how many tokens may be guessed: one more is chosen after them."""
        left = self._context - len(self.ids)
        return left if self._most is None else min(left, self._most - (len(self.ids) - self.prompt) - 1)

    def logits_of(self, count: int) -> int:
        """Return 1 with the last of its tokens, else 0."""
        return int(self.computed + count == len(self.ids))

    def accept(self, logits: Floats, start: int, guesses: Many[int] = ()) -> int:
        """Choose the next token once all are computed, and one more after each guess that it is."""
        for right, row in enumerate(logits):
            token = self._choose(row)
            if token in self._ends:
                self.end("end")
                return right
            self.ids.append(token)
            if right == len(guesses) or token != guesses[right]:
                return right
        return 0


class LogitSequence(Sequence):
    """A sequence of which the logits after every token are asked for: ``logits`` [tokens, vocabulary] f32."""

    shares = False

    def __init__(self, ids: Many[int], vocabulary: int) -> None:
        super().__init__(ids)
        self.logits: Floats = np.empty((len(self.ids), vocabulary), np.float32)

    def logits_of(self, count: int) -> int:
        """Return ``count``: each token's logits are needed."""
        return count

    def accept(self, logits: Floats, start: int, guesses: Many[int] = ()) -> int:
        """Keep the logits."""
        self.logits[start : start + len(logits)] = logits
        if start + len(logits) == len(self.ids):
            self.end("end")
        return 0
