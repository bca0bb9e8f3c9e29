"""Answers to many prompts, computed together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rung.core.errors import RungError
from rung.engine.generation import Generation
from rung.engine.scheduling.scheduler import Scheduler

#: Prompts for each sequence that is computed which wait for room: their tokens are known when there is some.
_QUEUE = 2


@dataclass(frozen=True)
class Answer:
    """The answer to one of many prompts: its text and tokens, and ``result`` as ``Generation`` has it.

    Where there is none, ``error`` says why; text and tokens are those that came before it.
    """

    text: str
    tokens: list[int]
    result: dict[str, Any]
    error: RungError | None = None


def as_completed(scheduler: Scheduler, jobs: Iterator[Callable[[], Generation]]) -> Iterator[tuple[int, Answer]]:
    """Yield the number of each job with its answer, as they are done. A job starts an answer."""
    most, left = _QUEUE * scheduler.parallel, enumerate(jobs)
    live: dict[int, Generation] = {}
    try:
        while True:
            while len(live) < most and (job := next(left, None)) is not None:
                number, start = job
                try:
                    live[number] = start()
                    live[number].begin()
                except RungError as error:
                    yield number, Answer("", [], {}, error)
            if not live:
                return
            scheduler.advance(*(each.sequence for each in live.values()))
            for number, each in list(live.items()):
                if (answer := _take(each)) is not None:
                    del live[number]
                    yield number, answer
    finally:
        for each in live.values():
            scheduler.cancel(each.sequence)


def _take(generation: Generation) -> Answer | None:
    """Return the answer where it has ended, or None."""
    error = None
    try:
        generation.take()
    except RungError as found:
        error = found
    if not generation.result and error is None:
        return None
    return Answer(generation.text, list(generation.tokens), generation.result, error)
