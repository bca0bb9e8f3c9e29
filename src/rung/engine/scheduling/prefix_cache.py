"""Keys and values of earlier sequences, as a tree of blocks: a sequence that begins alike computes only the rest.

A node is a block of tokens after those of its parents. Sequences and the tree share blocks and count their uses. Where
a sequence goes on in the middle of a block it gets a copy of that block, or the block itself if nobody else uses it and
it is the end of an earlier sequence. Every owner has a tree of its own: how fast an answer comes tells nobody what
others have asked.

Of layers with a window only some nodes have their blocks. A sequence can go on from a length before which every window
is there: a *checkpoint*. There is one at the end of a prompt, at the end of a sequence, and where a sequence left what
the tree knows, since others are likely to do so too (Pan et al., "Marconi: Prefix Caching for the Era of Hybrid LLMs",
MLSys 2025).

The tree frees blocks from its leaves, by GreedyDual-Size (Cao and Irani, "Cost-Aware WWW Proxy Caching Algorithms",
USITS 1997): a node's value is what computing it again costs for each byte, plus the value of the last node that was
freed when this one was last used. Windows are freed in the same way, wherever they are: what they cost is what has to
be computed again from the checkpoint before.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, Protocol

from rung.core.errors import OutOfMemory
from rung.core.shield import Outcome, in_background
from rung.engine.scheduling.kv_cache import BlockPool, Cache, common_length
from rung.engine.scheduling.prefix_files import Bytes, NewFile, PrefixFile, PrefixFiles

#: At this position attention costs as much as everything else of a token, about: a later block is worth more.
_ATTENTION_DEPTH = 4096
#: Threads that read files.
_READERS = 2


class _Node:
    """A block of tokens after those of its parents; ``blocks`` has its block of each group of layers, of those with a
    window where it is kept. ``gain`` is what the window is worth beside the value of the last one that was freed."""

    __slots__ = ("blocks", "children", "gain", "ids", "key", "parent", "start", "value", "window_value")

    def __init__(self, parent: _Node | None, start: int, ids: tuple[int, ...], blocks: dict[int, int]) -> None:
        self.parent, self.start, self.ids, self.blocks = parent, start, ids, blocks
        self.children: dict[int, list[_Node]] = {}  # by their first token
        self.value = self.window_value = self.gain = 0.0
        self.key = b""  # in files

    def child(self, ids: Sequence[int]) -> tuple[_Node | None, int]:
        """Return the child that has most of the leading tokens of ``ids``, and how many."""
        found: tuple[_Node | None, int] = (None, 0)
        for node in self.children.get(ids[0], ()) if ids else ():
            if (count := common_length(node.ids, ids[: len(node.ids)])) > found[1]:
                found = node, count
        return found


class Source(Protocol):
    """Where the blocks of nodes are read from."""

    def head(self, file: PrefixFile) -> tuple[list[int], list[int]]:
        """Return the tokens of a node and the groups that it has blocks of."""

    def read(self, file: PrefixFile, blocks: Mapping[int, Bytes]) -> bool:
        """Read the blocks of some groups into arrays; return whether they are whole. Any thread may call."""


class _Write(NamedTuple):
    """Nodes that a thread of a process writes to files: their hashes, and their blocks, which are in use until then."""

    process: int
    outcome: Outcome[None]
    keys: Collection[bytes]
    blocks: Sequence[Mapping[int, int]]


class PinnedNodes(NamedTuple):
    """Nodes of a tree that somebody reads: as files have them, and their blocks by group."""

    nodes: list[NewFile]
    blocks: list[dict[int, int]]


class PrefixCache:
    """The trees of all owners over the blocks of a pool, which frees blocks here when it has no others.

    ``files`` keep nodes of sequences that have ended, for this process and later ones.
    """

    def __init__(self, pool: BlockPool, files: PrefixFiles | None = None) -> None:
        self._pool, self._files = pool, files
        self._writes: deque[_Write] = deque()  # in the order in which they were begun
        self._roots: dict[str, _Node] = {}
        self._leaves: list[tuple[float, int, _Node]] = []  # a heap; entries whose node has changed are skipped
        self._windows: dict[int, list[tuple[float, int, _Node]]] = {group: [] for group in pool.windows}  # the same
        self._numbers = itertools.count()
        self._freed_value = self._freed_window = 0.0
        pool.reclaim = self._reclaim

    def attach(self, cache: Cache, ids: Sequence[int], owner: str) -> None:
        """Give an empty cache the blocks of the longest known beginning of ``ids`` that it can go on from.

        Where the tree knows more of them than that, and where they end, is a checkpoint once the cache has come there.
        """
        self.settle()
        path, block = self._path(tuple(ids), owner), self._pool.block
        if self._files is not None and self._read_files(self._files, path, tuple(ids), owner):
            path = self._path(tuple(ids), owner)
        known = self._last_checkpoint([(node.start + count, node.blocks) for node, count in path])
        for node, _ in path[: known // block]:
            self._touch(node)
            blocks = self._kept(node, known)
            self._count_use(blocks)
            cache.attach(blocks, node.ids)
            self._touch_window(node)
        if known % block:
            self._attach_part(cache, path[known // block][0], known % block)
        if self._pool.windows:
            ends = sum(count for _, count in path), len(ids) + 1
            cache.checkpoints = frozenset(end // block * block for end in ends if end // block * block > cache.length)

    def _path(self, ids: tuple[int, ...], owner: str) -> list[tuple[_Node, int]]:
        """Return the nodes that have the longest known beginning of some tokens, and how many tokens each has of it."""
        node, path, block = self._roots.get(owner), list[tuple[_Node, int]](), self._pool.block
        while node is not None:
            start = len(path) * block
            node, count = node.child(ids[start : start + block])
            if node is not None:
                path.append((node, count))
            if count < block:
                break
        return path

    def _last_checkpoint(self, path: Sequence[tuple[int, Collection[int]]]) -> int:
        """Return the most tokens of a path before which every window is there.

        Of each node of the path it has how many tokens there are to its end, and the groups of which it has a block.
        """
        for number in reversed(range(len(path))):
            length = path[number][0]
            if all(
                group in groups
                for group in self._pool.windows
                for _, groups in path[self._pool.first_visible(group, length) : number + 1]
            ):
                return length
        return 0

    def _read_files(
        self, files: PrefixFiles, path: Sequence[tuple[_Node, int]], ids: tuple[int, ...], owner: str
    ) -> bool:
        """Read the nodes of files that go on from a path where that lets a sequence begin later; return whether any."""
        block = self._pool.block
        whole = [node for node, count in path if count == block]
        ends: list[tuple[int, Collection[int]]] = [(node.start + block, node.blocks) for node in whole]
        known = self._last_checkpoint([(node.start + count, node.blocks) for node, count in path])
        more, parent = list[tuple[PrefixFile, list[int]]](), whole[-1].key if whole else files.root(owner)
        while len(ids) > (start := len(ends) * block):
            part = ids[start : start + block]
            file, found, groups = _nearest(files, parent, part)
            if file is None or not (count := common_length(found, part)):
                break
            more.append((file, found))
            ends.append((start + count, groups))
            parent = file.key
            if count < block:
                break
        length = self._last_checkpoint(ends)
        if length <= known:
            return False
        more = more[: -(-length // block) - len(whole)]
        files.touch([file for file, _ in more])
        return self._add_files(files, whole, more, owner, length)

    def _add_files(
        self,
        files: Source,
        path: Sequence[_Node],
        more: Sequence[tuple[PrefixFile, list[int]]],
        owner: str,
        length: int,
    ) -> bool:
        """Add nodes of files after a path, with the windows that a sequence of so many tokens keeps; return whether
        any was added. Where there is no room, or a file is damaged, those after it are left out."""
        node = path[-1] if path else self._root(owner)
        in_use = [dict(one.blocks) for one in path]  # taking a block must not free these
        for each in in_use:
            self._count_use(each)
        try:
            in_use += self._take_blocks(files, [file for file, _ in more], length)
            taken = in_use[len(path) :]
            with ThreadPoolExecutor(_READERS) as readers:  # most of the time goes to fresh memory
                whole = list(readers.map(partial(self._read_blocks, files), (file for file, _ in more), taken))
            for is_whole, blocks, (file, ids) in zip(whole, taken, more, strict=False):
                if not is_whole:
                    break
                node = self._add(node, file.start, tuple(ids), blocks)
                self._touch(node)
                node.gain = 1.0
                self._touch_window(node, [group for group in blocks if group in self._windows])
            return bool(whole) and whole[0]
        finally:
            for each in in_use:
                self._give_back(each)

    def _take_blocks(self, files: Source, more: Sequence[PrefixFile], length: int) -> list[dict[int, int]]:
        """Return a block of each group that a sequence of ``length`` tokens keeps of each file, as far as there is
        room."""
        taken: list[dict[int, int]] = []
        with contextlib.suppress(OutOfMemory):
            for file in more:
                number = file.start // self._pool.block
                taken.append({})
                for group in files.head(file)[1]:
                    if number >= self._pool.first_kept(group, length):
                        taken[-1][group] = self._pool.take(group)
            return taken
        self._give_back(taken.pop())
        return taken

    def _read_blocks(self, files: Source, file: PrefixFile, blocks: Mapping[int, int]) -> bool:
        """Read the blocks of a file; return whether they are whole."""
        members = self._pool.members
        buffers = {group: members[group].buffer(block) for group, block in blocks.items()}
        if not files.read(file, buffers):
            return False
        for group, block in blocks.items():
            members[group].store(block, buffers[group])
        return True

    def pin(self, ids: Sequence[int], owner: str) -> PinnedNodes:
        """Return the nodes with the longest known beginning of some tokens. Until they are unpinned, nothing is written
        to their blocks, nor are they freed: another thread may read them between and beside steps."""
        members, nodes, blocks = self._pool.members, list[NewFile](), list[dict[int, int]]()
        for node, count in self._path(tuple(ids), owner):
            values = {group: members[group].read(number) for group, number in node.blocks.items()}
            nodes.append(NewFile(b"", node.start, node.ids[:count], values))
            blocks.append(dict(node.blocks))
        for each in blocks:
            self._count_use(each)
        return PinnedNodes(nodes, blocks)

    def unpin(self, pinned: PinnedNodes) -> None:
        """Give back the blocks of nodes that were pinned."""
        for each in pinned.blocks:
            self._give_back(each)

    def restore(self, source: Source, nodes: Sequence[PrefixFile], owner: str) -> int:
        """Add nodes that follow each other, from the first on, as far as there is room; return with how many of their
        tokens a sequence can begin."""
        self.settle()
        parts = [source.head(node)[0] for node in nodes]
        ids = tuple(itertools.chain.from_iterable(parts))
        whole = [node for node, count in self._path(ids, owner) if count == self._pool.block]
        more = list(zip(nodes, parts, strict=True))[len(whole) :]
        self._add_files(source, whole, more, owner, len(ids))
        return self._last_checkpoint([(node.start + count, node.blocks) for node, count in self._path(ids, owner)])

    def erase(self, ids: Sequence[int], owner: str) -> int:
        """Free the nodes that have the first of some tokens, but those that others go on from or that are in use;
        return how many tokens they had."""
        self.settle_all()
        count = 0
        for node, _ in reversed(self._path(tuple(ids), owner)):
            if not self._is_free(node):
                break
            count += len(node.ids)
            self._free(node)
        return count

    def write_files(self, ids: Sequence[int], owner: str) -> None:
        """Have the nodes that have the first of some tokens written to files, if there are any files.

        A thread does it. Until it has ended, nothing is written to the blocks of these nodes, nor are they freed.
        """
        if self._files is None:
            return
        self.settle()
        new, keys, blocks = list[NewFile](), list[bytes](), list[dict[int, int]]()
        for node in self._nodes_to_write(self._files, ids, owner):
            assert node.parent is not None
            values = {group: self._pool.members[group].read(number) for group, number in node.blocks.items()}
            new.append(NewFile(node.parent.key, node.start, node.ids, values))
            keys.append(node.key)
            blocks.append(dict(node.blocks))
        if new:
            for each in blocks:
                self._count_use(each)
            self._writes.append(_Write(os.getpid(), in_background(partial(self._files.write, new)), keys, blocks))

    def _nodes_to_write(self, files: PrefixFiles, ids: Sequence[int], owner: str) -> Iterator[_Node]:
        """Yield the nodes with the first of some tokens that no file has, or one without some of their blocks."""
        writing = {key for write in self._writes for key in write.keys}
        for node, count in self._path(tuple(ids), owner):
            assert node.parent is not None
            if count == len(node.ids) and node.key not in writing:
                there = files.children(node.parent.key).get(node.key)
                if there is None or not node.blocks.keys() <= set(files.head(there)[1]):
                    yield node

    def settle(self, count: int = 0) -> None:
        """Give back the blocks of nodes that have been written; wait for the first ``count`` writes."""
        while self._writes:
            write, count = self._writes[0], count - 1
            if write.process == os.getpid():  # a fork has no thread that writes
                if count < 0 and not write.outcome.done:
                    return
                write.outcome.result()
            del self._writes[0]
            for blocks in write.blocks:
                self._give_back(blocks)
            if self._files is not None:
                self._files.forget_heads(write.keys)

    def settle_all(self) -> None:
        """Wait until everything has been written."""
        self.settle(len(self._writes))

    def _root(self, owner: str) -> _Node:
        """Return the root of an owner's tree, a new one where there is none."""
        if owner not in self._roots:
            self._roots[owner] = _Node(None, 0, (), {})
            if self._files is not None:
                self._roots[owner].key = self._files.root(owner)
        return self._roots[owner]

    def _kept(self, node: _Node, length: int) -> dict[int, int]:
        """Return the blocks of a node that a sequence of ``length`` tokens keeps."""
        number, pool = node.start // self._pool.block, self._pool
        return {group: block for group, block in node.blocks.items() if number >= pool.first_kept(group, length)}

    def _attach_part(self, cache: Cache, node: _Node, count: int) -> None:
        """Attach the first ``count`` tokens of a node: its own block if this continues it, else a copy.

        Where there is no room for a copy, its own block if nobody else uses it.
        """
        blocks: dict[int, int] | None = None
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

    def _copy(self, blocks: Mapping[int, int]) -> dict[int, int]:
        """Return a copy of the block of each group. Raises ``OutOfMemory``."""
        copies: dict[int, int] = {}
        try:
            for group, number in blocks.items():
                copies[group] = self._pool.take(group)
                self._pool.copy(group, number, copies[group])
        except OutOfMemory:
            self._give_back(copies)
            raise
        return copies

    def _count_use(self, blocks: Mapping[int, int]) -> None:
        for group, number in blocks.items():
            self._pool.members[group].share(number)

    def _give_back(self, blocks: Mapping[int, int]) -> None:
        for group, number in blocks.items():
            self._pool.members[group].give_back(number)

    def insert(self, cache: Cache, owner: str, length: int, checkpoint: bool) -> None:
        """Add the first ``length`` tokens of a cache to the tree, and with ``checkpoint`` the windows before it.

        The tree then uses the blocks that it did not have. A last block that is not whole must not be written to any
        more.
        """
        if not length:
            return
        node, path = self._root(owner), list[_Node]()
        for start in range(0, length, self._pool.block):
            part = tuple(cache.ids[start : min(start + self._pool.block, length)])
            found, count = node.child(part)
            if found is None or count < len(part):
                blocks = self._blocks(cache, start // self._pool.block)
                whole = {group: number for group, number in blocks.items() if group not in self._windows}
                found = self._add(node, start, part, whole)
            self._touch(found)
            path.append(found)
            node = found
        if checkpoint and self._windows:
            self._keep_windows(cache, path, length)

    @staticmethod
    def _blocks(cache: Cache, number: int) -> dict[int, int]:
        """Return a cache's block of that number of each group that has it."""
        found = ((group, blocks[number]) for group, blocks in enumerate(cache.blocks))
        return {group: block for group, block in found if block is not None}

    def _keep_windows(self, cache: Cache, path: Sequence[_Node], length: int) -> None:
        """Let the nodes of the first ``length`` tokens of a cache have the windows that it has before that."""
        pool, fresh, before = self._pool, list[tuple[_Node, dict[int, int]]](), 0
        for number, node in enumerate(path):
            if node.start + len(node.ids) > length:  # its block has tokens that this cache has not
                break
            blocks = self._blocks(cache, number)
            kept = {group for group in pool.windows if group in blocks and number >= pool.first_kept(group, length)}
            if new := {group: blocks[group] for group in kept if group not in node.blocks}:
                fresh.append((node, new))
            elif kept:
                self._touch_window(node)
            if not fresh and any(group in node.blocks for group in pool.windows):
                before = number + 1
        for node, new in fresh:
            self._count_use(new)
            node.blocks |= new
            node.gain = (length / pool.block - before) / len(fresh)
            self._touch_window(node, new)

    def _touch_window(self, node: _Node, new: Iterable[int] = ()) -> None:
        """Note a use of the windows of a node, which it has of the groups ``new`` since now."""
        value = max(node.window_value, self._freed_window + node.gain)
        for group in node.blocks if value != node.window_value else new:
            if group in self._windows:
                heapq.heappush(self._windows[group], (value, next(self._numbers), node))
        node.window_value = value

    def _add(self, parent: _Node, start: int, ids: tuple[int, ...], blocks: dict[int, int]) -> _Node:
        shorter, count = parent.child(ids)
        node = _Node(parent, start, ids, blocks)
        if self._files is not None:
            node.key = self._files.key(parent.key, ids)
        self._count_use(blocks)
        parent.children.setdefault(ids[0], []).append(node)
        if shorter is not None and count == len(shorter.ids) and self._is_free(shorter):
            self._free(shorter)  # the new node has all of its tokens
        return node

    def _reclaim(self, group: int) -> bool:
        """Free a block of a group, one that is being written if there is no other; return whether there was one."""
        while not (self._free_window(group) if group in self._windows else self.free_one()):
            if not self._writes:
                return False
            self.settle(1)
        return True

    def free_one(self) -> bool:
        """Free the least valuable leaf that no sequence uses, and return whether there was one."""
        node = self._pop(self._leaves, lambda node, value: value == node.value and not node.children, self._is_free)
        if node is None:
            return False
        self._freed_value = node.value
        self._free(node)
        return True

    def _free_window(self, group: int) -> bool:
        """Free the least valuable window that no sequence uses, and return whether there was one."""
        uses = self._pool.members[group].uses
        node = self._pop(
            self._windows[group],
            lambda node, value: value == node.window_value and group in node.blocks,
            lambda node: uses[node.blocks[group]] == 1,
        )
        if node is None:
            return False
        self._freed_window = node.window_value
        self._give_back({group: node.blocks.pop(group)})
        return True

    @staticmethod
    def _pop(
        heap: list[tuple[float, int, _Node]],
        is_current: Callable[[_Node, float], bool],
        is_free: Callable[[_Node], bool],
    ) -> _Node | None:
        """Take the first node off a heap that is free; skip entries of nodes that have changed since."""
        in_use = []
        try:
            while heap:
                entry = heapq.heappop(heap)
                value, _, node = entry
                if node.parent is None or not is_current(node, value):
                    continue
                if is_free(node):
                    return node
                in_use.append(entry)
            return None
        finally:
            for entry in in_use:
                heapq.heappush(heap, entry)

    def clear(self) -> None:
        """Free every block that no sequence uses."""
        self.settle_all()
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
        uses = (self._pool.members[group].uses[number] for group, number in node.blocks.items())
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


def _nearest(files: PrefixFiles, parent: bytes, ids: tuple[int, ...]) -> tuple[PrefixFile | None, list[int], list[int]]:
    """Return the file after a parent that has most of the leading tokens of ``ids``, with its tokens and groups."""
    children = files.children(parent)
    same = children.get(files.key(parent, ids))
    heads = [(file, *files.head(file)) for file in (children.values() if same is None else (same,))]
    return max(heads, key=lambda each: common_length(each[1], ids), default=(None, [], []))
