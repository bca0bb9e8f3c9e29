"""Test that no answer depends on what is computed beside it: tokens and logits of many answers, alone and in company.

    python benchmarks/same_bytes.py [MODEL ...] [--answers 10000] [--threads 2] [--cache-type q8_0]

Each answer is computed alone on one thread, with nothing in the cache and no guesses, and again among up to 15 others:
in another order, with prompts cut elsewhere, beginnings that are known, guesses, and more threads. A digest of every
row of logits that a token was chosen from must be the same. Prints how many differ; the exit code is 1 if any does.
"""

from __future__ import annotations

import argparse
import hashlib
import random
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import rung
from rung.engine.sampling import Sampler, Sampling, likeliest
from rung.engine.scheduling.scheduler import Scheduler
from rung.engine.scheduling.sequence import Outcome, TokenSequence

FIXTURES = Path(__file__).parents[1] / "tests" / "fixtures" / "gguf"
CONTEXT, COMPANY = 128, 16


class Digested(TokenSequence):
    """Takes the likeliest tokens, and keeps a digest of every row of logits that one was chosen from."""

    def __init__(self, ids: list[int], most: int) -> None:
        super().__init__(ids, Sampler(Sampling()), ends=frozenset(), context=CONTEXT, most=most)
        self.digest = hashlib.sha256()

    def accept(self, outcome: Outcome) -> int:
        """Note the logits, and go on."""
        right = super().accept(outcome)
        for row in outcome.logits[: right + 1]:
            self.digest.update(row.tobytes())
        return right


def prompts(count: int, vocabulary: int, chance: random.Random) -> list[tuple[list[int], int]]:
    """Return prompts, many of which begin alike or repeat themselves, and how long each answer is."""
    known = [[chance.randrange(vocabulary) for _ in range(chance.randrange(1, 80))] for _ in range(8)]
    found = []
    for _ in range(count):
        start = chance.choice(known)
        ids = [*start[: chance.randrange(len(start) + 1)], *(chance.randrange(vocabulary) for _ in range(5))]
        found.append((ids * chance.choice([1, 1, 2]) if len(ids) < 40 else ids, chance.randrange(1, 12)))
    return found


def _likeliest(logits: Any, rows: Any) -> Any:
    return likeliest(logits)


def answer(scheduler: Scheduler, jobs: Sequence[tuple[list[int], int]], guesses: bool) -> list[str]:
    """Return a digest of the tokens and logits of each job, which are computed together."""
    sequences = [Digested(ids, most) for ids, most in jobs]
    for each in sequences:
        scheduler.add(each)
        each.guesser = each.guesser if guesses else None
    while left := [each for each in sequences if not each.ended]:
        scheduler.advance(*left)
        for each in sequences:
            while each.take() is not None:
                pass
    for each in sequences:
        scheduler.cancel(each)
    return [f"{each.ids} {each.digest.hexdigest()}" for each in sequences]


def compare(name: str, count: int, threads: int, cache_type: str | None) -> int:
    """Return how many answers of a model differ."""
    chance = random.Random(name)
    load = partial(rung.load, name, context=CONTEXT, device="cpu", cache_type=cache_type)
    alone, together = load(threads=1), load(threads=threads, parallel=COMPANY)
    jobs = prompts(count, alone.backend.vocabulary, chance)
    expected = []
    for job in jobs:
        alone.backend.prefixes.clear()
        expected += answer(Scheduler(alone.backend, _likeliest), [job], guesses=False)
    order = list(range(count))
    chance.shuffle(order)
    differ = 0
    while order:
        some = [order.pop() for _ in range(min(len(order), chance.randrange(1, COMPANY + 1)))]
        limits = {"chunk": chance.randrange(4, 200), "latency_goal": chance.uniform(0, 0.02)}
        scheduler = Scheduler(together.backend, _likeliest, **limits)
        for number, found in zip(some, answer(scheduler, [jobs[each] for each in some], guesses=True), strict=True):
            differ += found != expected[number]
    print(f"{Path(name).stem}: {differ} of {count} differ", flush=True)
    return differ


def promises(name: str) -> bool:
    """Return whether a model promises the same bytes; say so if not."""
    found: bool = rung.load(name, context=CONTEXT, threads=1, device="cpu").backend.same_bytes
    if not found:
        print(f"{Path(name).stem}: does not promise it")
    return found


def main() -> None:
    """Compare the answers of every model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--answers", type=int, default=10_000, help="in all")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache-type")
    options = parser.parse_args()
    names = options.models or ["demo", *map(str, sorted(FIXTURES.glob("*.gguf")))]
    names = [name for name in names if promises(name)]
    started = time.monotonic()
    count = -(-options.answers // len(names))
    differ = sum(compare(name, count, options.threads, options.cache_type) for name in names)
    print(f"{differ} differ, {time.monotonic() - started:.0f} s")
    sys.exit(int(differ > 0))


if __name__ == "__main__":
    main()
