"""Caches in blocks of 32 values: their bytes beside ``rung.formats``, and attention over them beside float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rung import formats
from rung.kernels.cpu.compiled import kernel
from rung.kernels.cpu.decode.attention import attend_rows
from rung.kernels.cpu.decode.cache_layout import CacheWord, block_ahead, blocks_ahead, score_floats
from rung.kernels.cpu.decode.rope_and_store import StoreWord, rope_and_store_kv
from rung.kernels.cpu.decode.step_program import cache_words, floats
from rung.kernels.cpu.thread_pool import run
from rung.kernels.isa.generic import write_int
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


def rotation(size):
    """A Hadamard matrix of 1 and -1 [size, size] over its size's root, in parts of the largest power of two."""
    part = size & -size
    signs = [[(-1) ** (row & column).bit_count() for column in range(part)] for row in range(part)]
    return np.kron(np.eye(size // part), np.array(signs) / np.sqrt(part))


class Stored:
    """Random keys and values of one sequence that the kernel has written, in blocks that lie in turned order.

    What has not been written is garbage: bytes of all ones, which are NaN as float16.
    """

    def __init__(self, count, size, block, window=None, softcap=0.0, seed=0, format="q8_0"):
        random = np.random.default_rng([seed, count, size])
        self.count, self.size, self.block, self.window, self.softcap = count, size, block, window or 0, softcap
        self.keys, self.values = random.standard_normal((2, count, KV_HEADS, size)).astype(np.float32)
        self.keys *= np.exp(random.standard_normal((count, KV_HEADS, 1))).astype(np.float32)
        self.format = format
        head = block * size * {"q8_0": 17, "q5_1": 12, "q4_0": 9}[format] // 16
        self.memory = np.full((-(-count // block), 2, KV_HEADS, head), 255, np.uint8)
        self.table = np.array([part.ctypes.data for part in self.memory[::-1]], np.int64)
        self.floats = np.array([1e-5, SCALE, softcap], np.float32)
        self.words = cache_words((block, 0, KV_HEADS * head, head, size), format, size, window, self.floats)
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
        run(rope_and_store_kv[self.format].address, words, 2)

    def attend(self, queries, position, step, head):
        """Attend with the kernel: queries [rows, size], the first of which sees the positions up to ``position``."""
        queries = self.turned(queries)
        out, scores = np.full_like(queries, 7), floats(score_floats(self.count, self.size))
        scores[:] = np.nan
        run = np.array([0, len(queries), position, self.table.ctypes.data], np.int64)
        attend_rows[self.format].call(
            *(queries.ctypes.data, queries.strides[0], out.ctypes.data, out.strides[0], len(queries), position, step),
            *(self.table.ctypes.data, head, self.words.ctypes.data, scores.ctypes.data, run.ctypes.data, head),
        )
        return out

    def turned(self, queries):
        """Queries as they are when keys and values have been written."""
        return (queries @ rotation(self.size)).astype(np.float32) if self.format != "q8_0" else queries

    def decoded(self, head):
        """Keys and values [count, size] of a head as they are stored, in q5_1 and q4_0 rotated."""
        if self.format == "q8_0":
            return [decoded(part[:, head]) for part in (self.keys, self.values)]
        if self.format == "q5_1":
            return self.decoded_fives(head)
        keys, values = [], []
        for at in range(self.count):
            key, value = self.memory[::-1][at // self.block][:, head]
            units = key.reshape(self.block // 16, self.size // 32, 288)[at % self.block // 16]
            codes = units[:, 32:].reshape(-1, 4, 16, 4)[:, :, at % 16].reshape(-1, 16)
            keys.append(from_nibbles(codes, units[:, :32].copy().view(np.float16)[:, at % 16]))
            codes = value[at % self.block * self.size // 2 :][: self.size // 2].reshape(-1, 16)
            scales = value[self.block * self.size // 2 :].view(np.float16).reshape(-1, self.block)
            values.append(from_nibbles(codes, scales[:, at % self.block]))
        return np.array(keys), np.array(values)

    def decoded_fives(self, head):
        """The same of q5_1."""
        keys, values = [], []
        for at in range(self.count):
            key, value = self.memory[::-1][at // self.block][:, head]
            units = key.reshape(self.block // 16, self.size // 32, 384)[at % self.block // 16]
            scales, minima = (units[:, first : first + 32].copy().view(np.float16)[:, at % 16] for first in (0, 32))
            codes = units[:, 64:320].reshape(-1, 4, 16, 4)[:, :, at % 16].reshape(-1, 16)
            fifth = np.unpackbits(units[:, 320:].reshape(-1, 16, 4)[:, at % 16], axis=1, bitorder="little")
            fifth = fifth.reshape(-1, 4, 8).transpose(0, 2, 1).reshape(-1, 32)
            keys.append(from_fives(codes, fifth, scales, minima))
            units = value[: self.block * self.size * 5 // 8].reshape(self.block, -1, 20)[at % self.block]
            halves = value[self.block * self.size * 5 // 8 :].view(np.float16).reshape(2, -1, self.block)
            fifth = np.unpackbits(units[:, 16:], axis=1, bitorder="little")
            values.append(from_fives(units[:, :16], fifth, *halves[:, :, at % self.block]))
        return np.array(keys), np.array(values)

    def expected(self, query, position, head):
        """The same of one query in float64: of the keys and values that are stored, and the query as it is rounded."""
        first = max(0, position + 1 - self.window) if self.window else 0
        keys, values = self.decoded(head)
        keys, values = keys[first : position + 1], values[first : position + 1]
        if self.format != "q8_0":
            query, values = self.turned(query), values @ rotation(self.size)
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


def from_nibbles(codes, scales):
    """The values of bytes [units, 16] of two codes each, those of the low nibbles first: float64."""
    both = np.concatenate([codes & 15, codes >> 4], axis=1).astype(np.float64) - 8
    return (both * scales[:, None].astype(np.float64)).reshape(-1)


def from_fives(codes, fifth, scales, minima):
    """The same of nibbles with fifth bits [units, 32] and minima, which are taken away."""
    whole = np.concatenate([codes & 15, codes >> 4], axis=1).astype(np.float64) + 16 * fifth
    return (whole * scales[:, None].astype(np.float64) - minima[:, None].astype(np.float64)).reshape(-1)


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
        expected, expected_scales = (part[0] for part in q8_0(stored.keys[at : at + 1, head]))
        np.testing.assert_array_equal(codes, expected)
        np.testing.assert_array_equal(scales, expected_scales)
        expected, expected_scales = (part[0] for part in q8_0(stored.values[at : at + 1, head]))
        np.testing.assert_array_equal(values[at % block * size :][:size].view(np.int8), expected)
        scales = values[block * size :].view(np.float16).reshape(units, block)[:, at % block]
        np.testing.assert_array_equal(scales, expected_scales)


@pytest.mark.parametrize(("size", "block"), [(32, 16), (64, 64), (96, 32), (256, 64)])
def test_nibbles_are_nearer_to_what_was_rotated_than_those_of_the_format(size, block):
    stored = Stored(block + 19, size, block, format="q4_0")
    for head in range(KV_HEADS):
        for found, original in zip(stored.decoded(head), (stored.keys, stored.values), strict=True):
            turned = original[:, head] @ rotation(size)
            usual = formats.decode(formats.encode(turned.astype(np.float32), formats.get("q4_0"), ""))
            error, bar = (np.square(each - turned).sum(axis=1) for each in (found, usual))
            assert (error <= 1.001 * bar).all()
            assert (error / bar).mean() < 0.93


@pytest.mark.parametrize(("size", "block"), [(32, 16), (64, 64), (96, 32), (256, 64)])
def test_five_bits_are_as_near_to_what_was_rotated_as_those_of_the_format(size, block):
    """Both round to the nearest of 32 values between the least and the largest; scales and minima are float16."""
    stored = Stored(block + 19, size, block, format="q5_1")
    for head in range(KV_HEADS):
        for found, original in zip(stored.decoded(head), (stored.keys, stored.values), strict=True):
            turned = original[:, head] @ rotation(size)
            blocks = turned.reshape(len(turned), -1, 32)
            step = (blocks.max(axis=2) - blocks.min(axis=2)) / 31
            error = np.abs(found - turned).reshape(blocks.shape).max(axis=2)
            assert (error <= 0.5 * step + 1e-3 * np.abs(blocks).max(axis=2)).all()
            usual = formats.decode(formats.encode(turned.astype(np.float32), formats.get("q5_1"), ""))
            assert np.square(found - turned).sum() < 1.25 * np.square(usual - turned).sum()


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize(
    ("size", "format"),
    [
        (32, "q8_0"),
        (64, "q8_0"),
        (96, "q8_0"),
        (128, "q8_0"),
        (256, "q8_0"),
        (32, "q5_1"),
        (64, "q5_1"),
        (96, "q5_1"),
        pytest.param(256, "q5_1", marks=pytest.mark.slow),
        (32, "q4_0"),
        (64, "q4_0"),
        (96, "q4_0"),
        pytest.param(256, "q4_0", marks=pytest.mark.slow),
    ],
)
def test_attention_of_query_heads_is_that_of_float64(size, format, rows):
    """Contexts that end in a group of 16 positions, with it, in a block and in the next one."""
    for count in (1, 15, 16, 17, 64, 65, 150):
        stored, queries = Stored(count, size, 64, format=format), queries_of(rows, size)
        for head in range(KV_HEADS):
            found = stored.attend(queries, count - 1, 0, head)
            for query, row in zip(queries, found, strict=True):
                assert_near(row, stored.expected(query, count - 1, head))


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize("format", ["q8_0", "q5_1", "q4_0"])
@pytest.mark.parametrize(("window", "softcap"), [(None, 0.0), (None, 5.0), (24, 0.0), (33, 5.0)])
def test_attention_of_tokens_is_that_of_float64_and_of_each_on_its_own(window, softcap, format, rows):
    """Tokens of a prompt, each of which sees one position more: the same bytes alone, at any place of a block."""
    stored = Stored(140, 64, 32, window, softcap, format=format)
    queries = queries_of(rows, 64)
    for position in (0, 3, 14, 15, 16, 30, 31, 63, 100, 140 - rows):
        found = stored.attend(queries, position, 1, 1)
        for number, (query, row) in enumerate(zip(queries, found, strict=True)):
            assert_near(row, stored.expected(query, position + number, 1))
            alone = stored.attend(query[None], position + number, 0, 1)
            np.testing.assert_array_equal(alone[0], row)


def assert_near(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=2e-5 * max(1, np.abs(expected).max()))


@pytest.mark.parametrize("format", ["q8_0", "q5_1", "q4_0"])
def test_positions_are_written_one_by_one_as_together_and_again(format):
    together, single = (Stored(50, 64, 16, format=format) for _ in range(2))
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


@pytest.mark.parametrize("format", ["q8_0", "q5_1", "q4_0"])
@pytest.mark.parametrize("value", [0.0, 1e-9, 3e-6, 6e4])
def test_values_at_the_ends_of_what_a_scale_holds(value, format):
    """Zeros, what float16 scales round to 0, scales that lost digits, and more than float16 itself holds well."""
    stored = Stored(20, 64, 32, format=format)
    stored.keys[3], stored.values[3] = value, -value
    stored.values[3, :, 5] = value / 2
    stored.write(3, 4)
    for head in range(KV_HEADS):
        found = stored.attend(queries_of(2, 64), 19, 0, head)
        for query, row in zip(queries_of(2, 64), found, strict=True):
            assert_near(row, stored.expected(query, 19, head))


@pytest.mark.parametrize("format", ["q8_0", "q5_1", "q4_0"])
def test_nan_stays_in_its_sequence_and_is_seen(format):
    stored = Stored(40, 64, 32, format=format)
    stored.keys[30, 0, 7] = np.nan
    stored.values[30, 1, 40] = np.inf
    stored.write(30, 31)
    query = queries_of(1, 64)
    assert np.isnan(stored.attend(query, 39, 0, 0)).all()
    assert not np.isfinite(stored.attend(query, 39, 0, 1)).all()
    assert np.isfinite(stored.attend(query, 29, 0, 0)).all()
    assert np.isfinite(stored.attend(query, 29, 0, 1)).all()


@kernel(9)
def _prefetched(table, number, first, last, cache, head, next_run, next_head, out):
    write_int(out, block_ahead(table, number, first, last, cache, head, next_run, next_head))
    write_int(out + 8, blocks_ahead(cache))


@pytest.mark.parametrize(("window", "position", "after"), [(None, 20, [0, 1, 1, 1]), (20, 70, [3, 4, 4, 4])])
def test_what_is_prefetched_is_read_next(window, position, after):
    """Keys of a head, then its values, then the first keys of the next run; never an entry behind its block table."""
    stored = Stored(70, 64, 16, window)
    own, other = stored.table[1:4], stored.table
    run = np.array([0, 1, position, other.ctypes.data], np.int64)
    found, blocks = [], np.zeros(2, np.int64)
    for number in range(1, 11):
        own_run = stored.table.ctypes.data, number, 1, 4, stored.words.ctypes.data, 1
        _prefetched.call(*own_run, run.ctypes.data, 0, blocks.ctypes.data)
        found.append(int(blocks[0]))
    head_bytes, values = (int(stored.words[word]) for word in (CacheWord.HEAD, CacheWord.VALUES))
    want = [*(own + head_bytes), *(own + head_bytes + values), *other[after]]
    assert found == [int(each) for each in want]
    assert blocks[1] == 4  # of 1,088 bytes
