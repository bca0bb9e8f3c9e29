"""Layers with a window: what their caches keep, what the plan counts of it, and from where sequences can go on."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
from toy_backend import WINDOW, answer, finish, free_blocks, next_token, scheduling, sequence, toy

from rung.core.errors import OutOfMemory
from rung.engine.scheduling.kv_cache import BlockPool, Cache
from rung.engine.scheduling.scheduler import Scheduler
from rung.engine.scheduling.sequence_reader import SequenceReader
from rung.models.decoder_memory import cache_bytes

#: Rows of a chunk here, and the blocks of 4 positions of the layer with a window that a pool for one sequence has then:
#: twice those of a window and the one that is written to, and those that a chunk cut in two touches.
CHUNK = 16
BLOCKS = 2 * (WINDOW // 4 + 1) + (CHUNK + 2 * 2) // 4


@pytest.fixture
def small(monkeypatch):
    """A decoder of 256 tokens whose pool has few blocks of the layer with a window."""
    monkeypatch.setattr("rung.models.decoder_memory.CHUNK", CHUNK)
    decoder = toy(context=256)
    assert [len(member.uses) for member in decoder.pool.members] == [64, BLOCKS]
    return decoder


def scheduler_of(decoder):
    return scheduling(decoder, CHUNK)


def said(decoder, prompt, most=4):
    """How many tokens of a prompt were known; what is said is right."""
    scheduler, each = scheduler_of(decoder), sequence(prompt, most, context=decoder.context)
    scheduler.add(each)
    assert finish(scheduler, each) == [answer(prompt, most)]
    return each.cached


def shape(*windows):
    layers = tuple(SimpleNamespace(window=window) for window in windows)
    return SimpleNamespace(vocabulary=97, kv_heads=2, head_dim=16, layers=layers)


@pytest.mark.parametrize("block", [4, 16, 64])
@pytest.mark.parametrize("window", [1, 8, 16, 17, 40, 64, 100])
def test_a_cache_keeps_what_is_seen_and_a_block_more_at_most(window, block):
    pool = BlockPool(shape(None, window), 400, "f32", ["cpu"] * 2, block)
    cache = Cache(pool)
    for length in range(1, 390):
        cache.reserve(length)
        cache.advance([1])
        cache.reserve(length + 1)
        there = [number for number, entry in enumerate(cache.blocks[1]) if entry is not None]
        first_visible = max(0, length + 1 - window) // block
        assert there == list(range(there[0], length // block + 1))
        assert first_visible - 1 <= there[0] <= max(0, length // block * block + 1 - window) // block
        assert None not in cache.blocks[0]
    cache.release()
    assert [member.free for member in pool.members] == [len(member.uses) for member in pool.members]


@pytest.mark.parametrize("sequences", [1, 2, 5])
@pytest.mark.parametrize("windows", [(None, 64, 64), (512,), (None, 100, 1000), (None, 4000)])
def test_the_plan_counts_the_bytes_of_the_pool(windows, sequences):
    described = shape(*windows)
    pool = BlockPool(described, 4096, "f16", ["cpu"] * len(windows), 64, sequences=sequences)
    taken = sum(member.memory.size for member in pool.members)
    assert taken == cache_bytes(described, 4096, "f16", block=64, sequences=sequences)
    assert taken <= sequences * cache_bytes(described, 4096, "f16")


@pytest.mark.parametrize("window", [64, 65, 500])
@pytest.mark.parametrize("sequences", [1, 3])
def test_a_pool_holds_the_windows_of_its_sequences_beside_any_chunk(window, sequences):
    """One that reads 512 tokens from the end of a block on, in turns, and one sequence more than is planned for."""
    pool = BlockPool(shape(window), 4096, "f16", ["cpu"], 64, sequences=sequences)
    caches = [Cache(pool) for _ in range(sequences + 1)]
    for count in (500, 523, *[512] * 4):
        for cache in caches:
            cache.reserve(cache.length + count)
            cache.advance([1] * count)
            cache.slide()
    while caches[0].length % 64 < 63:
        for cache in caches:
            cache.reserve(cache.length + 1)
            cache.advance([1])
            cache.slide()
    part = 512 // len(caches) // 64 * 64 + 2  # a chunk cut among all of them, so that each touches one block more
    for cache in caches[1:]:
        cache.reserve(cache.length + part)
    caches[0].reserve(caches[0].length + 512 - part * (len(caches) - 1))


def test_a_cache_is_cut_to_what_its_window_has():
    pool = BlockPool(shape(None, 8), 200, "f32", ["cpu"] * 2, 4)
    cache = Cache(pool)
    cache.reserve(100)
    cache.advance(range(100))
    cache.slide()
    cache.truncate(99)
    assert cache.ids == list(range(99))
    cache.truncate(98)
    assert cache.ids == []
    cache.reserve(100)
    assert None not in cache.blocks[1]
    cache.release()
    assert [member.free for member in pool.members] == [len(member.uses) for member in pool.members]


@pytest.mark.parametrize("count", [8, 900])
def test_a_call_that_failed_leaves_what_it_can_go_on_from(count):
    """Its second chunk fails where it has two: the first has given back what the tokens before the call see."""
    decoder = toy(context=1300)
    calls = []

    def fail(batch):
        calls.append(batch)
        if len(calls) == -(-count // 512):
            raise RuntimeError("the last chunk")

    with SequenceReader(decoder) as reader:
        start, ids = [3] * 100, [1 + number % 90 for number in range(count)]
        reader.prefill(start)
        decoder.step.before = fail
        with pytest.raises(RuntimeError):
            reader.prefill(ids)
        assert reader.cache.length == (100 if count == 8 else 0)
        assert int(reader.prefill([*start, *ids][reader.cache.length :]).argmax()) == next_token([*start, *ids])
        each = reader.logits([5, 6])
        assert [int(row.argmax()) for row in each] == [next_token([*start, *ids, 5]), next_token([*start, *ids, 5, 6])]


@pytest.mark.parametrize("seed", range(8))
def test_any_order_gives_the_tokens_of_a_sequence_alone(seed, small):
    """Prompts that begin alike, more sequences than windows, guesses, and some that are cancelled in the middle."""
    chance = random.Random(seed)
    scheduler = scheduler_of(small)
    stems = [[chance.randrange(1, 5) for _ in range(chance.randrange(1, 60))] for _ in range(4)]
    for _ in range(12):
        group = []
        for _ in range(chance.randrange(1, 6)):
            prompt = [*chance.choice(stems), *(chance.randrange(1, 4) for _ in range(chance.randrange(1, 30)))]
            group.append(sequence(prompt, chance.randrange(1, 40), context=256))
            scheduler.add(group[-1])
        if chance.random() < 0.3:
            gone = group.pop()
            for _ in range(chance.randrange(6)):
                if not gone.ended and not gone.ahead:
                    scheduler.advance(gone)
            scheduler.cancel(gone)
        for each, tokens in zip(group, finish(scheduler, *group), strict=True):
            assert tokens == answer(each.ids[: each.prompt], len(tokens))
            assert each.error is None
        stems.append(group[0].ids[:100] if group else [1])
    small.prefixes.clear()
    assert free_blocks(small) == [64, BLOCKS]


def test_a_chat_goes_on_from_all_that_was_computed(small):
    """Each turn is longer than a window; a copy of the last block is taken only where it does not go on."""
    prompt = [1, 2, 3]
    for turn in range(6):
        assert said(small, prompt, 20) == (len(prompt) - 11 if turn else 0)
        prompt = [*prompt, *answer(prompt, 20), *range(1, 11)]


def test_the_same_prompt_is_known_while_it_is_answered_and_after_that(small):
    prompt = [chance % 7 + 1 for chance in range(50)]
    assert said(small, prompt) == 0
    assert said(small, prompt) == 49
    prompt[0] = 9
    scheduler = scheduler_of(small)
    first, second = sequence(prompt, 40, context=256), sequence(prompt, 4, context=256)
    scheduler.add(first)
    while len(first.ids) < 70:
        scheduler.advance(first)
        first.take()
    scheduler.add(second)
    assert finish(scheduler, second) == [answer(prompt, 4)]
    assert second.cached == 48


def test_a_sequence_that_ends_inside_a_block_of_another_leaves_it_alone(small):
    """Its block has not all tokens of the one that the tree has."""
    stem = [number % 11 + 1 for number in range(41)]
    stem += answer(stem, 1)
    said(small, [*stem, *[77] * 30])
    said(small, stem[:41], 2)
    assert said(small, [*stem, 77, 77, 77, 5]) == 40


def test_where_two_left_each_other_a_third_goes_on(small):
    stem = [number % 11 + 1 for number in range(42)]
    assert said(small, [*stem, *[50] * 20]) == 0
    assert said(small, [*stem, *[51] * 20]) == 0
    assert said(small, [*stem, *[52] * 20]) == 40
    assert said(small, [*stem, *[53] * 20]) == 40


def test_a_pool_without_room_forgets_the_windows_of_the_oldest(small):
    """The blocks of the other layers stay."""
    prompts = [[number] * 30 for number in range(1, 6)]
    for prompt in prompts:
        said(small, prompt, 10)
    kept = [said(small, [*prompt, *answer(prompt, 10), 9], 1) for prompt in reversed(prompts)]
    assert kept[0] == 39
    assert kept[-1] == 0
    assert len(list(small.prefixes)) > 40


def test_more_sequences_than_windows_wait_and_are_answered(small):
    scheduler = scheduler_of(small)
    everybody = [sequence([number, *[7] * 20], 20, context=256) for number in range(10, 18)]
    for each in everybody:
        scheduler.add(each)
    found = finish(scheduler, *everybody)
    assert found == [answer(each.ids[:21], 20) for each in everybody]


def test_a_chunk_without_room_gets_shorter_and_nobody_loses_its_cache(small, monkeypatch):
    scheduler = scheduler_of(small)
    monkeypatch.setattr(Scheduler, "preempt", lambda self, each: pytest.fail("a sequence lost its cache"))
    others = [sequence([number, *[7] * 20], 20, context=256) for number in (10, 11)]
    long = sequence([5] * 100, 3, context=256)
    for each in (*others, long):
        scheduler.add(each)
    assert finish(scheduler, *others, long)[2] == answer([5] * 100, 3)


def test_windows_that_a_sequence_uses_are_not_freed():
    decoder = toy(context=64, blocks=16)
    cache = decoder.begin([1] * 40, share=True)
    cache.reserve(40)
    cache.advance([1] * 40)
    decoder.keep(cache, "")
    for _ in range(decoder.pool.members[1].free):
        decoder.pool.take(1)
    with pytest.raises(OutOfMemory):
        decoder.pool.take(1)
    used = [block for block in cache.blocks[1] if block is not None]
    assert len(used) == WINDOW // 4
    assert [decoder.pool.members[1].uses[block] for block in used] == [2, 2]
