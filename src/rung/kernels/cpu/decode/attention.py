"""Attention of a few query rows over a cache in blocks, and what writes a token's keys and values there.

A cache is a pool of blocks of positions. In a block the keys of each head follow each other, the values of all heads
lie behind the keys, and layers behind one another; the blocks of a sequence are named by its *block table*, int64
addresses. ``CacheWord`` says how a layer lies in a block. Queries and results are f32; keys and values are rows of f32,
f16 or bf16, whose length is a multiple of 16.

An answer must not depend on what is computed beside it. Scores are added in one order whatever the number of queries,
sums of weights and values begin at a position that 16 divides, and positions that a query does not see weigh exactly 0:
a query gives the same bytes alone, in a chunk of a prompt and beside other sequences.
"""

from __future__ import annotations

from enum import IntEnum

import numba
import numpy as np

from rung.kernels.cpu.compiled import OPTIONS, Kernel, kernel
from rung.kernels.cpu.decode.elementwise import norm, rotate
from rung.kernels.isa.generic import (
    add,
    exponential,
    fetch_add,
    larger,
    largest,
    load,
    multiply,
    prefetch,
    read_float,
    read_int,
    spread,
    store,
    tangent,
    total,
    write_float,
    zero,
)
from rung.kernels.isa.rows import dot, dots, mix, row_width, store_row
from rung.kernels.isa.scalar import call_address

_LOWEST = np.float32(-3.0e38)
_ONE = np.float32(1.0)

#: Query rows that are computed together: a row of the cache is converted once for them.
QUAD = 4


class CacheWord(IntEnum):
    """How a layer lies in a cache, int64 words.

    ``BLOCK`` are the positions of a block, a multiple of 16, ``LAYER`` the bytes before the layer in a block,
    ``VALUES`` those from a key to its value, ``HEAD`` and ``ROW`` those between heads and between positions; ``SIZE``
    the values of a head, ``WINDOW`` the positions that a query sees, 0 for all; ``FLOATS`` the address of epsilon (of
    the norms of q and k), scale and softcap (0 for none), f32; ``ATTEND`` that of the kernel in ``attend_rows``.
    """

    BLOCK, LAYER, VALUES, HEAD, ROW, SIZE, WINDOW, FLOATS, ATTEND = range(9)


_BLOCK, _LAYER, _VALUES, _HEAD, _ROW, _SIZE, _WINDOW, _FLOATS, _ATTEND = (8 * word for word in CacheWord)


def padded(count: int) -> int:
    """Entries of a row of scores for that many positions: a multiple of 16."""
    return (count + 15) // 16 * 16


def score_floats(context: int) -> int:
    """Float32 of a thread's scores in a context of so many positions."""
    return QUAD * padded(context) + 16


@numba.njit(**OPTIONS)
def _ask_for(address, count):
    """Ask for memory that is read next: where blocks lie apart, no processor finds that out by itself."""
    for line in range(0, count, 64):
        prefetch(address + line)


@numba.njit(**OPTIONS)
def _scores(query, apart, key, stride, out, row, rows, size, count, scale, ahead, kind):
    """q.k of ``rows`` queries with ``count`` keys, times ``scale``: 4 queries and 4 keys at once, 1 and 16, or 1.

    Memory ``ahead`` bytes behind the keys is asked for.
    """
    if rows == 4:
        for s in range(0, count - 3, 4):
            _ask_for(key + stride * s + ahead, 4 * size * row_width(kind))
            dots(query, apart, key + stride * s, stride, size, scale, out + 4 * s, row, kind, 4)
        for s in range(count // 4 * 4, count):
            for other in range(4):
                dot(query + apart * other, key + stride * s, size, scale, out + row * other + 4 * s, kind)
        return
    for number in range(rows):
        q, to = query + apart * number, out + row * number
        for s in range(0, count - 15, 16):
            if number == 0:
                _ask_for(key + stride * s + ahead, 16 * size * row_width(kind))
            dots(q, apart, key + stride * s, stride, size, scale, to + 4 * s, row, kind, 1)
        for s in range(count // 16 * 16, count):
            dot(q, key + stride * s, size, scale, to + 4 * s, kind)


@numba.njit(**OPTIONS)
def _cap(scores, count, softcap):
    """softcap * tanh(score / softcap), over whole vectors."""
    outer, inner = spread(softcap), spread(_ONE / softcap)
    for j in range(0, count, 16):
        store(scores + 4 * j, multiply(tangent(multiply(load(scores + 4 * j), inner)), outer))


@numba.njit(**OPTIONS)
def _weigh(scores, first, last, whole):
    """exp(score - the highest) for the positions [first, last), in place, 0 for the rest of ``whole``; 1 / their
    sum."""
    for s in range(first):
        write_float(scores + 4 * s, _LOWEST)
    for s in range(last, whole):
        write_float(scores + 4 * s, _LOWEST)
    top = load(scores)
    for j in range(64, 4 * whole, 64):
        top = larger(top, load(scores + j))
    highest = spread(-largest(top))
    for j in range(0, 4 * whole, 64):
        store(scores + j, exponential(add(load(scores + j), highest)))
    for s in range(first):
        write_float(scores + 4 * s, np.float32(0))
    for s in range(last, whole):
        write_float(scores + 4 * s, np.float32(0))
    summed = zero()
    for j in range(0, 4 * whole, 64):
        summed = add(summed, load(scores + j))
    return _ONE / total(summed)


@numba.njit(**OPTIONS)
def _mix(value, stride, weights, row, rows, count, out, apart, size, ahead, kind):
    """Add the values times the weights to the results, for four rows or one, 64 or 16 dimensions at a time.

    Memory ``ahead`` bytes behind the values is asked for.
    """
    width, wide = row_width(kind), size // 64 * 64
    if rows == 4:
        for j in range(0, wide, 64):
            mix(value + width * j, stride, weights, row, count, out + 4 * j, apart, ahead, kind, 4, 4)
        for j in range(wide, size, 16):
            mix(value + width * j, stride, weights, row, count, out + 4 * j, apart, ahead, kind, 4, 1)
        return
    for number in range(rows):
        w, to = weights + row * number, out + apart * number
        for j in range(0, wide, 64):
            mix(value + width * j, stride, w, row, count, to + 4 * j, apart, ahead, kind, 1, 4)
        for j in range(wide, size, 16):
            mix(value + width * j, stride, w, row, count, to + 4 * j, apart, ahead, kind, 1, 1)


@numba.njit(**OPTIONS)
def _attend(query, apart, out, out_apart, rows, position, step, table, head, cache, scores, kind):
    block, stride, size = read_int(cache + _BLOCK), read_int(cache + _ROW), read_int(cache + _SIZE)
    floats, window, values = read_int(cache + _FLOATS), read_int(cache + _WINDOW), read_int(cache + _VALUES)
    at = read_int(cache + _LAYER) + head * read_int(cache + _HEAD)
    scale, softcap = read_float(floats + 4), read_float(floats + 8)
    start = max(0, position + 1 - window) // 16 * 16 if window > 0 else 0
    end = position + step * (rows - 1) + 1
    whole = (end - start + 15) // 16 * 16
    row = 4 * whole
    first_value = read_int(table + 8 * (start // block)) + at + values + start % block * stride
    s = start
    while s < end:
        count = min(end - s, block - s % block)
        key = read_int(table + 8 * (s // block)) + at + s % block * stride
        after = read_int(table + 8 * (s // block + 1)) + at if s + count < end else first_value
        _scores(query, apart, key, stride, scores + 4 * (s - start), row, rows, size, count, scale, after - key, kind)
        s += count
    inverses = scores + rows * row
    for number in range(rows):
        last = position + step * number + 1
        first = max(start, last - window) if window > 0 else 0
        mine = scores + row * number
        if softcap > 0:
            _cap(mine, whole, softcap)
        write_float(inverses + 4 * number, _weigh(mine, first - start, last - start, whole))
        for j in range(0, 4 * size, 64):
            store(out + out_apart * number + j, zero())
    at += values
    s = start
    while s < end:
        count = min(end - s, block - s % block)
        value = read_int(table + 8 * (s // block)) + at + s % block * stride
        after = read_int(table + 8 * (s // block + 1)) + at if s + count < end else value
        _mix(value, stride, scores + 4 * (s - start), row, rows, count, out, out_apart, size, after - value, kind)
        s += count
    for number in range(rows):
        inverse, to = spread(read_float(inverses + 4 * number)), out + out_apart * number
        for j in range(0, 4 * size, 64):
            store(to + j, multiply(load(to + j), inverse))


@kernel(11)
def attend_f32(query, apart, out, out_apart, rows, position, step, table, head, cache, scores):
    """Attention over a cache of float32; see ``attend_rows``."""
    _attend(query, apart, out, out_apart, rows, position, step, table, head, cache, scores, np.float32(0))


@kernel(11)
def attend_f16(query, apart, out, out_apart, rows, position, step, table, head, cache, scores):
    """Attention over a cache of float16; see ``attend_rows``."""
    _attend(query, apart, out, out_apart, rows, position, step, table, head, cache, scores, 0)


@kernel(11)
def attend_bf16(query, apart, out, out_apart, rows, position, step, table, head, cache, scores):
    """Attention over a cache of bfloat16; see ``attend_rows``."""
    _attend(query, apart, out, out_apart, rows, position, step, table, head, cache, scores, True)


#: By dtype of the cache: up to ``QUAD`` query rows, ``apart`` bytes from each other, over one key head of a sequence.
#: Each sees the positions up to ``position``, and ``step`` more than the row before it: 0 for query heads of one token,
#: 1 for one head of tokens that follow each other. ``scores`` have room for ``score_floats``.
attend_rows: dict[str, Kernel] = {"f32": attend_f32, "f16": attend_f16, "bf16": attend_bf16}


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
    one, size = read_int(cache + _ATTEND), 4 * read_int(cache + _SIZE)
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


class StoreWord(IntEnum):
    """Arguments of ``rope_and_store_kv``: the counter, tokens; heads as ``attend`` has them; q, k and v with the bytes
    between tokens; norms of q and k or 0; cos and sin [tokens, half], pairs that are rotated, whether they are
    interleaved; the rows, and the words of the cache. A row is the position of a token and its block table, int64."""

    COUNTER, TOKENS, KV_HEADS, GROUP, Q, K, V, Q_APART, K_APART, V_APART, Q_NORM, K_NORM = range(12)
    COSINE, SINE, HALF, INTERLEAVED, ROWS, CACHE = range(12, 18)


_TOKENS, _S_KV_HEADS, _S_GROUP, _Q, _K, _V, _Q_APART, _K_APART, _V_APART, _Q_NORM, _K_NORM = (
    8 * word for word in list(StoreWord)[1:12]
)
_COSINE, _SINE, _HALF, _INTERLEAVED, _ROWS, _S_CACHE = (8 * word for word in list(StoreWord)[12:])


@numba.njit(**OPTIONS)
def _turn(head, weight, size, epsilon, cosine, sine, half, interleaved):
    """Norm one head, where the model has a norm, and rotate it; in place."""
    if weight != 0:
        norm(head, weight, head, size, epsilon)
    rotate(head, cosine, sine, half, interleaved)


@numba.njit(**OPTIONS)
def _write_row(to, values, size, kind):
    for j in range(0, size, 16):
        store_row(to + row_width(kind) * j, load(values + 4 * j), kind)


@numba.njit(**OPTIONS)
def _rope_and_store_kv(words, kind):
    cache, kv_heads, group = read_int(words + _S_CACHE), read_int(words + _S_KV_HEADS), read_int(words + _S_GROUP)
    size, epsilon = read_int(cache + _SIZE), read_float(read_int(cache + _FLOATS))
    block, rows = read_int(cache + _BLOCK), read_int(words + _ROWS)
    half, interleaved = read_int(words + _HALF), read_int(words + _INTERLEAVED) != 0
    units = read_int(words + _TOKENS) * kv_heads
    while True:
        unit = fetch_add(words, 1)
        if unit >= units:
            break
        token, kv_head = unit // kv_heads, unit % kv_heads
        position, table = read_int(rows + 16 * token), read_int(rows + 16 * token + 8)
        cosine, sine = read_int(words + _COSINE) + 4 * half * token, read_int(words + _SINE) + 4 * half * token
        at = read_int(words + _Q) + read_int(words + _Q_APART) * token + 4 * size * group * kv_head
        for head in range(group):
            _turn(at + 4 * size * head, read_int(words + _Q_NORM), size, epsilon, cosine, sine, half, interleaved)
        key = read_int(words + _K) + read_int(words + _K_APART) * token + 4 * size * kv_head
        _turn(key, read_int(words + _K_NORM), size, epsilon, cosine, sine, half, interleaved)
        to = read_int(table + 8 * (position // block)) + read_int(cache + _LAYER) + kv_head * read_int(cache + _HEAD)
        to += position % block * read_int(cache + _ROW)
        _write_row(to, key, size, kind)
        value = read_int(words + _V) + read_int(words + _V_APART) * token + 4 * size * kv_head
        _write_row(to + read_int(cache + _VALUES), value, size, kind)


@kernel(3)
def rope_and_store_f32(words, thread, threads):
    """See ``rope_and_store_kv``."""
    _rope_and_store_kv(words, np.float32(0))


@kernel(3)
def rope_and_store_f16(words, thread, threads):
    """See ``rope_and_store_kv``."""
    _rope_and_store_kv(words, 0)


#: By dtype of the cache: norm and rotate q and k in place, and write k and v into the cache; see ``StoreWord``.
rope_and_store_kv: dict[str, Kernel] = {"f32": rope_and_store_f32, "f16": rope_and_store_f16}
