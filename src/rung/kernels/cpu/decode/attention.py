"""Attention of all rows of a batch over a cache in blocks; see ``cache_layout``."""

from __future__ import annotations

from enum import IntEnum

import numba
import numpy as np

from rung.kernels.cpu.compiled import OPTIONS, Kernel, kernel
from rung.kernels.cpu.decode.attend_q8_0 import attend_q4_0, attend_q5_1, attend_q8_0
from rung.kernels.cpu.decode.cache_layout import (
    ATTEND,
    BLOCK,
    FLOATS,
    HEAD,
    LAYER,
    QUAD,
    ROW,
    SIZE,
    VALUES,
    WINDOW,
    ask_for,
    block_ahead,
    blocks_ahead,
    clear_rows,
    divide_rows,
    weigh_rows,
)
from rung.kernels.isa.generic import fetch_add, read_float, read_int
from rung.kernels.isa.rows import dot, dots, mix, row_width
from rung.kernels.isa.scalar import call_address


@numba.njit(**OPTIONS)
def _scores(query, apart, key, stride, out, row, rows, size, count, scale, ahead, kind):
    """q.k of ``rows`` queries with ``count`` keys, times ``scale``: 4 queries and 4 keys at once, 2 and 8, 1 and 16, or
    1.

    Memory ``ahead`` bytes behind the keys is prefetched.
    """
    if rows in (2, 4):
        keys = 16 // rows
        for s in range(0, count - keys + 1, keys):
            ask_for(key + stride * s + ahead, keys * size * row_width(kind))
            if rows == 4:
                dots(query, apart, key + stride * s, stride, size, scale, out + 4 * s, row, kind, 4)
            else:
                dots(query, apart, key + stride * s, stride, size, scale, out + 4 * s, row, kind, 2)
        for s in range(count // keys * keys, count):
            for other in range(rows):
                dot(query + apart * other, key + stride * s, size, scale, out + row * other + 4 * s, kind)
        return
    for number in range(rows):
        q, to = query + apart * number, out + row * number
        for s in range(0, count - 15, 16):
            if number == 0:
                ask_for(key + stride * s + ahead, 16 * size * row_width(kind))
            dots(q, apart, key + stride * s, stride, size, scale, to + 4 * s, row, kind, 1)
        for s in range(count // 16 * 16, count):
            dot(q, key + stride * s, size, scale, to + 4 * s, kind)


@numba.njit(**OPTIONS)
def _mix(value, stride, weights, row, rows, count, out, apart, size, ahead, kind):
    """Add the values times the weights to the results, for four rows, two or one, 64 or 16 dimensions at a time.

    Memory ``ahead`` bytes behind the values is prefetched.
    """
    width, wide = row_width(kind), size // 64 * 64
    if rows == 4:
        for j in range(0, wide, 64):
            mix(value + width * j, stride, weights, row, count, out + 4 * j, apart, ahead, kind, 4, 4)
        for j in range(wide, size, 16):
            mix(value + width * j, stride, weights, row, count, out + 4 * j, apart, ahead, kind, 4, 1)
        return
    if rows == 2:
        for j in range(0, wide, 64):
            mix(value + width * j, stride, weights, row, count, out + 4 * j, apart, ahead, kind, 2, 4)
        for j in range(wide, size, 16):
            mix(value + width * j, stride, weights, row, count, out + 4 * j, apart, ahead, kind, 2, 1)
        return
    for number in range(rows):
        w, to = weights + row * number, out + apart * number
        for j in range(0, wide, 64):
            mix(value + width * j, stride, w, row, count, to + 4 * j, apart, ahead, kind, 1, 4)
        for j in range(wide, size, 16):
            mix(value + width * j, stride, w, row, count, to + 4 * j, apart, ahead, kind, 1, 1)


@numba.njit(**OPTIONS)
def _attend(query, apart, out, out_apart, rows, position, step, table, head, cache, scores, next_run, next_head, kind):
    block, stride, size = read_int(cache + BLOCK), read_int(cache + ROW), read_int(cache + SIZE)
    floats, window, values = read_int(cache + FLOATS), read_int(cache + WINDOW), read_int(cache + VALUES)
    at = read_int(cache + LAYER) + head * read_int(cache + HEAD)
    scale, softcap = read_float(floats + 4), read_float(floats + 8)
    start = max(0, position + 1 - window) // 16 * 16 if window > 0 else 0
    end = position + step * (rows - 1) + 1
    whole = (end - start + 15) // 16 * 16
    row = 4 * whole
    early, blocks = blocks_ahead(cache), (end - 1) // block + 1
    s = start
    while s < end:
        count = min(end - s, block - s % block)
        key = read_int(table + 8 * (s // block)) + at + s % block * stride
        after = block_ahead(table, s // block + early, start // block, blocks, cache, head, next_run, next_head)
        _scores(query, apart, key, stride, scores + 4 * (s - start), row, rows, size, count, scale, after - key, kind)
        s += count
    weigh_rows(scores, row, rows, position, step, start, window, whole, softcap)
    clear_rows(out, out_apart, rows, size)
    at += values
    s = start
    while s < end:
        count = min(end - s, block - s % block)
        value = read_int(table + 8 * (s // block)) + at + s % block * stride
        number = s // block + early + blocks - start // block
        after = block_ahead(table, number, start // block, blocks, cache, head, next_run, next_head)
        _mix(value, stride, scores + 4 * (s - start), row, rows, count, out, out_apart, size, after - value, kind)
        s += count
    divide_rows(out, out_apart, rows, size, scores + rows * row)


@kernel(13)
def attend_f32(query, apart, out, out_apart, rows, position, step, table, head, cache, scores, next_run, next_head):
    """Attention over a cache of float32; see ``attend_rows``."""
    _attend(
        query,
        apart,
        out,
        out_apart,
        rows,
        position,
        step,
        table,
        head,
        cache,
        scores,
        next_run,
        next_head,
        np.float32(0),
    )


@kernel(13)
def attend_f16(query, apart, out, out_apart, rows, position, step, table, head, cache, scores, next_run, next_head):
    """Attention over a cache of float16; see ``attend_rows``."""
    _attend(query, apart, out, out_apart, rows, position, step, table, head, cache, scores, next_run, next_head, 0)


@kernel(13)
def attend_bf16(query, apart, out, out_apart, rows, position, step, table, head, cache, scores, next_run, next_head):
    """Attention over a cache of bfloat16; see ``attend_rows``."""
    _attend(query, apart, out, out_apart, rows, position, step, table, head, cache, scores, next_run, next_head, True)


#: By dtype of the cache: up to ``QUAD`` query rows, ``apart`` bytes from each other, over one key head of a sequence.
#: Each sees the positions up to ``position``, and ``step`` more than the row before it: 0 for query heads of one token,
#: 1 for one head of tokens that follow each other. ``scores`` have room for ``score_floats``. Keys of the head of the
#: run that the thread takes next are prefetched (``block_ahead``).
attend_rows: dict[str, Kernel] = {
    "f32": attend_f32,
    "f16": attend_f16,
    "bf16": attend_bf16,
    "q8_0": attend_q8_0,
    "q5_1": attend_q5_1,
    "q4_0": attend_q4_0,
}


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
    unit = fetch_add(words, 1)
    while unit < units:
        run, kv_head, part = runs + 32 * (unit // (kv_heads * parts)), unit // parts % kv_heads, unit % parts
        unit = fetch_add(words, 1)
        next_run, next_head = run, kv_head
        if unit < units:
            next_run, next_head = runs + 32 * (unit // (kv_heads * parts)), unit // parts % kv_heads
        row, count, position, table = read_int(run), read_int(run + 8), read_int(run + 16), read_int(run + 24)
        first, few = kv_head * group + most * part, min(most, group - most * part)
        at = read_int(words + _QUERY) + apart * row + size * first
        to = read_int(words + _OUT) + out_apart * row + size * first
        if count == 1:
            call_address(
                one, (at, size, to, size, few, position, 0, table, kv_head, cache, scores, next_run, next_head)
            )
        else:
            for head in range(few):
                q, y = at + size * head, to + size * head
                call_address(
                    one,
                    (q, apart, y, out_apart, count, position, 1, table, kv_head, cache, scores, next_run, next_head),
                )
