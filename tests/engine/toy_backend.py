"""A decoder whose next token is a function of every token in its cache: a block that is wrong gives a wrong token."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from rung.engine.decoder import Decoder
from rung.engine.sampling import Sampler, Sampling
from rung.engine.scheduling.kv_cache import BlockPool
from rung.engine.scheduling.scheduler import Scheduler
from rung.engine.scheduling.sequence import TokenSequence
from rung.engine.scheduling.speculator import Draft
from rung.models.decoder_memory import CHUNK
from rung.ops.sample.numpy_sample import RUNG

VOCABULARY = 97
END = 0
#: Positions that the second of two layers sees.
WINDOW = 8


def next_token(ids) -> int:
    """Return the token that follows; never ``END``."""
    value = 7
    for token in ids:
        value = (value * 31 + int(token) + 3) % 1_000_003
    return 1 + value % (VOCABULARY - 1)


Following = Callable[[Any], int]


def answer(prompt, count: int, following: Following = next_token) -> list[int]:
    """Return the tokens that follow a prompt."""
    ids = list(prompt)
    for _ in range(count):
        ids.append(following(ids))
    return ids[len(prompt) :]


class ToyStep:
    """Writes token ids into the cache as keys, and reads all of them for logits. ``batches`` has the rows of each call;
    ``before`` is called with each batch. ``ahead`` has the tokens of each call that chooses up to ``most_ahead``."""

    def __init__(self, block: int = 4) -> None:
        self.block = block
        self.batches: list[list[int]] = []
        self.before: Callable[[object], None] = lambda batch: None
        self.following: Following | None = None
        self.most_ahead = 0
        self.ahead: list[list[int]] = []

    def same_bytes(self, state) -> bool:
        return True

    def rows_without_torch(self, state) -> None:
        return None

    def look_ahead(self, state) -> int:
        return self.most_ahead

    def choose(self, state, rows, settings):
        found = []
        for at, row in enumerate(settings):
            logits = self.apply(
                state, [rows._replace(tokens=[found[-1] if at else rows.tokens[0]], start=rows.start + at)]
            )
            found.append(RUNG.apply(None, logits, [row])[0].token)
        self.ahead.append(found)
        return found

    def prepare(self, weights, pool, *, threads):
        return pool

    def apply(self, state, batch):
        self.before(batch)
        self.batches.append([len(each.tokens) for each in batch])
        found = []
        for each in batch:
            keys = np.zeros((len(each.tokens), 1, 16), np.float32)
            keys[:, 0, 0] = each.tokens
            for layer in range(2):
                each.cache.write_arrays(layer, each.start, keys, keys)
            for end in range(each.start + 1, each.start + len(each.tokens) + 1):
                read = each.cache.arrays(0, 0, end)[0][:, 0, 0]
                first = max(0, end - WINDOW)
                assert (each.cache.arrays(1, first, end)[0][:, 0, 0] == read[first:]).all()
                if end > each.start + len(each.tokens) - each.logits:
                    found.append(np.eye(VOCABULARY, dtype=np.float32)[(self.following or next_token)(read)])
        return np.array(found).reshape(-1, VOCABULARY)


def toy(
    context: int = 32, blocks: int | None = None, parallel: int = 8, block: int = 4, windows: tuple = (None, WINDOW)
) -> Decoder:
    """Return a decoder of layers with ``windows``; ``blocks`` of each group, by default those of one sequence."""
    shape = SimpleNamespace(
        vocabulary=VOCABULARY,
        kv_heads=1,
        head_dim=16,
        layers=tuple(SimpleNamespace(window=window) for window in windows),
    )
    pool = BlockPool(shape, context, "f32", ["cpu"] * len(windows), block, blocks)
    return Decoder(SimpleNamespace(shape=shape), pool, ToyStep(block), parallel=parallel)


def sequence(prompt, most: int | None = 8, owner: str = "", context: int = 32, sampler=None) -> TokenSequence:
    """Return a sequence, greedy unless a sampler is given."""
    chosen_by = sampler or Sampler(Sampling())
    return TokenSequence(prompt, chosen_by, ends=frozenset({END}), context=context, most=most, owner=owner)


def scheduling(decoder: Decoder, chunk: int = CHUNK, draft: Draft | None = None) -> Scheduler:
    """Return a scheduler that samples in NumPy."""
    return Scheduler(decoder, lambda logits, rows: RUNG.apply(None, logits, rows), chunk, draft=draft)


def finish(scheduler: Scheduler, *sequences: TokenSequence) -> list[list[int]]:
    """Return the tokens of sequences that are computed together to their ends."""
    found: list[list[int]] = [[] for _ in sequences]
    left = list(range(len(sequences)))
    while left:
        scheduler.advance(*(sequences[number] for number in left))
        for number in list(left):
            each = sequences[number]
            while (token := each.take()) is not None:
                found[number].append(token)
            if each.ended and not each.ahead:
                left.remove(number)
                scheduler.cancel(each)
    return found


def free_blocks(decoder: Decoder) -> list[int]:
    """Return how many blocks of each group nobody uses."""
    return [member.free for member in decoder.pool.members]
