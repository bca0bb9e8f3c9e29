"""Hold what lies between the products of a layer when many tokens go through it: functions for ``parallel.run``.

Each takes int64 words: the counter, then what its docstring lists; addresses of float32 unless said otherwise.
Lengths are multiples of 16, strides are bytes between tokens. Threads take a few rows at a time.
"""

from __future__ import annotations

import numba
import numpy as np

from rung.kernels.cpu.compiled import OPTIONS, Kernel, kernel
from rung.kernels.cpu.decode.attention import BLOCK
from rung.kernels.cpu.decode.elementwise import add_to, gate, norm, rotate
from rung.kernels.isa.generic import fetch_add, load, read_float, read_int
from rung.kernels.isa.rows import row_width, store_row
from rung.kernels.isa.scalar import call_address

_ROWS = 8  # rows a thread takes at a time


@kernel(3)
def add_and_norm(words, thread, threads):
    """rows, columns, hidden, added or 0, post norm or 0, norm or 0, out, address of epsilon.

    hidden += added (normed in place first where there is a post norm); out = norm(hidden). Rows without gaps.
    """
    rows, columns, hidden, added = read_int(words + 8), read_int(words + 16), read_int(words + 24), read_int(words + 32)
    post_norm, weight, out = read_int(words + 40), read_int(words + 48), read_int(words + 56)
    epsilon = read_float(read_int(words + 64))
    while True:
        first = fetch_add(words, 1) * _ROWS
        if first >= rows:
            break
        for row in range(first, min(first + _ROWS, rows)):
            at = 4 * columns * row
            if added != 0:
                if post_norm != 0:
                    norm(added + at, post_norm, added + at, columns, epsilon)
                add_to(hidden + at, added + at, columns)
            if weight != 0:
                norm(hidden + at, weight, out + at, columns, epsilon)


@kernel(3)
def gate_rows(words, thread, threads):
    """rows, columns, gate, up, stride, whether gelu: gate = activation(gate) * up."""
    rows, columns, x, up = read_int(words + 8), read_int(words + 16), read_int(words + 24), read_int(words + 32)
    stride, is_gelu = read_int(words + 40), read_int(words + 48) != 0
    while True:
        row = fetch_add(words, 1)
        if row >= rows:
            break
        gate(x + stride * row, up + stride * row, columns, is_gelu)


@numba.njit(**OPTIONS)
def _heads(at, weight, count, size, epsilon, cosine, sine, half, interleaved):
    for head in range(count):
        place = at + 4 * size * head
        if weight != 0:
            norm(place, weight, place, size, epsilon)
        rotate(place, cosine, sine, half, interleaved)


@numba.njit(**OPTIONS)
def _store_heads(at, cache, between, count, size, kind):
    width = row_width(kind)
    for head in range(count):
        for j in range(0, size, 16):
            store_row(cache + between * head + width * j, load(at + 4 * (size * head + j)), kind)


@numba.njit(**OPTIONS)
def _turn_and_keep(words, kind):
    tokens, heads, kv_heads, size = (
        read_int(words + 8),
        read_int(words + 16),
        read_int(words + 24),
        read_int(words + 32),
    )
    q, k, v = read_int(words + 40), read_int(words + 48), read_int(words + 56)
    q_stride, k_stride, v_stride = read_int(words + 64), read_int(words + 72), read_int(words + 80)
    q_norm, k_norm, epsilon = read_int(words + 88), read_int(words + 96), read_float(read_int(words + 104))
    cosine, sine, half = read_int(words + 112), read_int(words + 120), read_int(words + 128)
    interleaved = read_int(words + 136) != 0
    keys, values, between, stride = (
        read_int(words + 144),
        read_int(words + 152),
        read_int(words + 160),
        read_int(words + 168),
    )
    while True:
        token = fetch_add(words, 1)
        if token >= tokens:
            break
        c, s = cosine + 4 * half * token, sine + 4 * half * token
        _heads(q + q_stride * token, q_norm, heads, size, epsilon, c, s, half, interleaved)
        _heads(k + k_stride * token, k_norm, kv_heads, size, epsilon, c, s, half, interleaved)
        _store_heads(k + k_stride * token, keys + stride * token, between, kv_heads, size, kind)
        _store_heads(v + v_stride * token, values + stride * token, between, kv_heads, size, kind)


@kernel(3)
def turn_and_keep_f32(words, thread, threads):
    """See ``rope_and_store_kv``."""
    _turn_and_keep(words, np.float32(0))


@kernel(3)
def turn_and_keep_f16(words, thread, threads):
    """See ``rope_and_store_kv``."""
    _turn_and_keep(words, 0)


#: By dtype of the cache: tokens, heads, kv_heads, size, q, k, v and their strides, norms of q and k or 0, address of
#: epsilon, cos, sin, half, interleaved, keys and values in the cache (of the first token), bytes between heads and
#: between tokens there. Norms and rotates q and k in place, and writes k and v into the cache.
rope_and_store_kv: dict[str, Kernel] = {"f32": turn_and_keep_f32, "f16": turn_and_keep_f16}


@kernel(3)
def attend(words, thread, threads):
    """tokens, heads, kv_heads, size, q and its stride, keys, values, bytes between heads and between rows, start,
    window or 0, floats and kernel of ``attention.query_block``, scores and their bytes for each thread, out.

    ``out`` is [tokens, heads, size] without gaps. The last tokens, which see most, come first.
    """
    tokens, heads, kv_heads, size = (
        read_int(words + 8),
        read_int(words + 16),
        read_int(words + 24),
        read_int(words + 32),
    )
    q, q_stride, keys, values = read_int(words + 40), read_int(words + 48), read_int(words + 56), read_int(words + 64)
    between, stride, start, window = (
        read_int(words + 72),
        read_int(words + 80),
        read_int(words + 88),
        read_int(words + 96),
    )
    floats, block = read_int(words + 104), read_int(words + 112)
    scores = read_int(words + 120) + thread * read_int(words + 128)
    out, out_stride = read_int(words + 136), 4 * heads * size
    blocks, group = (tokens + BLOCK - 1) // BLOCK, heads // kv_heads
    while True:
        unit = fetch_add(words, 1)
        if unit >= blocks * kv_heads:
            break
        kv_head, first = unit % kv_heads, BLOCK * (blocks - 1 - unit // kv_heads)
        count = min(BLOCK, tokens - first)
        k, v = keys + between * kv_head, values + between * kv_head
        for head in range(kv_head * group, (kv_head + 1) * group):
            at, to = q + q_stride * first + 4 * size * head, out + out_stride * first + 4 * size * head
            given = (at, q_stride, k, v, stride, start + first, count, size, window, floats, scores, to, out_stride)
            call_address(block, given)
