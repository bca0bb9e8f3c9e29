"""Attention of all rows of a batch over a cache in blocks; see ``cache_layout``."""

from __future__ import annotations

from enum import IntEnum

from rung.kernels.cpu.compiled import Kernel, kernel
from rung.kernels.cpu.decode.attend_floats import attend_bf16, attend_f16, attend_f32
from rung.kernels.cpu.decode.attend_q8_0 import attend_q4_0, attend_q8_0
from rung.kernels.cpu.decode.cache_layout import ATTEND, QUAD, SIZE
from rung.kernels.isa.generic import fetch_add, read_int
from rung.kernels.isa.scalar import call_address

#: By dtype of the cache: up to ``QUAD`` query rows, ``apart`` bytes from each other, over one key head of a sequence.
#: Each sees the positions up to ``position``, and ``step`` more than the row before it: 0 for query heads of one token,
#: 1 for one head of tokens that follow each other. ``scores`` have room for ``score_floats``.
attend_rows: dict[str, Kernel] = {
    "f32": attend_f32,
    "f16": attend_f16,
    "bf16": attend_bf16,
    "q8_0": attend_q8_0,
    "q4_0": attend_q4_0,
}


class RunWord(IntEnum):
    """A run: ``COUNT`` (up to ``QUAD``) query tokens of a sequence that follow each other in the batch from ``ROW`` on.

    The first stands at ``POSITION`` of the sequence with the block table at ``TABLE``.
    """

    ROW, COUNT, POSITION, TABLE = range(4)


RUN_WORDS = len(RunWord)


class AttendWord(IntEnum):
    """Arguments of ``attend``: the counter, key heads, query heads of each, of which a thread takes ``FEW`` at a time;
    queries and results [tokens, heads, size] with the bytes between tokens; the runs and the address of their number;
    the words of the cache, and the scores of the threads with the bytes of each."""

    COUNTER, KV_HEADS, GROUP, FEW, QUERY, QUERY_APART, OUT, OUT_APART, RUNS, COUNT, CACHE, SCORES, SCORE_BYTES = range(
        13
    )


_KV_HEADS, _GROUP, _FEW, _QUERY, _QUERY_APART, _OUT, _OUT_APART, _RUNS, _COUNT, _CACHE, _SCORES, _SCORE_BYTES = (
    8 * word for word in list(AttendWord)[1:]
)


def heads_at_once(kv_heads: int, group: int, tokens: int, threads: int) -> int:
    """Return how many query heads of a key head a thread takes at a time, so that all threads have the same to do."""
    for few in (QUAD, 2):
        units = tokens * kv_heads * -(-group // few)
        if units % threads == 0 or units >= QUAD * threads:
            return few
    return 1


@kernel(3)
def attend(words, thread, threads):
    """Attention of all tokens of a batch; see ``AttendWord``. Threads take some heads of a run at a time."""
    kv_heads, group, cache = read_int(words + _KV_HEADS), read_int(words + _GROUP), read_int(words + _CACHE)
    apart, out_apart = read_int(words + _QUERY_APART), read_int(words + _OUT_APART)
    one, size = read_int(cache + ATTEND), 4 * read_int(cache + SIZE)
    scores = read_int(words + _SCORES) + thread * read_int(words + _SCORE_BYTES)
    runs, most = read_int(words + _RUNS), read_int(words + _FEW)
    parts = (group + most - 1) // most
    units = read_int(read_int(words + _COUNT)) * kv_heads * parts
    while True:
        unit = fetch_add(words, 1)
        if unit >= units:
            break
        run, kv_head, part = runs + 32 * (unit // (kv_heads * parts)), unit // parts % kv_heads, unit % parts
        row, count, position, table = read_int(run), read_int(run + 8), read_int(run + 16), read_int(run + 24)
        first, few = kv_head * group + most * part, min(most, group - most * part)
        at = read_int(words + _QUERY) + apart * row + size * first
        to = read_int(words + _OUT) + out_apart * row + size * first
        if count == 1:
            call_address(one, (at, size, to, size, few, position, 0, table, kv_head, cache, scores))
        else:
            for head in range(few):
                past = size * head
                call_address(
                    one, (at + past, apart, to + past, out_apart, count, position, 1, table, kv_head, cache, scores)
                )
