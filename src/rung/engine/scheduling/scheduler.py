"""Compute the tokens of many sequences together: who takes part in a step, with how many tokens.

Nothing runs by itself: a thread that wants a token of a sequence computes steps until there is one, for everybody who
wants tokens at that time. Sequences whose last token was taken a moment ago come along, so that answers that are read
in turns share steps. At most ``parallel`` sequences have a cache; the others wait.

Prompts are read in chunks beside the tokens of others. A chunk is as long as lets everybody have a token within
``LATENCY_GOAL`` seconds, by the speed of earlier steps. Whose turn it is goes by owner: the one who got least comes
first (Sheng et al., "Fairness in Serving Large Language Models", OSDI 2024). Where the pool of blocks is full, the
sequence that came last gives its blocks back and is computed again later.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from collections.abc import Sequence as Many
from itertools import accumulate, islice
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from rung.core.errors import DeviceError, NoRung, OutOfMemory
from rung.engine.scheduling.kv_cache import Tokens, common_length
from rung.engine.scheduling.sequence import MOST_ROWS, Outcome, Sequence, rows_of_answers
from rung.engine.scheduling.speculator import Draft, Speculator
from rung.formats.codec import Floats
from rung.models.decoder_memory import CHUNK
from rung.ops.decode_step.low_rank import BoundAdapter
from rung.ops.token_choice import Chosen, Row

#: Seconds within which everybody shall have a token while a prompt is read.
LATENCY_GOAL = 0.15
#: Seconds of tokens that a device chooses before it comes back: so long that coming back costs little beside them, so
#: short that nobody sees tokens come together or waits for those after an end.
LOOK_AHEAD = 0.03
#: Steps that choose from logits, at most, after a device was not sure of a token, which was computed twice then.
_LONGEST_PAUSE = 31
#: Share of ``LATENCY_GOAL`` which a step may be expected to take: later rows see more tokens, and machines stumble.
_SHARE = 0.85
#: Rows of a prompt beside the tokens of others while no speed is known, and at least.
_FIRST_ROWS, _FEWEST_ROWS = 16, 4
#: Rows of a step are a multiple of it: tiles have so many.
_MULTIPLE = 8
#: Tokens that another sequence is about to read for which one waits that begins with the same ones.
_WORTH_WAITING = 128
#: Seconds after its last token was taken in which a sequence keeps its cache and comes along.
_IDLE = 0.2
#: Seconds between two looks at whether there is room for a sequence.
_LOOK = 0.002


class Part(NamedTuple):
    """A sequence that takes part in a step: which of its tokens are computed, and the logits of how many.

    The last of them may be guesses. ``states`` is where hidden states of the last tokens are written. ``ahead`` are
    the settings of the tokens that the device chooses after them and reads by itself.
    """

    sequence: Sequence
    cache: Tokens
    start: int
    ids: Many[int]
    logits: int
    guesses: Many[int] = ()
    states: Floats | None = None
    ahead: Many[Row] = ()


C = TypeVar("C", bound=Tokens)
R = TypeVar("R")


class Backend(Protocol[C]):
    """Compute tokens: ``rung.engine.decoder.Decoder``, or a network of transformers."""

    @property
    def parallel(self) -> int:
        """Return how many sequences may have a cache at once."""

    @property
    def context(self) -> int:
        """Return how many tokens a sequence may have."""

    @property
    def vocabulary(self) -> int:
        """Return how many tokens the model knows."""

    @property
    def same_bytes(self) -> bool:
        """Return whether logits do not depend on how tokens are put together."""

    @property
    def look_ahead(self) -> int:
        """Return how many tokens ``choose`` chooses at most; 0 where it chooses none."""

    def begin(self, ids: Many[int], owner: str, share: bool, adapter: BoundAdapter | None = None) -> C | None:
        """Return a cache with room for ``ids`` and one more, or None where there is no room now.

        With ``share`` it has what is known of the beginning of ``ids``, all but the last at most. Its tokens are
        computed with ``adapter``, by default with what the model was loaded with.
        """

    def reserve(self, cache: C, count: int) -> None:
        """Make room for ``count`` tokens in all. Raises ``OutOfMemory``."""

    def keep(self, cache: C, owner: str) -> None:
        """Let other sequences of an owner share what a cache has."""

    def end(self, cache: C, owner: str, share: bool) -> None:
        """Give a cache back; with ``share`` what it has is kept until there is no room."""

    def recover(self, caches: Many[C]) -> None:
        """Mend the books after an interrupt in the midst of them; these caches are in use."""

    def chunk(self, count: int) -> int:
        """Return how many tokens of a prompt of ``count`` are read together."""

    def get_ready(self, count: int) -> None:
        """Import what computing so many tokens of a sequence needs, so that it does not count as computing."""

    def compute(self, batch: Many[tuple[C, Many[int], int, Floats | None]]) -> Floats:
        """Compute the next tokens of each cache; return logits of the last so many of each, one after the other.

        Hidden states of the last tokens are written where there is an array for them, if the backend has any.
        """

    def choose(self, cache: C, ids: Many[int], settings: Many[Row]) -> Many[int]:
        """Choose the tokens after the one of ``ids``, up to one by each of the settings, for which there is room.

        -1 is a token whose logits are no numbers. Fewer are returned where ``compute`` has to go on.
        """


#: Chooses a token of each row of logits [rows, vocabulary].
SampleRows = Callable[[Floats, Many[Row]], list[Chosen]]


class Scheduler:
    """Sequences over one backend. Any thread may call; a fork goes on with its copy.

    A step reads at most ``chunk`` tokens of prompts, and fewer beside tokens of others, so that those come within
    ``latency_goal`` seconds. An interrupt may come between any two lines. What it cuts is mended by the next call.
    ``replace`` is called with the error of a device that failed; it returns the backend that goes on, with the tokens
    that are known, or raises. Without it such an error is raised by the step, or ends the sequence of its logits.
    """

    def __init__(
        self,
        backend: Backend[Any],
        sample: SampleRows,
        chunk: int = CHUNK,
        latency_goal: float = LATENCY_GOAL,
        draft: Draft | None = None,
        replace: Callable[[Exception], Backend[Any]] | None = None,
    ) -> None:
        self._backend, self._sample, self._replace = backend, sample, replace
        self._chunk, self._latency_goal = chunk, latency_goal
        self._waiting: list[Sequence] = []
        self._running: list[Sequence] = []  # in the order in which they got their caches
        self._served: dict[str, float] = {}  # tokens by owner
        self._seconds_a_row = 0.0  # of a step with rows of a prompt
        self._seconds_ahead = 0.0  # of a token that the device chooses
        self._pause, self._pausing = 0, 0  # steps without its choice after it was not sure, and those that are left
        self._speculator = Speculator(draft)
        #: Steps of a sequence with guesses, the tokens that were guessed, and those that were right.
        self.guessing = self.guessed = self.guessed_right = 0
        self._changing = 0  # the thread in the midst of a change, or 0
        self._cut = False  # whether an interrupt or an error came in the midst of one
        self._process, self._lock = os.getpid(), threading.RLock()

    @property
    def parallel(self) -> int:
        """Return how many sequences may be computed at once."""
        return self._backend.parallel

    def add(self, sequence: Sequence) -> None:
        """Take a sequence on, which is computed when somebody waits for it."""
        with self._locked():
            active = {each.owner for each in (*self._waiting, *self._running)}
            counts = {owner: self._served.get(owner, 0.0) for owner in active}
            if sequence.owner not in counts:  # who was away has no claim on what was not used
                counts[sequence.owner] = max(self._served.get(sequence.owner, 0.0), min(counts.values(), default=0.0))
            self._served = counts
            self._speculator.add(sequence)
            self._waiting.append(sequence)

    def advance(self, *sequences: Sequence) -> None:
        """Return once one of some sequences has a token that nobody took, has ended, got its cache, or computed more.

        Raises what a step raises; the sequences are as they were then.
        """
        before = [(each.cached, each.computed) for each in sequences]
        for each in sequences:
            each.waiting, each.thread = True, threading.get_ident()
        try:
            while True:
                with self._locked():
                    if any(map(_has_news, sequences, before)):
                        return
                    moved = self._change(self._step_or_move)
                if not moved:
                    time.sleep(_LOOK)
        finally:
            for each in sequences:
                each.waiting, each.used = False, time.monotonic()

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence; what it has computed is kept for others. A step of another thread gives its cache back.

        It does not wait for that step: this may be the collection of garbage in a thread that the step waits for.
        """
        sequence.end("stopped")
        lock = self._locked()
        if self._changing in (0, threading.get_ident()):
            with lock:
                self._change(self._sweep)

    def between_steps(self, call: Callable[[], R]) -> R:
        """Make a call between two steps, while nobody changes what is cached. Raises what it raises."""
        found: list[R] = []
        failed: list[Exception] = []

        def change() -> bool:
            try:
                found.append(call())
            except Exception as error:  # the books are as they were
                failed.append(error)
            return True

        with self._locked():
            self._change(change)
        if failed:
            raise failed[0]
        return found[0]

    def _locked(self) -> threading.RLock:
        if self._process != os.getpid():  # a fork: its parent's threads, which may have the lock, are not here
            self._process, self._lock = os.getpid(), threading.RLock()
            self._changing, self._cut = 0, True
        return self._lock

    def _change(self, call: Callable[[], bool]) -> bool:
        """Make a call that changes the books, which are mended first if the last one was cut short.

        Not where this thread is in the midst of such a call: Python may throw an answer away at any time, which then
        is only marked as ended.
        """
        if self._changing:
            return False
        self._changing = threading.get_ident()
        try:
            if self._cut:
                self._mend()
            self._cut = True
            done = call()
            self._sweep()  # what others canceled meanwhile
            self._cut = False
            return done
        finally:
            self._changing = 0

    def _mend(self) -> None:
        everybody = list(dict.fromkeys((*self._running, *self._waiting)))
        self._running = [each for each in everybody if each.cache is not None]
        self._waiting = [each for each in everybody if each.cache is None]
        self._speculator.recover()
        self._backend.recover([each.cache for each in self._running if each.cache is not None])

    def _sweep(self) -> bool:
        """Give back the caches of sequences that have ended; return whether there were any."""
        ended = [each for each in (*self._running, *self._waiting) if each.ended and self._rests(each)]
        for sequence in ended:
            if sequence.cache is not None:
                self._stop(sequence)
            else:
                self._waiting.remove(sequence)
            self._speculator.remember(sequence)
        return bool(ended)

    def _rests(self, sequence: Sequence) -> bool:
        """Return whether no step that is under way has a sequence in it."""
        return True

    def _stop(self, sequence: Sequence) -> None:
        """Give back the cache of a sequence."""
        cache, sequence.cache = sequence.cache, None
        self._speculator.stop(sequence)
        if cache is not None:
            self._backend.end(cache, sequence.owner, sequence.error is None)
        self._running.remove(sequence)

    def _step(self) -> bool:
        """Give caches to those who wait, or compute the next tokens of those who take part; return whether any came."""
        self._sweep()
        if self._admit():
            return True
        begun = time.perf_counter()
        batch = self._batch()
        if not batch:
            return False
        guessing = time.perf_counter() - begun
        self._cut = False  # nothing changes while it is computed
        started = time.perf_counter()
        self._backend.get_ready(max(len(part.ids) for part in batch))
        begun = time.perf_counter()
        batch, outcomes, computed = self._compute(batch)
        self._cut = True
        for part, outcome in zip(batch, outcomes, strict=True):
            self._take(part, outcome)
        self._speculator.follow([(part.sequence, len(part.ids)) for part in batch])
        drafting = guessing + time.perf_counter() - computed
        self._measure(batch, begun - started, computed - begun, drafting)
        return True

    def _step_or_move(self) -> bool:
        """Do as ``_step``, and go on with another backend where the device of this one fails."""
        try:
            return self._step()
        except (DeviceError, NoRung) as error:
            full = isinstance(error, OutOfMemory) and self._cut  # the pool of blocks, which is no device
            if self._replace is None or full:
                raise
            self._move(self._replace(error))
        return True

    def _move(self, backend: Backend[Any]) -> None:
        """Go on with another backend: what has a cache is computed again there."""
        self._waiting, self._running = [*self._running, *self._waiting], []
        for each in self._waiting:
            each.cache = None
        self._backend, self._replace = backend, None
        self._seconds_a_row, self._seconds_ahead, self._pausing = 0.0, 0.0, 0
        self._speculator = Speculator()
        for each in self._waiting:
            self._speculator.add(each)

    def _compute(self, batch: list[Part]) -> tuple[list[Part], list[Outcome], float]:
        """Compute a step; return its parts as they were computed, what came of each, and when computing ended."""
        first = batch[0]
        if first.ahead:
            tokens = list(self._backend.choose(first.cache, first.ids, first.ahead))
            computed = time.perf_counter()
            self._pause = 0 if len(tokens) == len(first.ahead) else min(2 * self._pause + 1, _LONGEST_PAUSE)
            self._pausing = self._pause
            if tokens:
                part, outcome = _chosen_ahead(first, tokens)
                return [part], [outcome], computed
            batch = [first._replace(ahead=())]
        logits = self._backend.compute([(part.cache, part.ids, part.logits, part.states) for part in batch])
        computed = time.perf_counter()
        return batch, self._choose(batch, logits), computed

    def _choose(self, batch: Many[Part], logits: Floats) -> list[Outcome]:
        """Choose the next tokens of all sequences of a step in one call."""
        rows = [_rows(part) for part in batch]
        firsts = [0, *accumulate(part.logits for part in batch)]
        picked = [first + number for first, each in zip(firsts, rows, strict=False) for number in range(len(each))]
        settings = [row for each in rows for row in each]
        values = logits if len(picked) == len(logits) else logits[picked]
        tokens = iter(self._sample(values, settings) if settings else ())
        return [
            Outcome(part.start, logits[first : first + part.logits], list(islice(tokens, len(each))), part.guesses)
            for part, first, each in zip(batch, firsts, rows, strict=False)
        ]

    def _take(self, part: Part, outcome: Outcome) -> None:
        """Let a sequence take what was computed and count its tokens.

        What fails there ends this sequence alone, but for logits that are no numbers where another backend can go on.
        """
        sequence, wrong = part.sequence, len(part.guesses)
        try:
            wrong -= 0 if sequence.error else sequence.accept(outcome)
        except Exception as error:
            if isinstance(error, DeviceError) and self._replace is not None:
                raise
            sequence.end("error", error)
        part.cache.advance(part.ids[: len(part.ids) - wrong])
        if part.guesses:
            self._speculator.note(sequence, len(part.guesses), len(part.guesses) - wrong)
            self.guessing += 1
            self.guessed += len(part.guesses)
            self.guessed_right += len(part.guesses) - wrong
        self._served[sequence.owner] = self._served.get(sequence.owner, 0.0) + len(part.ids)
        if sequence.shares:
            self._backend.keep(part.cache, sequence.owner)

    def _measure(self, batch: Many[Part], ready: float, seconds: float, drafting: float) -> None:
        """Note how long a step took: for its sequences, and for how many rows the next one may have.

        ``seconds`` are of computing it, ``drafting`` of what came before and after.
        """
        for part in batch:
            part.sequence.seconds["prefill" if part.start < part.sequence.prompt else "decode"] += seconds + drafting
            part.sequence.seconds["ready"] += ready
        rows = sum(len(part.ids) for part in batch)
        if batch[0].ahead:
            self._seconds_ahead = seconds / len(batch[0].ahead)
            self._speculator.note_seconds(1, self._seconds_ahead)
        elif all(len(part.ids) == 1 + len(part.guesses) for part in batch):
            self._speculator.note_seconds(rows, seconds)
        elif any(part.start < part.sequence.prompt for part in batch):
            found = (seconds + drafting) / rows
            self._seconds_a_row = 0.5 * (self._seconds_a_row + found) if self._seconds_a_row else found

    def _batch(self) -> list[Part]:
        """Return who takes part in a step, with the tokens that are computed next: single ones first."""
        active = self._active()
        left = {each: len(each.ids) - each.computed for each in active}
        rows = rows_of_answers(left, MOST_ROWS)
        if not self._backend.same_bytes:  # answers are computed token by token
            rows = dict.fromkeys(rows, 1)
        room = self._prompt_rows(sum(rows.values())) if rows else self._chunk
        active.sort(key=lambda each: (each not in rows, self._served.get(each.owner, 0.0)))
        batch: list[Part] = []
        for each in active:
            if each not in rows and room <= 0:
                break
            count = min(left[each], rows.get(each, room), self._most(each, left[each]))
            count = self._reserve(each, count, batch)
            if count and each.cache is not None:
                room -= 0 if each in rows else count
                start = each.computed
                ids = each.ids[start : start + count]
                with_logits = each.logits_of(len(ids))
                batch.append(Part(each, each.cache, start, ids, with_logits, states=each.states_of(len(ids))))
        batch.sort(key=_adapter_number)  # rows with the same one are multiplied together
        singles = all(left[part.sequence] == 1 for part in batch)
        return self._ahead(self._with_guesses(batch)) if singles else batch

    def _active(self) -> list[Sequence]:
        """Return the sequences that may take part in a step."""
        return [each for each in self._running if takes_part(each)]

    def _ahead(self, batch: list[Part]) -> list[Part]:
        """Return the parts of a step without prompts, with the settings of the tokens that the device chooses where
        there is one part and its settings are simple."""
        if len(batch) != 1:
            return batch
        part, sequence = batch[0], batch[0].sequence
        most = min(self._backend.look_ahead, sequence.most_guesses + 1)
        if part.guesses or most < 1 or part.start < sequence.prompt:
            return batch  # the first token is waited for, and its time is the prompt's
        if self._pausing:
            self._pausing -= 1
            return batch
        count = min(most, max(int(LOOK_AHEAD / self._seconds_ahead), 1) if self._seconds_ahead else 1)
        settings = sequence.rows_ahead(count)
        if len(settings) > 1:
            try:
                self._backend.reserve(part.cache, part.start + count)
            except OutOfMemory:
                settings = settings[:1]
        return [part._replace(ahead=settings)]

    def _with_guesses(self, batch: list[Part]) -> list[Part]:
        """Return the parts of a step without prompts, with guesses of the next tokens where those pay."""
        if not self._backend.same_bytes:
            return batch
        parts = {part.sequence: part for part in batch}

        def reserve(sequence: Sequence, count: int) -> bool:
            try:
                self._backend.reserve(parts[sequence].cache, count)
            except OutOfMemory:
                return False
            return True

        found = self._speculator.guess(list(parts), reserve)
        return [
            part._replace(ids=[*part.ids, *guesses], logits=1 + len(guesses), guesses=guesses) if guesses else part
            for part, guesses in zip(batch, found, strict=True)
        ]

    def _most(self, sequence: Sequence, left: int) -> int:
        """Return how many tokens of a sequence may be read together.

        Where logits depend on it, tokens of an answer are computed again one by one, as they were before.
        """
        if not self._backend.same_bytes and sequence.shares:
            left = max(min(left, sequence.prompt - sequence.computed), 1)
        return min(left, self._backend.chunk(min(left, sequence.most_rows) if sequence.most_rows else left))

    def _prompt_rows(self, others: int) -> int:
        """Return how many rows of prompts a step may have so that ``others`` have their tokens in time."""
        if not self._seconds_a_row:
            return _FIRST_ROWS
        rows = int(_SHARE * self._latency_goal / self._seconds_a_row)
        return max(min(rows // _MULTIPLE * _MULTIPLE - others, self._chunk), _FEWEST_ROWS)

    def _reserve(self, sequence: Sequence, count: int, batch: Many[Part]) -> int:
        """Make room for up to ``count`` next tokens of a sequence, and return for how many.

        Where there is no room for all there may be for fewer: a chunk needs more of a window than a token. Else others
        that came later give theirs up, or this one does.
        """
        while sequence.cache is not None:
            try:
                self._backend.reserve(sequence.cache, sequence.computed + count)
            except OutOfMemory:
                if count > 1:
                    count //= 2
                    continue
                inside = [part.sequence for part in batch]
                self.preempt(next(each for each in reversed(self._running) if each not in inside and self._rests(each)))
            else:
                return count
        return 0

    def preempt(self, sequence: Sequence) -> None:
        """Take the cache of a sequence, which waits before all others then."""
        self._waiting.insert(0, sequence)
        self._stop(sequence)

    def _admit(self) -> bool:
        """Give caches to those who wait, the owner who got least first; return whether there was room for any."""
        asking = [each for each in self._waiting if each.waiting]
        asking.sort(key=lambda each: self._served.get(each.owner, 0.0))
        count = len(self._running)
        for sequence in asking:
            while not (self._shares_soon(sequence) or self._begin(sequence)):
                if not self._running:
                    raise OutOfMemory("The cache of keys and values has no room for one sequence.")
                idle = next((each for each in self._running if _is_idle(each) and self._rests(each)), None)
                if idle is None:
                    return len(self._running) > count
                self.preempt(idle)
                count -= 1
        return len(self._running) > count

    def _begin(self, sequence: Sequence) -> bool:
        """Give a sequence a cache; return whether there was room."""
        if len(self._running) >= self._backend.parallel:
            return False
        cache = self._backend.begin(sequence.ids, sequence.owner, sequence.shares, sequence.adapter)
        if cache is None:
            return False
        if sequence.cached is None:
            sequence.cached = cache.length
        self._running.append(sequence)
        sequence.cache = cache
        self._waiting.remove(sequence)
        return True

    def _shares_soon(self, sequence: Sequence) -> bool:
        """Return whether another sequence is reading what this one begins with, so that waiting saves time."""
        return sequence.shares and any(
            each.shares
            and each.owner == sequence.owner
            and each.adapter is sequence.adapter
            and takes_part(each)
            and common_length(each.ids[: each.prompt], sequence.ids) >= each.computed + _WORTH_WAITING
            for each in self._running
        )


def _chosen_ahead(part: Part, tokens: list[int]) -> tuple[Part, Outcome]:
    """Return a part with the tokens that the device has chosen and read, as guesses that are right, and what came."""
    chosen = [Chosen(token) if token >= 0 else Chosen(error="not-numbers") for token in tokens]
    found = part._replace(ids=[*part.ids, *tokens[:-1]], guesses=tokens[:-1])
    return found, Outcome(part.start, np.empty((0, 0), np.float32), chosen, found.guesses)


def _rows(part: Part) -> list[Row]:
    """Return the sampling rows of a part. A mask that fails ends its sequence."""
    try:
        return part.sequence.rows(part.guesses) if part.logits else []
    except Exception as error:
        part.sequence.end("error", error)
        return []


def _has_news(sequence: Sequence, before: tuple[int | None, int]) -> bool:
    """Return whether a sequence has a token, has ended, or came further than (cached, computed) before."""
    return sequence.ahead or sequence.ended or sequence.cached != before[0] or sequence.computed > before[1]


def takes_part(sequence: Sequence) -> bool:
    if sequence.ahead or sequence.ended:
        return False
    return sequence.waiting or time.monotonic() - sequence.used < _IDLE


def _adapter_number(part: Part) -> int:
    return 0 if part.sequence.adapter is None else part.sequence.adapter.number


def _is_idle(sequence: Sequence) -> bool:
    """Return whether a sequence may lose its cache: nobody waits for it, nor will in a moment."""
    elsewhere = sequence.thread != threading.get_ident()
    return not (sequence.waiting or (elsewhere and time.monotonic() - sequence.used < _IDLE))
