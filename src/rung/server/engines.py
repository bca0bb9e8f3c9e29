"""The models as endpoints know them, wherever they are computed, and what another process goes on from."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import msgspec

from rung.models.store.folder import Manifest
from rung.server.protocol import Counts, Delta, Failed, Finished, Generate, ModelInfo, PromptRead, Question, Started

#: What an answer consists of: its beginning, how far its prompt is read, what it got longer by, and its end.
Event = Started | PromptRead | Delta | Finished
#: Takes a delta when it comes, before whoever iterates over events; False where it is to be iterated over.
TakeNow = Callable[[Delta], bool]
#: Seconds that a request waits for a model that is being loaded, and for which its client has no sign of life.
START_SECONDS = 30.0


def take_none(delta: Delta) -> bool:
    """Leave all deltas to whoever iterates."""
    return False


class Engine(Protocol):
    """One model, which is loaded when the first request comes."""

    name: str
    #: Why it could not be loaded, if that is so.
    failed: Failed | None
    #: Scales of its adapters in answers that name none, by their numbers; None as it was loaded.
    adapters: dict[int, float] | None
    #: Seconds that it stays loaded after an answer; without end where it is ``math.inf``.
    keep_alive: float

    @property
    def model(self) -> ModelInfo | None:
        """Return the model, once it was loaded."""

    @property
    def positions(self) -> Mapping[int, int]:
        """Return how many answers come before requests that wait for room, by id."""

    @property
    def memory(self) -> Mapping[str, int]:
        """Return the most bytes that it takes, by device; empty where it is not loaded."""

    @property
    def is_ready(self) -> bool:
        """Return whether it takes requests now."""

    @property
    def is_loaded(self) -> bool:
        """Return whether it is loaded, or is being loaded."""

    @property
    def is_starting(self) -> bool:
        """Return whether it is being loaded."""

    @property
    def expires(self) -> float | None:
        """Return in how many seconds it is unloaded if nobody uses it, None where it stays."""

    async def wait_ready(self, limit: float | None = START_SECONDS) -> ModelInfo:
        """Return the model once it is loaded. Raises ``ApiError`` (503) where that takes longer or cannot be."""

    def generate(self, request: Generate, take: TakeNow = take_none) -> AsyncGenerator[Event]:
        """Yield what comes of a request: ``Started``, then deltas and ends of its answers; where the iterator is closed
        before, the request is canceled. ``take`` is asked for deltas while the next event is awaited, and those that it
        takes are not yielded. Raises ``ApiError``."""

    async def ask(self, question: Question) -> Any:
        """Return the answer to a question. Raises ``ApiError``."""

    async def counts(self) -> Counts:
        """Return the counts of running work; zeros where the model is not loaded, which this does not change."""

    def keep(self, seconds: float) -> None:
        """Keep the model so many seconds after each answer from now on; at 0 it is unloaded when it is idle."""


class Listed(NamedTuple):
    """A model that requests may name; ``manifest`` is of the store, ``engine`` there once it was named."""

    name: str
    engine: Engine | None
    manifest: Manifest | None


class Pool(Protocol):
    """The models that a server has."""

    @property
    def engines(self) -> Mapping[str, Engine]:
        """Return the models that were named so far."""

    @property
    def loaded(self) -> Sequence[Engine]:
        """Return the models that are loaded, or are being loaded."""

    @property
    def waits_for(self) -> Engine | None:
        """Return a model of the command line that is loading or has failed, if there is one."""

    def find(self, name: str | None) -> Engine:
        """Return the model of a name, without one the first. Raises ``ApiError`` (404) for an unknown name."""

    def listed(self) -> Sequence[Listed]:
        """Return the models that requests may name, those of the command line first."""

    async def drop(self, name: str) -> str:
        """Unload a model of the store when its answers have ended, and forget it; return its name in the store. Raises
        ``ApiError`` for a name that the store has not (404), and for a model that stays (409)."""

    async def start(self) -> None:
        """Load the models of the command line. Raises ``RungError`` for one that cannot be loaded."""

    async def stop(self) -> None:
        """End all that computes."""


#: Bits of a seed that is drawn: few, so that it can be typed again.
_SEED_BITS = 32


def with_seed(request: Generate) -> Generate:
    """Return a request that any process answers with the same draws: one without a seed gets one."""
    if request.options.get("seed") is not None:
        return request
    return msgspec.structs.replace(request, options={**request.options, "seed": secrets.randbits(_SEED_BITS)})


@dataclass
class Replay:
    """A request that is answered, and the tokens that came of each of its answers.

    ``ended`` are answers of which all has come; ``same_bytes`` has the number of tokens before the first that a lower
    rung computed, of answers that have such.
    """

    message: Generate
    tokens: dict[int, list[int]] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    same_bytes: dict[int, int] = field(default_factory=dict)
    is_started: bool = False

    @property
    def is_over(self) -> bool:
        """Return whether all answers have ended."""
        return len(self.ended) >= self.message.answers

    def begin(self) -> bool:
        """Note that a process has understood it; return whether it is the first to say so."""
        was_started, self.is_started = self.is_started, True
        return not was_started

    def add(self, delta: Delta) -> None:
        """Note tokens that came."""
        self.tokens.setdefault(delta.index, []).extend(delta.tokens)

    def end(self, end: Finished) -> None:
        """Note that an answer has ended, and write into its report where other bytes may begin."""
        self.ended.add(end.index)
        if end.index in self.same_bytes:
            end.report["same_bytes_until"] = self.same_bytes[end.index]

    def step_down(self) -> None:
        """Note that tokens which come from now on may be others than those of the process before."""
        for index in range(self.message.answers):
            if index not in self.ended:
                self.same_bytes.setdefault(index, len(self.tokens.get(index, ())))

    def go_on(self) -> Generate:
        """Return the request for a process that goes on with it."""
        count = range(self.message.answers)
        answered = [None if index in self.ended else self.tokens.get(index, []) for index in count]
        return msgspec.structs.replace(self.message, answered=answered)
