"""The work of the scheduler: a sequence of tokens that an answer makes longer, or one whose logits are asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from collections.abc import Sequence as Many
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rung.engine.sampling import Sampler, Sampling, logprob_of, refusal
from rung.engine.scheduling.kv_cache import Tokens
from rung.engine.scheduling.speculation import Guesser
from rung.formats.codec import Floats
from rung.ops.decode_step.low_rank import BoundAdapter
from rung.ops.token_choice import Chosen, Row

#: Rows of a step of next tokens: more are computed another way.
MOST_ROWS = 16


class Outcome(NamedTuple):
    """Hold what a step computed of a sequence.

    ``logits`` [rows, vocabulary] are of tokens from ``start`` on, the last rows those after each of ``guesses``;
    ``chosen`` are the tokens by ``Sequence.rows``. The next step overwrites the logits.
    """

    start: int
    logits: Floats
    chosen: Many[Chosen] = ()
    guesses: Many[int] = ()


class Sequence:
    """Tokens, how many of them a cache has, and what is done with the logits.

    ``ids`` are all tokens so far; those that ``cache`` does not have are computed next. Sequences of an ``owner`` share
    what they have computed. An interrupt may come between any two lines of ``accept``: it is then called again.
    """

    #: Whether keys and values of earlier sequences may be used.
    shares = True
    #: Tokens that are read together at most, since the logits of each take room; 0: as many as the backend takes.
    most_rows = 0
    #: What guesses the next tokens, if anything does.
    guesser: Guesser | None = None
    #: What changes the weights for it; None where it names no adapter.
    adapter: BoundAdapter | None = None

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

    def rows_ahead(self, count: int) -> list[Row]:
        """Return the settings of its next tokens where a device may choose them; else none."""
        return []

    def logits_of(self, count: int) -> int:
        """Return of how many of the next ``count`` tokens, the last ones, logits are needed."""
        raise NotImplementedError

    def states_of(self, count: int) -> Floats | None:
        """Return where hidden states of the last of the next ``count`` tokens are written, [n, hidden] f32."""
        return None

    def rows(self, guesses: Many[int]) -> list[Row]:
        """Return the rows to sample: the next token, and one after each guess; none where no token is sampled."""
        return []

    def accept(self, outcome: Outcome) -> int:
        """Go on after a step, and return how many of its guesses were right."""
        raise NotImplementedError


def rows_of_answers(left: Mapping[Sequence, int], most: int) -> dict[Sequence, int]:
    """Return how many tokens a step computes of each sequence that is in its answer, ``most`` in all if there are not
    more sequences: the next one of each, and those after it that were forced when it was chosen.

    ``left`` are the tokens that are not computed. Where those of an answer are many they are no tokens of a step, but
    read as a prompt's: a cache was given back.
    """
    found = {each: 1 for each, count in left.items() if count == 1 or (each.computed >= each.prompt and count <= most)}
    room = most - len(found)
    for each in found:
        more = max(min(left[each] - 1, room), 0)
        found[each] += more
        room -= more
    return found


class TokenSequence(Sequence):
    """A sequence that gets longer by a token whenever all of its tokens are computed.

    It ends with one of ``ends``, after ``most`` tokens, or when ``context`` tokens are computed.
    """

    def __init__(
        self,
        ids: Many[int],
        sampler: Sampler,
        *,
        ends: frozenset[int],
        context: int,
        most: int | None = None,
        owner: str = "",
    ) -> None:
        super().__init__(ids, owner)
        self._sampler, self._ends, self._context, self._most = sampler, ends, context, most
        self.guesser = Guesser()
        self._taken = 0
        #: Tokens at the end of an answer that no step has computed, since what followed them was forced.
        self.uncomputed = 0

    def go_on_after(self, tokens: Many[int]) -> None:
        """Have it go on after tokens of the answer that are known, before it begins. Nobody has taken them yet."""
        for index, token in enumerate(tokens):
            self._sampler.note(index, Chosen(token))
        self.ids += tokens

    @property
    def logprobs(self) -> list[Chosen]:
        """Return the tokens that were chosen with their log probabilities, if its sampler keeps them."""
        return self._sampler.logprobs

    @property
    def sampling(self) -> Sampling:
        """Return how its tokens are chosen."""
        return self._sampler.sampling

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

    def rows_ahead(self, count: int) -> list[Row]:
        """See there."""
        return self._sampler.rows_ahead(len(self.ids) - self.prompt, count)

    def logits_of(self, count: int) -> int:
        """Return 1 with the last of its tokens, else 0."""
        return int(self.computed + count == len(self.ids))

    def rows(self, guesses: Many[int]) -> list[Row]:
        """See there."""
        return self._sampler.rows(self.ids[self.prompt :], guesses)

    def accept(self, outcome: Outcome) -> int:
        """Append the tokens that were chosen, up to the first that is not as guessed. Raises the error of a row."""
        for right, chosen in enumerate(outcome.chosen):
            if chosen.error:
                raise refusal(chosen)
            self._sampler.note(len(self.ids) - self.prompt, chosen)
            if chosen.token in self._ends:
                self.end("end")
                return right
            self.ids.append(chosen.token)
            if right == len(outcome.guesses) or chosen.token != outcome.guesses[right]:
                self._append_forced()
                return right
        return 0

    def _append_forced(self) -> None:
        """Append the tokens that must follow, whatever their logits are; the next step computes them together."""
        for before, token in enumerate(self._sampler.forced(self.ids[self.prompt :])[: MOST_ROWS - 1]):
            if self.ended:
                return
            if token in self._ends:
                self.uncomputed = 1 + before
                self.end("end")
                return
            self.ids.append(token)


class LogitSequence(Sequence):
    """A sequence of which the logits after every token are asked for: ``logits`` [tokens, vocabulary] f32."""

    shares = False

    def __init__(self, ids: Many[int], vocabulary: int) -> None:
        super().__init__(ids)
        self.logits: Floats = np.empty((len(self.ids), vocabulary), np.float32)

    def logits_of(self, count: int) -> int:
        """Return ``count``: each token's logits are needed."""
        return count

    def accept(self, outcome: Outcome) -> int:
        """Keep the logits."""
        end = outcome.start + len(outcome.logits)
        self.logits[outcome.start : end] = outcome.logits
        if end == len(self.ids):
            self.end("end")
        return 0


class LogprobSequence(Sequence):
    """A sequence of which the log probability of each token after the first is computed, with ``top`` likeliest.

    ``found`` has a ``Chosen`` for each token; the first one has no log probability, since nothing comes before it.
    """

    shares = False
    most_rows = 32

    def __init__(self, ids: Many[int], top: int) -> None:
        super().__init__(ids)
        self._top = top
        self.found = [Chosen(token) for token in self.ids]

    def logits_of(self, count: int) -> int:
        """Return ``count``: each token's logits are needed."""
        return count

    def accept(self, outcome: Outcome) -> int:
        """Keep what the logits say of the tokens that follow. Raises the error of logits that are no numbers."""
        for position, row in enumerate(outcome.logits, outcome.start + 1):
            if position < len(self.ids):
                self.found[position] = logprob_of(row, self.ids[position], self._top)
        if outcome.start + len(outcome.logits) == len(self.ids):
            self.end("end")
        return 0


class StateSequence(Sequence):
    """A sequence of which an embedding [hidden] f32 is computed: the hidden state of its last token, or the mean.

    Hidden states are those after the final norm, as transformers' ``last_hidden_state``.
    """

    def __init__(self, ids: Many[int], hidden: int, pooling: str) -> None:
        super().__init__(ids)
        self.shares = pooling == "last"  # the mean needs every token
        self._hidden, self._states = hidden, np.empty((0, hidden), np.float32)
        self._sum: tuple[int, npt.NDArray[np.float64]] = (0, np.zeros(hidden))  # of so many tokens, in their order
        self.embedding: Floats = np.empty(hidden, np.float32)

    def logits_of(self, count: int) -> int:
        """Return 0: no logits are needed."""
        return 0

    def states_of(self, count: int) -> Floats | None:
        """Return room for each token, or for the last one alone."""
        if self.shares:
            count = int(self.computed + count == len(self.ids))
        self._states = np.empty((count, self._hidden), np.float32)
        return self._states if count else None

    def accept(self, outcome: Outcome) -> int:
        """Add the states up; one token after the other, so that it does not matter how they were read together."""
        count, states = len(self._states), self._states
        if self.shares:
            self.embedding = states[0] if count else self.embedding
        elif outcome.start + count != self._sum[0]:  # else an interrupt came after they were added
            before = self._sum[1] if outcome.start else np.zeros(self._hidden)
            self._sum = outcome.start + count, np.add.reduce(np.concatenate([before[None], states]), axis=0)
            self.embedding = (self._sum[1] / len(self.ids)).astype(np.float32)
        if count and (self.shares or self._sum[0] == len(self.ids)):
            self.end("end")
        return 0
