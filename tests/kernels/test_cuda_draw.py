"""Tokens that kernels in CUDA C choose, built for the processor, are those that sampling in NumPy chooses."""

import numpy as np
import pytest

from rung.kernels.cuda import fibers
from rung.kernels.cuda.draw_source import CHOICE, blocks_of, choosing, kernels_of
from rung.kernels.cuda.driver import Draw
from rung.kernels.cuda.source import CHOICE_BYTES, FOUND_BYTES
from rung.ops import LADDERS
from rung.ops.token_choice import Row

pytestmark = pytest.mark.skipif(not fibers.compiler(), reason="no C++ compiler is here")
SETTINGS = (
    {},
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 2.0, "top_k": 17},
    {"temperature": 1.0, "top_p": 0.5},
    {"temperature": 1.0, "top_p": 1e-9},
    {"temperature": 1.5, "min_p": 0.1},
    {"temperature": 0.8, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
    {"temperature": 30.0, "top_k": 60, "top_p": 0.99},
)


def chosen(logits, row, random):
    """The tokens by so many random bits, of one row of logits."""
    blocks, choice, found = blocks_of(len(logits)), np.zeros(1, CHOICE), np.zeros(FOUND_BYTES // 8, np.int64)
    choice["inverse"], choice["top_p"], choice["min_p"], choice["top_k"] = (
        *(row.inverse, row.top_p, row.min_p),
        row.top_k,
    )
    choice["random"][0, : len(random)] = random
    draws, by_count = bool(row.inverse), 0 < row.top_k < len(logits)
    for _ in random:
        for kernel, level, by_mass in kernels_of(draws, by_count, row.top_p < 1):
            argument = Draw(
                *(each.ctypes.data for each in (logits, choice, found)), len(logits), blocks, draws, level, by_mass
            )
            fibers.launch(choosing(), kernel, (blocks, 1), (argument,))
    assert choice["step"] == len(random)
    return found.view(np.int32)[: len(random)].tolist()


def rows_of(vocabulary):
    """Logits as models have them, a few that are alike, mostly forbidden ones, and zeros of both signs."""
    generator = np.random.default_rng(vocabulary)
    normal = generator.standard_normal(vocabulary, np.float32) * 4
    forbidden = np.where(generator.random(vocabulary) < 0.9, -np.inf, normal).astype(np.float32)
    zeros = np.where(generator.random(vocabulary) < 0.5, np.float32(0.0), np.float32(-0.0))
    return normal, np.round(normal / 3), forbidden, zeros, normal - 100


@pytest.mark.parametrize("options", SETTINGS, ids=str)
@pytest.mark.parametrize("vocabulary", [1, 83, 2600])
def test_every_choice_is_that_of_sampling(vocabulary, options):
    """From the first token of a row to its last, those at the ends of what filters keep among them."""
    sample, many = LADDERS["sample"].rung("numpy.sample").load(), (1 << 64) - 1
    random = [0, many, *(int(each) for each in np.random.default_rng(3).integers(0, many, 8, np.uint64))]
    for logits in rows_of(vocabulary):
        rows = [Row(**options, random=each) for each in random]
        right = sample.apply(None, np.repeat(logits[None], len(rows), 0), rows)
        assert not any(each.error for each in right)
        assert chosen(logits, rows[0], random) == [each.token for each in right]


@pytest.mark.parametrize("options", [SETTINGS[0], SETTINGS[8]], ids=str)
def test_logits_that_are_no_numbers_choose_none(options):
    for bad in (np.nan, -np.nan, np.inf):
        logits = np.random.default_rng(0).standard_normal(900).astype(np.float32)
        logits[700] = bad
        assert chosen(logits, Row(**options), [5, 6]) == [-1, -1]
    assert chosen(np.full(900, -np.inf, np.float32), Row(**options), [5]) == [-1]
    assert CHOICE.itemsize == CHOICE_BYTES
