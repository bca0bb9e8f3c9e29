"""Attention on its own: tokens of several sequences at once, over caches of every type in blocks that lie apart."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from rung.kernels.cpu.decode.attention import AttendWord, attend
from rung.kernels.cpu.decode.cache_layout import QUAD, score_floats
from rung.kernels.cpu.decode.rope_and_store import rope_and_store_kv
from rung.kernels.cpu.thread_pool import run
from tests.emulation.checks import Check
from tests.support.caches import KV_HEADS, Stored, near

#: Positions and new tokens of each sequence: a single one, some of a prompt, and a prompt from its beginning.
_SEQUENCES = ((70, 1), (33, 6), (5, 5))
_GROUP, _SIZE, _BLOCK, _THREADS = 3, 64, 32, 2


def several(format: str, window: int | None, softcap: float) -> str:
    """Compare every head of every token with float64, of keys and values as they are stored."""
    stored = [Stored(count, _SIZE, _BLOCK, window, softcap, format=format) for count, _ in _SEQUENCES]
    tokens = sum(new for _, new in _SEQUENCES)
    shape = (tokens, KV_HEADS * _GROUP, _SIZE)
    queries = np.random.default_rng(3).standard_normal(shape, dtype=np.float32)
    found = _attend(stored, stored[0].turned(queries.reshape(-1, _SIZE)).reshape(shape))
    row = 0
    for each, (count, new) in zip(stored, _SEQUENCES, strict=True):
        decoded = [each.decoded(head) for head in range(KV_HEADS)]
        for at, head in itertools.product(range(new), range(KV_HEADS * _GROUP)):
            position, both = count - new + at, decoded[head // _GROUP]
            want = each.expected(queries[row + at, head], position, head // _GROUP, both)
            if not near(found[row + at, head], want):
                error = np.abs(found[row + at, head] - want).max()
                return f"position {position} of {count}, head {head}: {error:.2g} off"
        row += new
    return ""


def _attend(stored: list[Stored], queries: np.ndarray) -> np.ndarray:
    """Return results [tokens, heads, size] of queries as they are when keys and values have been written."""
    out = np.full_like(queries, 7)
    room = score_floats(max(each.count for each in stored), _SIZE)
    scores = np.full((_THREADS, room), np.nan, np.float32)
    runs, row = [], 0
    for each, (count, new) in zip(stored, _SEQUENCES, strict=True):
        for first in range(0, new, QUAD):
            runs.append((row + first, min(QUAD, new - first), count - new + first, each.table.ctypes.data))
        row += new
    table, number = np.array(runs, np.int64), np.array([len(runs)], np.int64)
    words = [0] * len(AttendWord)
    words[AttendWord.KV_HEADS : AttendWord.QUERY] = KV_HEADS, _GROUP, 2
    words[AttendWord.QUERY : AttendWord.OUT] = queries.ctypes.data, queries.strides[0]
    words[AttendWord.OUT : AttendWord.RUNS] = out.ctypes.data, out.strides[0]
    words[AttendWord.RUNS : AttendWord.CACHE] = table.ctypes.data, number.ctypes.data
    words[AttendWord.CACHE :] = stored[0].words.ctypes.data, scores.ctypes.data, scores.strides[0]
    run(attend.address, words, _THREADS)
    return out


def checks() -> Iterator[tuple[str, Check]]:
    """Every check by name."""
    for format in rope_and_store_kv:
        yield f"attention, {format}", lambda format=format: several(format, None, 0.0)  # type: ignore[misc]
        name = f"attention, {format}, with a window and a cap"
        yield name, lambda format=format: several(format, 24, 5.0)  # type: ignore[misc]
