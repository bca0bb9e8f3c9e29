"""Norm and rotate queries and keys of a batch, and write keys and values into the cache."""

from __future__ import annotations

from enum import IntEnum

import numba
import numpy as np

from rung.kernels.cpu.compiled import OPTIONS, Kernel, kernel
from rung.kernels.cpu.decode.attend_q8_0 import (
    write_five_key,
    write_five_value,
    write_key,
    write_narrow_key,
    write_narrow_value,
    write_value,
)
from rung.kernels.cpu.decode.cache_layout import BLOCK, FLOATS, HEAD, LAYER, ROW, SIZE, VALUES
from rung.kernels.cpu.decode.elementwise import norm, rotate, spread_evenly
from rung.kernels.isa.generic import fetch_add, load, read_float, read_int
from rung.kernels.isa.rows import row_width, store_row


class StoreWord(IntEnum):
    """Arguments of ``rope_and_store_kv``: the counter, tokens; heads as ``attend`` has them; q, k and v with the bytes
    between tokens; norms of q and k or 0; cos and sin [tokens, half], pairs that are rotated, whether they are
    interleaved; the rows, and the words of the cache. A row is the position of a token and its block table, int64."""

    COUNTER, TOKENS, KV_HEADS, GROUP, Q, K, V, Q_APART, K_APART, V_APART, Q_NORM, K_NORM = range(12)
    COSINE, SINE, HALF, INTERLEAVED, ROWS, CACHE = range(12, 18)


_TOKENS, _KV_HEADS, _GROUP, _Q, _K, _V, _Q_APART, _K_APART, _V_APART, _Q_NORM, _K_NORM = (
    8 * word for word in list(StoreWord)[1:12]
)
_COSINE, _SINE, _HALF, _INTERLEAVED, _ROWS, _CACHE = (8 * word for word in list(StoreWord)[12:])


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
def _next_heads(words, threads):
    """Return a token, and the first and last of its key heads, that no thread has taken yet: 0 and 0 if none is left.

    A thread takes all heads of a token where there are parts enough. Each part ends with a locked addition, which waits
    for what was written to the cache.
    """
    tokens, kv_heads = read_int(words + _TOKENS), read_int(words + _KV_HEADS)
    few = min(kv_heads, max(1, tokens * kv_heads // (4 * threads)))
    parts = (kv_heads + few - 1) // few
    unit = fetch_add(words, 1)
    if unit >= tokens * parts:
        return 0, 0, 0
    first = unit % parts * few
    return unit // parts, first, min(first + few, kv_heads)


@numba.njit(**OPTIONS)
def _turned(words, token, kv_head):
    """Norm and rotate queries and key of a token and a key head; in place.

    Returns the head in the block that they belong to, the position in it, and the addresses of queries, key and value.
    """
    cache, group = read_int(words + _CACHE), read_int(words + _GROUP)
    size, epsilon = read_int(cache + SIZE), read_float(read_int(cache + FLOATS))
    block, rows = read_int(cache + BLOCK), read_int(words + _ROWS)
    half, interleaved = read_int(words + _HALF), read_int(words + _INTERLEAVED) != 0
    position, table = read_int(rows + 16 * token), read_int(rows + 16 * token + 8)
    cosine, sine = read_int(words + _COSINE) + 4 * half * token, read_int(words + _SINE) + 4 * half * token
    query = read_int(words + _Q) + read_int(words + _Q_APART) * token + 4 * size * group * kv_head
    for head in range(group):
        _turn(query + 4 * size * head, read_int(words + _Q_NORM), size, epsilon, cosine, sine, half, interleaved)
    key = read_int(words + _K) + read_int(words + _K_APART) * token + 4 * size * kv_head
    _turn(key, read_int(words + _K_NORM), size, epsilon, cosine, sine, half, interleaved)
    to = read_int(table + 8 * (position // block)) + read_int(cache + LAYER) + kv_head * read_int(cache + HEAD)
    value = read_int(words + _V) + read_int(words + _V_APART) * token + 4 * size * kv_head
    return to, position % block, query, key, value


@numba.njit(**OPTIONS)
def _rope_and_store_floats(words, threads, kind):
    cache = read_int(words + _CACHE)
    size, apart, row = read_int(cache + SIZE), read_int(cache + VALUES), read_int(cache + ROW)
    token, first, last = _next_heads(words, threads)
    while first < last:
        for kv_head in range(first, last):
            head, at, _, key, value = _turned(words, token, kv_head)
            _write_row(head + at * row, key, size, kind)
            _write_row(head + apart + at * row, value, size, kind)
        token, first, last = _next_heads(words, threads)


@kernel(3)
def rope_and_store_f32(words, thread, threads):
    """See ``rope_and_store_kv``."""
    _rope_and_store_floats(words, threads, np.float32(0))


@kernel(3)
def rope_and_store_f16(words, thread, threads):
    """See ``rope_and_store_kv``."""
    _rope_and_store_floats(words, threads, 0)


@kernel(3)
def rope_and_store_q8_0(words, thread, threads):
    """See ``rope_and_store_kv``."""
    cache = read_int(words + _CACHE)
    size, apart, block = read_int(cache + SIZE), read_int(cache + VALUES), read_int(cache + BLOCK)
    token, first, last = _next_heads(words, threads)
    while first < last:
        for kv_head in range(first, last):
            head, at, _, key, value = _turned(words, token, kv_head)
            write_key(head, at, key, size)
            write_value(head + apart, block, at, value, size)
        token, first, last = _next_heads(words, threads)


@numba.njit(**OPTIONS)
def _rope_and_store_spread(words, threads, kind):
    """Rotate all three once more, so that no dimension is larger than others; kinds are those of
    ``attend_q8_0``."""
    cache, group = read_int(words + _CACHE), read_int(words + _GROUP)
    size, apart, block = read_int(cache + SIZE), read_int(cache + VALUES), read_int(cache + BLOCK)
    token, first, last = _next_heads(words, threads)
    while first < last:
        for kv_head in range(first, last):
            head, at, query, key, value = _turned(words, token, kv_head)
            for number in range(group):
                spread_evenly(query + 4 * size * number, size)
            spread_evenly(key, size)
            spread_evenly(value, size)
            if len(kind):
                write_five_key(head, at, key, size)
                write_five_value(head + apart, block, at, value, size)
            else:
                write_narrow_key(head, at, key, size)
                write_narrow_value(head + apart, block, at, value, size)
        token, first, last = _next_heads(words, threads)


@kernel(3)
def rope_and_store_q5_1(words, thread, threads):
    """See ``rope_and_store_kv``."""
    _rope_and_store_spread(words, threads, (1,))


@kernel(3)
def rope_and_store_q4_0(words, thread, threads):
    """See ``rope_and_store_kv``."""
    _rope_and_store_spread(words, threads, ())


#: By dtype of the cache: norm and rotate q and k in place, and write k and v into the cache; see ``StoreWord``.
rope_and_store_kv: dict[str, Kernel] = {
    "f32": rope_and_store_f32,
    "f16": rope_and_store_f16,
    "q8_0": rope_and_store_q8_0,
    "q5_1": rope_and_store_q5_1,
    "q4_0": rope_and_store_q4_0,
}
