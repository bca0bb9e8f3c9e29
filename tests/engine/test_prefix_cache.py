"""The tree of blocks: what is found again, whose blocks are shared or copied, and what is freed first."""

from __future__ import annotations

import random

import pytest
from toy_backend import answer, finish, free_blocks, scheduling, sequence, toy


def said(decoder, prompt, most=4, owner=""):
    """The tokens after a prompt, and how many of it were known."""
    scheduler, each = scheduling(decoder), sequence(prompt, most, owner, context=decoder.context)
    scheduler.add(each)
    (tokens,) = finish(scheduler, each)
    assert tokens == answer(prompt, most)
    return tokens, each.cached


def test_all_but_the_last_token_of_the_same_prompt_is_known():
    decoder = toy(context=64, blocks=64)
    for count in range(1, 20):
        prompt = list(range(count, 0, -1))
        assert said(decoder, prompt)[1] == 0
        assert said(decoder, prompt)[1] == count - 1


def test_a_chat_goes_on_from_all_that_was_computed():
    decoder = toy(context=64, blocks=64)
    prompt = [1, 2, 3, 4, 5]
    for _ in range(4):
        tokens, _ = said(decoder, prompt)
        prompt = [*prompt, *tokens, 9, 9]
        known = said(decoder, prompt, 1)[1]
        assert known == len(prompt) - 3 or known == len(prompt) - 1


def test_branches_in_the_middle_of_a_block_do_not_disturb_each_other():
    decoder = toy(context=64, blocks=64)
    start = [5, 4, 3, 2, 1, 6]
    for end in ([7], [8], [7, 7], [8, 9]):
        said(decoder, [*start, *end])
    for end in ([7], [8], [7, 7], [8, 9], [1, 1]):
        known = said(decoder, [*start, *end])[1]
        assert known >= len(start)


def test_in_a_pool_of_one_sequence_its_block_is_taken_over():
    """Blocks of a whole context, as rungs with torch want them."""
    decoder = toy(context=32, block=0, blocks=1, parallel=1)
    tokens, _ = said(decoder, [1, 2, 3])
    assert said(decoder, [1, 2, 3, *tokens, 8])[1] == 6
    assert said(decoder, [1, 2, 9])[1] == 2


def test_the_pool_gets_every_block_back():
    decoder = toy(context=64, blocks=20)
    chance = random.Random(3)
    for _ in range(200):
        said(decoder, [chance.randrange(1, 4) for _ in range(chance.randrange(1, 40))])
        uses = [count for member in decoder.pool.members for count in member.uses]
        assert set(uses) <= {0, 1}
    decoder.prefixes.clear()
    assert free_blocks(decoder) == [20, 20]
    assert not list(decoder.prefixes)


def test_what_was_used_lately_is_kept():
    decoder = toy(context=32, blocks=16)
    liked = list(range(1, 17))
    said(decoder, liked)
    for number in range(30):
        said(decoder, [50 + number, *range(60, 75)])
        assert said(decoder, liked)[1] == 15
    assert said(decoder, [50, *range(60, 75)])[1] == 0


def test_a_deep_block_is_worth_more_than_an_early_one():
    """The block that takes less to compute again goes first, if both were used once."""
    decoder = toy(context=64, blocks=16)
    deep, early = [1] * 40, [2, 3, 4, 5]
    said(decoder, deep, 1)
    said(decoder, early, 1)
    assert decoder.prefixes.free_one()
    assert list(decoder.prefixes) == [(1,) * 4] * 10


@pytest.mark.parametrize("whole", [True, False])
def test_a_running_sequence_shares_only_whole_blocks(whole):
    decoder = toy(context=32, blocks=16)
    scheduler = scheduling(decoder)
    first = sequence([1, 2, 3, 4, 5, 6], 20)
    scheduler.add(first)
    while not first.ahead:
        scheduler.advance(first)
    second = sequence([1, 2, 3, 4, 5, 6, 7] if whole else [1, 2, 3], 4)
    scheduler.add(second)
    assert finish(scheduler, second) == [answer(second.ids[: second.prompt], 4)]
    assert second.cached == (4 if whole else 2)
    assert finish(scheduler, first) == [answer([1, 2, 3, 4, 5, 6], 20)]
