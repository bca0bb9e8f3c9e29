"""Keep what came of a request, from which another process goes on with it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field

import msgspec

from rung.server.protocol import Delta, Finished, Generate

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
