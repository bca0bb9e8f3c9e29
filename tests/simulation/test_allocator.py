"""The card's memory: torch's rules of rounding, segments that are reserved, and books that always balance."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rung.simulation.allocator import MB, Allocator, Full


def counts(allocator: Allocator) -> tuple[int, int]:
    stats = allocator.stats()
    return stats["allocated"], stats["reserved"]


@pytest.mark.parametrize(
    ("size", "allocated", "reserved"),
    [
        (0, 0, 0),
        (1, 512, 2 * MB),
        (513, 1024, 2 * MB),
        (MB, MB, 2 * MB),
        (MB + 1, MB + 512, 20 * MB),
        (10 * MB - 512, 10 * MB - 512, 20 * MB),
        # what is left of a large segment is split off from 1 MB on only
        (19 * MB + 1, 20 * MB, 20 * MB),
        (31 * MB + 1, 32 * MB, 32 * MB),
    ],
)
def test_a_request_takes_what_torch_takes(size, allocated, reserved):
    allocator = Allocator(1 << 30)
    allocator.allocate(size)
    assert counts(allocator) == (allocated, reserved)


def test_freed_memory_is_used_again_and_given_back_on_request():
    allocator = Allocator(1 << 30)
    block = allocator.allocate(50 * MB)
    allocator.release(block)
    assert counts(allocator) == (0, 50 * MB)
    again = allocator.allocate(30 * MB)
    assert counts(allocator) == (30 * MB, 50 * MB)
    allocator.empty_cache()
    assert counts(allocator) == (30 * MB, 50 * MB)  # half of the segment is in use
    allocator.release(again)
    allocator.empty_cache()
    assert counts(allocator) == (0, 0)
    assert allocator.stats()["peak_allocated"] == 50 * MB


def test_cached_segments_are_given_up_before_memory_runs_out():
    allocator = Allocator(64 * MB)
    allocator.release(allocator.allocate(40 * MB))
    allocator.allocate(60 * MB)
    with pytest.raises(Full):
        allocator.allocate(5 * MB)
    assert (allocator.counts["retry"], allocator.counts["out_of_memory"]) == (2, 1)


def test_fragments_do_not_add_up():
    """Four pieces of 16 MB with a hole of 32 MB in two halves: 32 MB in one piece cannot be had."""
    allocator = Allocator(64 * MB)
    blocks = [allocator.allocate(16 * MB) for _ in range(4)]
    for index in (0, 2):
        allocator.release(blocks[index])
    whole = allocator.allocate(32 * MB)  # each piece is a segment of its own, so empty ones are given up
    allocator.release(whole)
    split = Allocator(64 * MB)
    whole = split.allocate(64 * MB)
    split.release(whole)
    pieces = [split.allocate(16 * MB) for _ in range(4)]
    for index in (0, 2):
        split.release(pieces[index])
    with pytest.raises(Full):
        split.allocate(32 * MB)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40 * MB), st.integers(0, 10**6)), max_size=60))
def test_the_books_balance_whatever_is_asked_and_freed(steps):
    allocator = Allocator(256 * MB)
    live = []
    for take, size, which in steps:
        if take or not live:
            try:
                live.append((allocator.allocate(size), size))
            except Full:
                continue
        else:
            allocator.release(live.pop(which % len(live))[0])
        allocated, reserved = counts(allocator)
        assert allocated == sum(block.size for block, _ in live)
        assert all(size <= block.size < size + max(512, MB + 512) for block, size in live if size)
        assert allocated <= reserved <= allocator.capacity
    for block, _ in live:
        allocator.release(block)
    allocator.empty_cache()
    assert counts(allocator) == (0, 0)
