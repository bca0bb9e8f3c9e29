"""Answers that wait until the cache of keys and values has room for all that they may become."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Sequence
from typing import Protocol, TypeVar


class Waiting(Protocol):
    """An answer that waits or is computed: its owner, and the tokens that its cache must have room for."""

    @property
    def owner(self) -> str:
        """Return whose it is."""

    @property
    def room(self) -> int:
        """Return the tokens of its prompt and of all that may follow."""


A = TypeVar("A", bound=Waiting)


def in_turn(waiting: Sequence[A], live: Sequence[A]) -> list[A]:
    """Return answers in the order of their turns: whose owner has least room comes first, and of one owner the first
    that came.

    Each turn counts for the next: owners that all wait alternate.
    """
    has, queues = Counter[str](), dict[str, deque[tuple[int, A]]]()
    for each in live:
        has[each.owner] += each.room
    for position, each in enumerate(waiting):
        queues.setdefault(each.owner, deque()).append((position, each))
    heads = [(has[owner], queue[0][0], owner) for owner, queue in queues.items()]
    heapq.heapify(heads)
    found = []
    while heads:
        room, _, owner = heads[0]  # the first of those that are alike
        queue = queues[owner]
        _, following = queue.popleft()
        found.append(following)
        if queue:
            heapq.heapreplace(heads, (room + following.room, queue[0][0], owner))
        else:
            heapq.heappop(heads)
    return found


def count_fitting(turns: Sequence[A], live: Sequence[A], tokens: int, most: int) -> int:
    """Return how many of the first ``turns`` fit beside the answers that are computed, ``most`` in all, in a cache of
    so many ``tokens``. Nobody overtakes one that does not fit, so that each has its turn; one alone always fits."""
    taken, count = sum(each.room for each in live), 0
    for each in turns:
        alone = not live and count == 0
        if len(live) + count >= most or not (alone or taken + each.room <= tokens):
            break
        taken += each.room
        count += 1
    return count
