"""A cache in q8_0: its bytes beside those of ``rung.formats``, and attention over it beside float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rung import formats
from rung.kernels.cpu.decode.attention import attend_rows
from rung.kernels.cpu.decode.cache_layout import score_floats
from rung.kernels.cpu.decode.rope_and_store import StoreWord, rope_and_store_kv
from rung.kernels.cpu.decode.step_program import cache_words, floats
from rung.kernels.cpu.parallel import run
from rung.kernels.isa.products import packs_signed_bytes

KV_HEADS, SCALE = 2, 0.11


def q8_0(rows):
    """Codes [rows, size] and scales [rows, size / 32] of float32 rows, as the format stores them."""
    blocks = formats.encode(np.ascontiguousarray(rows), formats.get("q8_0"), "").parts["data"]
    blocks = blocks.reshape(len(rows), -1, 34)
    return blocks[..., 2:].view(np.int8).reshape(len(rows), -1), blocks[..., :2].copy().view(np.float16)[..., 0]


def decoded(rows):
    codes, scales = q8_0(rows)
    return codes.astype(np.float64) * np.repeat(scales.astype(np.float64), 32, axis=1)


class Stored:
    """Random keys and values of one sequence that the kernel has written, in blocks that lie in turned order.

    What has not been written is garbage: bytes of all ones, which are NaN as float16.
    """

    def __init__(self, count, size, block, window=None, softcap=0.0, seed=0):
        random = np.random.default_rng([seed, count, size])
        self.count, self.size, self.block, self.window, self.softcap = count, size, block, window or 0, softcap
        self.keys, self.values = random.standard_normal((2, count, KV_HEADS, size)).astype(np.float32)
        self.keys *= np.exp(random.standard_normal((count, KV_HEADS, 1))).astype(np.float32)
        head = block * size * 17 // 16
        self.memory = np.full((-(-count // block), 2, KV_HEADS, head), 255, np.uint8)
        self.table = np.array([part.ctypes.data for part in self.memory[::-1]], np.int64)
        self.floats = np.array([1e-5, SCALE, softcap], np.float32)
        self.words = cache_words((block, 0, KV_HEADS * head, head, size), "q8_0", size, window, self.floats)
        self.write(0, count)

    def write(self, first, last):
        """Write the positions from first to last, on two threads."""
        keys, values = self.keys[first:last].copy(), self.values[first:last].copy()
        queries, half = np.zeros_like(keys), np.zeros(16, np.float32)
        rows = np.array([(at, self.table.ctypes.data) for at in range(first, last)], np.int64)
        words = [0] * len(StoreWord)
        words[StoreWord.TOKENS : StoreWord.Q] = last - first, KV_HEADS, 1
        words[StoreWord.Q : StoreWord.Q_APART] = (each.ctypes.data for each in (queries, keys, values))
        words[StoreWord.Q_APART : StoreWord.Q_NORM] = [keys.strides[0]] * 3
        words[StoreWord.COSINE : StoreWord.HALF] = half.ctypes.data, half.ctypes.data
        words[StoreWord.ROWS], words[StoreWord.CACHE] = rows.ctypes.data, self.words.ctypes.data
        run(rope_and_store_kv["q8_0"].address, words, 2)

    def attend(self, queries, position, step, head):
        """What the kernel makes of queries [rows, size], the first of which sees the positions up to ``position``."""
        out, scores = np.full_like(queries, 7), floats(score_floats(self.count, self.size))
        scores[:] = np.nan
        attend_rows["q8_0"].call(
            *(queries.ctypes.data, queries.strides[0], out.ctypes.data, out.strides[0], len(queries), position, step),
            *(self.table.ctypes.data, head, self.words.ctypes.data, scores.ctypes.data),
        )
        return out

    def wanted(self, query, position, head):
        """The same of one query in float64: of the keys and values that are stored, and the query as it is rounded."""
        first = max(0, position + 1 - self.window) if self.window else 0
        keys, values = (decoded(part[first : position + 1, head]) for part in (self.keys, self.values))
        scores = keys @ rounded(query) * SCALE
        if self.softcap:
            scores = self.softcap * np.tanh(scores / self.softcap)
        weights = np.exp(scores - scores.max())
        return weights @ values / weights.sum()


def rounded(query):
    """A query in 255 levels of its largest magnitude among 32 values."""
    units = query.reshape(-1, 32).astype(np.float64)
    scale = np.abs(units).max(axis=1, keepdims=True) / 127
    return (np.rint(units / np.where(scale == 0, 1, scale)) * scale).reshape(-1)


def queries_of(rows, size, seed=1):
    return np.random.default_rng([seed, rows, size]).standard_normal((rows, size)).astype(np.float32)


@pytest.mark.parametrize(("size", "block"), [(32, 16), (64, 64), (96, 32), (256, 64)])
def test_what_is_stored_is_what_the_format_makes_of_it(size, block):
    stored = Stored(block + 19, size, block)
    units = size // 32
    for head, at in itertools.product(range(KV_HEADS), range(stored.count)):
        keys, values = stored.memory[::-1][at // block][:, head]
        group = keys[at % block // 16 * 17 * size :][: 17 * size].reshape(units, 544)
        lane = at % 16
        scales, codes = group[:, :32].copy().view(np.float16)[:, lane], group[:, 32:].reshape(units, 8, 16, 4)
        codes = (codes[:, :, lane] ^ (0 if packs_signed_bytes() else 128)).view(np.int8).reshape(-1)
        wanted, wanted_scales = (part[0] for part in q8_0(stored.keys[at : at + 1, head]))
        np.testing.assert_array_equal(codes, wanted)
        np.testing.assert_array_equal(scales, wanted_scales)
        wanted, wanted_scales = (part[0] for part in q8_0(stored.values[at : at + 1, head]))
        np.testing.assert_array_equal(values[at % block * size :][:size].view(np.int8), wanted)
        scales = values[block * size :].view(np.float16).reshape(units, block)[:, at % block]
        np.testing.assert_array_equal(scales, wanted_scales)


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [32, 64, 96, 128, 256])
def test_attention_of_query_heads_is_that_of_float64(size, rows):
    """Contexts that end in a group of 16 positions, with it, in a block and in the next one."""
    for count in (1, 15, 16, 17, 64, 65, 150):
        stored, queries = Stored(count, size, 64), queries_of(rows, size)
        for head in range(KV_HEADS):
            found = stored.attend(queries, count - 1, 0, head)
            for query, row in zip(queries, found, strict=True):
                assert_near(row, stored.wanted(query, count - 1, head))


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize(("window", "softcap"), [(None, 0.0), (None, 5.0), (24, 0.0), (33, 5.0)])
def test_attention_of_tokens_is_that_of_float64_and_of_each_on_its_own(window, softcap, rows):
    """Tokens of a prompt, each of which sees one position more: the same bytes alone, at any place of a block."""
    stored = Stored(140, 64, 32, window, softcap)
    queries = queries_of(rows, 64)
    for position in (0, 3, 14, 15, 16, 30, 31, 63, 100, 140 - rows):
        found = stored.attend(queries, position, 1, 1)
        for number, (query, row) in enumerate(zip(queries, found, strict=True)):
            assert_near(row, stored.wanted(query, position + number, 1))
            alone = stored.attend(query[None], position + number, 0, 1)
            np.testing.assert_array_equal(alone[0], row)


def assert_near(found, wanted):
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=2e-5 * max(1, np.abs(wanted).max()))


def test_positions_are_written_one_by_one_as_together_and_again():
    together, single = Stored(50, 64, 16), Stored(50, 64, 16)
    single.memory[:] = 255
    for at in reversed(range(50)):
        single.write(at, at + 1)
    np.testing.assert_array_equal(single.memory, together.memory)
    single.keys[20:30] += 1
    single.write(20, 30)
    assert not np.array_equal(single.memory, together.memory)
    single.keys, single.values = together.keys, together.values
    single.write(20, 30)
    np.testing.assert_array_equal(single.memory, together.memory)


@pytest.mark.parametrize("value", [0.0, 1e-9, 3e-6, 6e4])
def test_values_at_the_ends_of_what_a_scale_holds(value):
    """Zeros, what float16 scales round to 0, scales that lost digits, and more than float16 itself holds well."""
    stored = Stored(20, 64, 32)
    stored.keys[3], stored.values[3] = value, -value
    stored.values[3, :, 5] = value / 2
    stored.write(3, 4)
    for head in range(KV_HEADS):
        found = stored.attend(queries_of(2, 64), 19, 0, head)
        for query, row in zip(queries_of(2, 64), found, strict=True):
            assert_near(row, stored.wanted(query, 19, head))


def test_nan_stays_in_its_sequence_and_is_seen():
    stored = Stored(40, 64, 32)
    stored.keys[30, 0, 7] = np.nan
    stored.values[30, 1, 40] = np.inf
    stored.write(30, 31)
    query = queries_of(1, 64)
    assert np.isnan(stored.attend(query, 39, 0, 0)).all()
    assert not np.isfinite(stored.attend(query, 39, 0, 1)).all()
    assert np.isfinite(stored.attend(query, 29, 0, 0)).all()
    assert np.isfinite(stored.attend(query, 29, 0, 1)).all()
