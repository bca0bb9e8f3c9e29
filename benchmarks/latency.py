"""How long others wait for a token: beside a long prompt, and in a chat turn; and what the prefix cache finds again.

    python benchmarks/latency.py MODEL.gguf [--turns 5]

Prints the gaps between tokens of four sequences while a prompt of 2,000 tokens is read, and the time to the first token
of 20 new tokens after 2,000 known ones: known to the same model, and to one that is loaded anew and reads a folder of
prefixes. The trace is a tree of prompts of 16 owners over half of the blocks that all of
it takes; the oracle frees the block that is needed again last (Belady, 1966).
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import rung
from rung.engine.sampling import Sampler, Sampling
from rung.engine.scheduling.kv_cache import BlockPool, Cache
from rung.engine.scheduling.prefix_cache import PrefixCache
from rung.engine.scheduling.prefix_files import PrefixFiles
from rung.engine.scheduling.sequence import TokenSequence

PROMPT, NEW, TALKERS, BLOCK = 2000, 20, 4, 64


def sequence(ids: list[int], most: int | None, context: int) -> TokenSequence:
    """Return a greedy sequence without an end and without guesses."""
    result = TokenSequence(ids, Sampler(Sampling()), ends=frozenset(), context=context, most=most)
    result.guesser = None
    return result


def gaps(model: Any, chance: random.Random) -> list[float]:
    """Return the seconds between tokens of each of four sequences while a long prompt is read."""
    scheduler, context = model.scheduler, model.plan.context
    talkers = [sequence([chance.randrange(5, 200) for _ in range(16)], None, context) for _ in range(TALKERS)]
    for each in talkers:
        scheduler.add(each)
    while not all(each.ahead for each in talkers):
        scheduler.advance(*talkers)
    reader = sequence([chance.randrange(5, 200) for _ in range(PROMPT)], 1, context)
    scheduler.add(reader)
    last, found = dict.fromkeys(talkers, time.perf_counter()), []
    while not reader.ended:
        for each in talkers:
            while each.take() is not None:
                now = time.perf_counter()
                found.append(now - last[each])
                last[each] = now
        scheduler.advance(reader, *talkers)
    for each in (reader, *talkers):
        scheduler.cancel(each)
    return found[TALKERS:]


def chat_turn(before: Any, load: Callable[[], Any], chance: random.Random) -> float:
    """Return the seconds to the first token of a turn on top of a long conversation, which ``before`` has read.

    The model that ``load`` returns then answers it.
    """
    history = [chance.randrange(5, 200) for _ in range(PROMPT)]
    first_token(before, history)
    took, cached = first_token(load(), [*history, *(chance.randrange(5, 200) for _ in range(NEW))])
    assert cached == PROMPT, cached
    return took


def first_token(model: Any, ids: list[int]) -> tuple[float, int]:
    """Return the seconds to the first token after a prompt, and how many tokens of it were not computed."""
    each, scheduler = sequence(ids, 1, model.plan.context), model.scheduler
    started = time.perf_counter()
    scheduler.add(each)
    while not each.ahead:
        scheduler.advance(each)
    took = time.perf_counter() - started
    scheduler.cancel(each)
    model.backend.prefixes.settle_all()
    return took, each.cached


def trace(chance: random.Random) -> list[tuple[str, list[int]]]:
    """Return prompts with their owners: chats that go on, on top of a few system prompts of each owner."""
    found = []
    for owner in range(16):
        systems = [[chance.randrange(1000) for _ in range(chance.randrange(100, 600))] for _ in range(3)]
        for _ in range(12):
            ids = list(chance.choice(systems))
            for _ in range(chance.randrange(1, 8)):
                ids = [*ids, *(chance.randrange(1000) for _ in range(chance.randrange(20, 200)))]
                found.append((owner + chance.random() * 16, str(owner), list(ids)))
    order = sorted(range(len(found)), key=lambda number: number + chance.uniform(0, 300))
    return [found[number][1:] for number in order]


def blocks_of(owner: str, ids: list[int]) -> list[tuple[Any, ...]]:
    """Return the name of each whole block of a prompt."""
    return [(owner, *ids[:end]) for end in range(BLOCK, len(ids), BLOCK)]


def oracle(requests: list[tuple[str, list[int]]], room: int) -> int:
    """Return the tokens that are found again if the block is freed that is needed again last."""
    uses: dict[Any, list[int]] = {}
    paths = [[hash(name) for name in blocks_of(owner, ids)] for owner, ids in requests]
    for number, path in enumerate(paths):
        for name in path:
            uses.setdefault(name, []).append(number)
    here: set[Any] = set()
    hits = 0
    for path in paths:
        known = len(list(itertools.takewhile(lambda name: name in here, path)))
        hits += BLOCK * known
        for name in path:
            uses[name].pop(0)
            here.add(name)
        while len(here) > room:
            here.remove(max(here, key=lambda name: uses[name][0] if uses[name] else len(paths)))
    return hits


def found_again(requests: list[tuple[str, list[int]]], room: int, files: PrefixFiles | None = None) -> int:
    """Return the tokens that the prefix cache finds, in whole blocks; with ``files`` it begins anew in the middle."""
    shape: Any = SimpleNamespace(kv_heads=1, head_dim=16, layers=(SimpleNamespace(window=None),))
    hits = 0
    for number, (owner, ids) in enumerate(requests):
        if not number or (files is not None and number == len(requests) // 2):
            pool = BlockPool(shape, 4096, "f32", ["cpu"], BLOCK, room)
            prefixes = PrefixCache(pool, files)
        cache = Cache(pool)
        prefixes.attach(cache, ids[:-1], owner)
        hits += cache.length // BLOCK * BLOCK
        cache.reserve(len(ids))
        cache.advance(ids[cache.length :])
        prefixes.insert(cache, owner, cache.length, checkpoint=True)
        prefixes.write_files(cache.ids, owner)
        prefixes.settle_all()
        cache.release()
    return hits


def main() -> None:
    """Measure and print all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--turns", type=int, default=5)
    options = parser.parse_args()
    requests = trace(random.Random(5))
    room = len({name for owner, ids in requests for name in blocks_of(owner, ids)}) // 2
    hits, best = found_again(requests, room), oracle(requests, room)
    print(
        f"prefix cache: {len(requests)} prompts, {room} blocks, {hits} tokens found, oracle {best}: {hits / best:.1%}"
    )
    with tempfile.TemporaryDirectory() as folder:
        files = PrefixFiles(Path(folder), room * BLOCK * 16 * 4 * 2, b"trace", print)
        again = found_again(requests, room, files)
        print(f"the same with a restart in the middle and files of that size: {again / best:.1%}")
    if options.model is None:
        return
    print(f"load average {os.getloadavg()[0]:.1f} at the start, {options.turns} turns")
    model = rung.load(options.model, context=4096, parallel=6)
    chance = random.Random(1)
    gaps(model, chance)
    waits = [sorted(gaps(model, chance)) for _ in range(options.turns)]
    late = statistics.median(each[int(0.95 * len(each))] for each in waits)
    longest = statistics.median(each[-1] for each in waits)
    print(f"gaps between tokens beside a prompt of {PROMPT}: p95 {late * 1000:.0f} ms, longest {longest * 1000:.0f} ms")
    turns = [chat_turn(model, lambda: model, chance) for _ in range(options.turns)]
    print(f"first token of {NEW} new tokens after {PROMPT} known ones: {statistics.median(turns) * 1000:.0f} ms")
    with tempfile.TemporaryDirectory() as folder:
        before = rung.load(options.model, context=4096, prefix_cache=folder)

        def load(then: float) -> Any:
            model = rung.load(options.model, context=4096, prefix_cache=folder)
            time.sleep(then)
            return model

        for then in (1.0, 0.0):  # memory is made ready meanwhile
            turns = [chat_turn(before, partial(load, then), chance) for _ in range(options.turns)]
            took = statistics.median(turns) * 1000
            print(f"the same in a model that is loaded anew, {then:.0f} s after that: {took:.0f} ms")


if __name__ == "__main__":
    main()
