"""Keys and values of earlier sequences, as a tree of blocks: a sequence that begins alike computes only the rest.

A node is a block of tokens after those of its parents. Sequences and the tree share blocks and count their uses. Where
a sequence goes on in the middle of a block it gets a copy of that block, or the block itself if nobody else uses it and
it is the end of an earlier sequence. Every owner has a tree of its own: how fast an answer comes tells nobody what
others have asked.

The tree frees blocks from its leaves, by GreedyDual-Size (Cao and Irani, "Cost-Aware WWW Proxy Caching Algorithms",
USITS 1997): a node's value is what computing it again costs for each byte, plus the value of the last node that was
freed when this one was last used.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections.abc import Iterator, Sequence

from rung.core.errors import OutOfMemory
from rung.engine.scheduling.kv_cache import BlockPool, Cache, common_length

#: At this position attention costs as much as everything else of a token, about: a later block is worth more.
_ATTENTION_DEPTH = 4096


class _Node:
    """A block of tokens after those of its parents; ``blocks`` has its block of each group of layers."""

    __slots__ = ("blocks", "children", "ids", "parent", "start", "value")

    def __init__(self, parent: _Node | None, start: int, ids: tuple[int, ...], blocks: tuple[int, ...]) -> None:
        self.parent, self.start, self.ids, self.blocks = parent, start, ids, blocks
        self.children: dict[int, list[_Node]] = {}  # by their first token
        self.value = 0.0

    def child(self, ids: Sequence[int]) -> tuple[_Node | None, int]:
        """Return the child that has most of the leading tokens of ``ids``, and how many."""
        found: tuple[_Node | None, int] = (None, 0)
        for node in self.children.get(ids[0], ()) if ids else ():
            if (count := common_length(node.ids, ids[: len(node.ids)])) > found[1]:
                found = node, count
        return found


class PrefixCache:
    """The trees of all owners over the blocks of a pool, which frees blocks here when it has no others."""

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._roots: dict[str, _Node] = {}
        self._leaves: list[tuple[float, int, _Node]] = []  # a heap; entries whose node has changed are skipped
        self._numbers = itertools.count()
        self._freed_value = 0.0
        pool.reclaim = self.free_one

    def attach(self, cache: Cache, ids: Sequence[int], owner: str) -> None:
        """Give an empty cache the blocks of the longest known beginning of ``ids``."""
        node, block, ids = self._roots.get(owner), self._pool.block, tuple(ids)
        while node is not None:
            found, count = node.child(ids[cache.length : cache.length + block])
            if found is None:
                return
            if count < block:
                self._attach_part(cache, found, count)
                return
            self._share(cache, found)
            node = found

    def _share(self, cache: Cache, node: _Node) -> None:
        self._touch(node)
        self._count_use(node.blocks)
        cache.attach(node.blocks, node.ids)

    def _attach_part(self, cache: Cache, node: _Node, count: int) -> None:
        """Attach the first ``count`` tokens of a node: its own block if this continues it, else a copy.

        Where there is no room for a copy, its own block if nobody else uses it.
        """
        blocks: Sequence[int] | None = None
        if count < len(node.ids) or not self._is_free(node):
            self._count_use(node.blocks)  # taking a block must not free this one
            with contextlib.suppress(OutOfMemory):
                blocks = self._copy(node.blocks)
            self._give_back(node.blocks)
        if blocks is not None:
            self._touch(node)
        elif self._is_free(node):
            self._unlink(node)
            blocks = node.blocks
        if blocks is not None:
            cache.attach(blocks, node.ids[:count])

    def _copy(self, blocks: Sequence[int]) -> list[int]:
        """Return a copy of a block of each group. Raises ``OutOfMemory``."""
        copies: list[int] = []
        try:
            for group, (member, number) in enumerate(zip(self._pool.members, blocks, strict=True)):
                copies.append(self._pool.take(group))
                member.memory[copies[-1]] = member.memory[number]
        except OutOfMemory:
            self._give_back(copies)
            raise
        return copies

    def _count_use(self, blocks: Sequence[int]) -> None:
        for member, number in zip(self._pool.members, blocks, strict=True):
            member.share(number)

    def _give_back(self, blocks: Sequence[int]) -> None:
        for member, number in zip(self._pool.members, blocks, strict=False):
            member.give_back(number)

    def insert(self, cache: Cache, owner: str, whole_blocks: bool) -> None:
        """Add the tokens of a cache to the tree; ``whole_blocks`` leaves out a last block that more may be written to.

        The tree then uses the blocks that it did not have.
        """
        block = self._pool.block
        length = cache.length // block * block if whole_blocks else cache.length
        if not length:
            return
        node = self._roots.setdefault(owner, _Node(None, 0, (), ()))
        for number, start in enumerate(range(0, length, block)):
            part = tuple(cache.ids[start : min(start + block, length)])
            found, count = node.child(part)
            if found is None or count < len(part):
                found = self._add(node, start, part, tuple(blocks[number] for blocks in cache.blocks))
            self._touch(found)
            node = found

    def _add(self, parent: _Node, start: int, ids: tuple[int, ...], blocks: tuple[int, ...]) -> _Node:
        shorter, count = parent.child(ids)
        node = _Node(parent, start, ids, blocks)
        self._count_use(blocks)
        parent.children.setdefault(ids[0], []).append(node)
        if shorter is not None and count == len(shorter.ids) and self._is_free(shorter):
            self._free(shorter)  # the new node has all of its tokens
        return node

    def free_one(self) -> bool:
        """Free the least valuable leaf that no sequence uses, and return whether there was one."""
        in_use = []
        try:
            while self._leaves:
                entry = heapq.heappop(self._leaves)
                value, _, node = entry
                if value != node.value or node.children or node.parent is None:
                    continue
                if not self._is_free(node):
                    in_use.append(entry)
                    continue
                self._freed_value = value
                self._free(node)
                return True
            return False
        finally:
            for entry in in_use:
                heapq.heappush(self._leaves, entry)

    def clear(self) -> None:
        """Free every block that no sequence uses."""
        while self.free_one():
            pass

    def _free(self, node: _Node) -> None:
        self._unlink(node)
        self._give_back(node.blocks)

    def _unlink(self, node: _Node) -> None:
        """Take a leaf out of the tree; its blocks stay in use."""
        parent = node.parent
        assert parent is not None
        siblings = parent.children[node.ids[0]]
        siblings.remove(node)
        if not siblings:
            del parent.children[node.ids[0]]
        node.parent = None
        if parent.children:
            return
        if parent.parent is not None:
            self._push(parent)
        else:
            self._roots = {owner: root for owner, root in self._roots.items() if root.children}

    def _is_free(self, node: _Node) -> bool:
        """Return whether a node is a leaf that no sequence uses."""
        uses = (member.uses[number] for member, number in zip(self._pool.members, node.blocks, strict=True))
        return not node.children and all(count == 1 for count in uses)

    def _touch(self, node: _Node) -> None:
        """Note a use: a node that was used lately is freed later."""
        middle = node.start + len(node.ids) / 2
        value = self._freed_value + len(node.ids) / self._pool.block * (1 + middle / _ATTENTION_DEPTH)
        if value != node.value:
            node.value = value
            if not node.children:
                self._push(node)

    def _push(self, node: _Node) -> None:
        heapq.heappush(self._leaves, (node.value, next(self._numbers), node))

    def __iter__(self) -> Iterator[tuple[int, ...]]:
        """Yield the tokens of every node, parents first."""
        nodes = list(self._roots.values())
        while nodes:
            node = nodes.pop()
            if node.ids:
                yield node.ids
            nodes += itertools.chain.from_iterable(node.children.values())
