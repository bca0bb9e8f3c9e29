"""Caches in blocks of 32 values: their bytes beside ``rung.formats``, and attention over them beside float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rung import formats
from rung.kernels.cpu.compiled import kernel
from rung.kernels.cpu.decode.cache_layout import CacheWord, block_ahead, blocks_ahead
from rung.kernels.isa.generic import write_int
from rung.kernels.isa.products import packs_signed_bytes
from tests.support.caches import KV_HEADS, Stored, near, q8_0, rotation


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
    assert near(found, expected), np.abs(found - expected).max()


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
