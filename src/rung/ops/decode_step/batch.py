"""Tables of a batch for compiled functions: where each of its rows stands, and which follow each other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from rung.kernels.cpu.decode.cache_layout import QUAD, RUN_WORDS
from rung.ops.decode_step.parts import Pool, SequenceRows

Words = npt.NDArray[np.int64]
#: A row: its position, and the address of its sequence's block table.
ROW_WORDS = 2


class BatchTables:
    """For each group of layers the rows [most, 2] and runs [most, 4] of a batch, and the number of runs [1]."""

    def __init__(self, pool: Pool, most: int) -> None:
        self.rows = [np.zeros((most, ROW_WORDS), np.int64) for _ in range(pool.groups)]
        self.runs = [np.zeros((most, RUN_WORDS), np.int64) for _ in range(pool.groups)]
        self.count = np.zeros(1, np.int64)

    def fill(self, batch: Sequence[SequenceRows]) -> None:
        """Write the tables of a batch. Runs of late positions, which see most, come first."""
        last, row = 0, sum(len(each.tokens) for each in batch)
        for each in reversed(batch):
            tokens = len(each.tokens)
            row -= tokens
            firsts = np.arange(0, tokens, QUAD)[::-1]
            count = len(firsts)
            for group, (rows, runs) in enumerate(zip(self.rows, self.runs, strict=True)):
                table = each.cache.table(group)
                rows[row : row + tokens, 0] = range(each.start, each.start + tokens)
                rows[row : row + tokens, 1] = table
                found = runs[last : last + count]
                found[:, 0], found[:, 1] = row + firsts, np.minimum(QUAD, tokens - firsts)
                found[:, 2], found[:, 3] = each.start + firsts, table
            last += count
        self.count[0] = last


def positions(batch: Sequence[SequenceRows]) -> Words:
    """Return the position of each row."""
    return np.concatenate([np.arange(each.start, each.start + len(each.tokens)) for each in batch])


def logit_rows(batch: Sequence[SequenceRows]) -> list[int]:
    """Return the rows whose logits are requested: the outputs of a batch."""
    found: list[int] = []
    end = 0
    for each in batch:
        end += len(each.tokens)
        found += range(end - each.logits, end)
    return found


def pieces(batch: Sequence[SequenceRows], most: int) -> Iterator[list[SequenceRows]]:
    """Yield the rows of a batch in their order, so many at a time, without their logits and states."""
    found: list[SequenceRows] = []
    room = most
    for each in batch:
        first = 0
        while first < len(each.tokens):
            tokens = each.tokens[first : first + room]
            found.append(each._replace(tokens=tokens, start=each.start + first, logits=0, states=None))
            first, room = first + len(tokens), room - len(tokens)
            if not room:
                yield found
                found, room = [], most
    if found:
        yield found
