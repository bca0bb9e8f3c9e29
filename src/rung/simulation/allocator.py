"""The memory of a card, divided as torch's caching allocator divides it (``c10/cuda/CUDACachingAllocator.cpp``).

Requests are rounded up to 512 bytes. Up to 1 MB they come out of segments of 2 MB, below 10 MB out of segments of
20 MB, above that out of segments of their own, a multiple of 2 MB. The smallest free piece that is large enough is
taken, and split when enough of it is left; neighbors that are free grow together. Segments stay reserved when they
are free, until ``empty_cache`` or until the memory runs out.

What was given back waits under its size for the next request of that size, as most programs ask for the same again
and again. It grows together with its neighbors only before a new segment would be reserved: torch does so at once,
so that there, and not here, a smaller piece may be cut out of it meanwhile.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field

MB = 2**20
_ROUND = 512
_SMALL, _SMALL_SEGMENT = MB, 2 * MB
_LARGE, _LARGE_SEGMENT = 10 * MB, 20 * MB


class Full(Exception):
    """No segment can be had for ``size`` bytes."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


@dataclass(eq=False, slots=True)
class Block:
    """A piece of a segment; ``before`` and ``after`` are its neighbors there. ``requested`` bytes are used."""

    size: int
    address: int
    small: bool
    requested: int = 0
    free: bool = False
    before: Block | None = field(default=None, repr=False)
    after: Block | None = field(default=None, repr=False)


class _Free:
    """Free pieces in the order in which they are taken: the smallest first, of one size that at the lowest address."""

    def __init__(self) -> None:
        self._order: list[tuple[int, int]] = []
        self._blocks: dict[int, Block] = {}

    def put(self, block: Block) -> None:
        insort(self._order, (block.size, block.address))
        self._blocks[block.address] = block

    def take(self, size: int) -> Block | None:
        """The first of at least that many bytes."""
        at = bisect_left(self._order, (size, 0))
        return self._blocks.pop(self._order.pop(at)[1]) if at < len(self._order) else None

    def drop(self, block: Block) -> None:
        del self._order[bisect_left(self._order, (block.size, block.address))]
        del self._blocks[block.address]

    def whole(self) -> list[Block]:
        """Return the blocks that are a whole segment."""
        return [block for block in self._blocks.values() if block.before is None and block.after is None]


def _chain(first: Block) -> list[Block]:
    found = [first]
    while found[-1].after is not None:
        found.append(found[-1].after)
    return found


class Allocator:
    """``capacity`` bytes; every number is in bytes. Safe in threads; ``release`` may be called by a finaliser.

    ``full`` makes the exception for a request of so many bytes that cannot be met.
    """

    def __init__(self, capacity: int, full: Callable[[int], Exception] = Full) -> None:
        self.capacity = capacity
        self._full = full
        self.counts: Counter[str] = Counter()
        self.allocated = self.reserved = self.requested = self.active = 0
        self._lock = threading.RLock()
        self._free = {True: _Free(), False: _Free()}  # by Block.small
        self._released: deque[Block] = deque()  # by finalisers, which may run in the middle of anything
        #: Gives a block back; counted at the next question or request.
        self.release: Callable[[Block], None] = self._released.append
        self._waiting: defaultdict[int, list[Block]] = defaultdict(list)  # by size
        self._segments: dict[int, Block] = {}  # the first block of each by its address, which stays the first
        self._end = 0  # of the addresses that were given out
        self._peaks = self._now()

    def allocate(self, size: int) -> Block:
        """A block for ``size`` bytes; raises ``Full``. Nothing is taken for 0 bytes."""
        with self._lock:
            if self._released:
                self._drain()
            if not size:
                return Block(0, 0, True)
            rounded = -(-size // _ROUND) * _ROUND
            waiting = self._waiting[rounded]
            block = waiting.pop() if waiting else self._cut(rounded)
            block.requested = size
            self.allocated += block.size
            self.requested += size
            self.active += 1
            self.counts["allocation"] += 1
            peaks = self._peaks
            if self.allocated > peaks["allocated"]:
                peaks["allocated"] = self.allocated
            if self.requested > peaks["requested"]:
                peaks["requested"] = self.requested
            if self.active > peaks["active"]:
                peaks["active"] = self.active
            return block

    def empty_cache(self) -> None:
        """Gives back every segment in which nothing is held."""
        with self._lock:
            self._drain()
            self._merge()
            for pool in self._free.values():
                for block in pool.whole():
                    pool.drop(block)
                    del self._segments[block.address]
                    self.reserved -= block.size

    def stats(self) -> dict[str, int]:
        """``allocated``, ``reserved``, ``requested`` (bytes) and ``active`` (blocks) now, and ``peak_`` of each."""
        with self._lock:
            self._drain()
            return self._now() | {f"peak_{name}": value for name, value in self._peaks.items()}

    def segments(self) -> list[list[Block]]:
        """The blocks of each reserved segment in order."""
        with self._lock:
            self._drain()
            return [_chain(first) for first in self._segments.values()]

    def reset_peaks(self) -> None:
        """Peaks start again at what is held now."""
        with self._lock:
            self._drain()
            self._peaks = self._now()

    def _now(self) -> dict[str, int]:
        return {
            "allocated": self.allocated,
            "reserved": self.reserved,
            "requested": self.requested,
            "active": self.active,
        }

    def _drain(self) -> None:
        """Counts what was given back and lets it wait."""
        while self._released:
            block = self._released.popleft()
            if block.requested:
                self.allocated -= block.size
                self.requested -= block.requested
                self.active -= 1
                self.counts["free"] += 1
                block.requested = 0
                self._waiting[block.size].append(block)

    def _merge(self) -> None:
        """Frees what waits."""
        for blocks in self._waiting.values():
            for block in blocks:
                block.free = True
                self._free[block.small].put(self._merged(block))
            blocks.clear()

    def _cut(self, size: int) -> Block:
        """A block of that size out of free ones or a new segment."""
        free = self._free[size <= _SMALL]
        block = free.take(size)
        if block is None:
            self._merge()
            block = free.take(size) or self._segment(size)
        if block.size != size:
            self._split(block, size)
        block.free = False
        return block

    def _merged(self, block: Block) -> Block:
        """The block grown together with the neighbors that are free."""
        before, after = block.before, block.after
        if after is not None and after.free:
            self._free[block.small].drop(after)
            self._join(block, after)
        if before is not None and before.free:
            self._free[block.small].drop(before)
            self._join(before, block)
            return before
        return block

    @staticmethod
    def _join(block: Block, after: Block) -> None:
        block.size += after.size
        block.after = after.after
        if block.after is not None:
            block.after.before = block

    def _segment(self, size: int) -> Block:
        small = size <= _SMALL
        whole = _SMALL_SEGMENT if small else _LARGE_SEGMENT if size < _LARGE else -(-size // (2 * MB)) * 2 * MB
        if self.reserved + whole > self.capacity:
            self.counts["retry"] += 1
            self.empty_cache()
        if self.reserved + whole > self.capacity:
            self.counts["out_of_memory"] += 1
            raise self._full(size)
        self.reserved += whole
        self._peaks["reserved"] = max(self._peaks["reserved"], self.reserved)
        self._end += whole
        found = self._segments[self._end - whole] = Block(whole, self._end - whole, small)
        return found

    def _split(self, block: Block, size: int) -> None:
        """Splits off what is left of the block: from 512 bytes of a small one, above 1 MB of a large one."""
        left = block.size - size
        if left < _ROUND or (not block.small and left <= _SMALL):
            return
        rest = Block(left, block.address + size, block.small, free=True, before=block, after=block.after)
        if block.after is not None:
            block.after.before = rest
        block.size, block.after = size, rest
        self._free[block.small].put(rest)
