"""The memory of a simulated card, divided as torch's caching allocator divides it.

Sizes and rules are those of ``c10/cuda/CUDACachingAllocator.cpp``: requests are rounded to 512 bytes; up to 1 MB they
share segments of 2 MB, up to 10 MB segments of 20 MB, above that a segment is the request rounded to 2 MB. A block goes
to the smallest free one that holds it; what is left over is split off; neighbours that are free grow together. Segments
stay reserved when they are free, until ``empty_cache`` or until the memory runs out.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
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


@dataclass(eq=False)
class Block:
    """A piece of a segment; ``before`` and ``after`` are its neighbours there. ``asked`` is what was requested."""

    size: int
    small: bool
    asked: int = 0
    free: bool = False
    before: Block | None = field(default=None, repr=False)
    after: Block | None = field(default=None, repr=False)


class Allocator:
    """``capacity`` bytes; every number is in bytes. Safe in threads; ``release`` may be called by a finaliser."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.counts: Counter[str] = Counter()
        self._lock = threading.RLock()
        self._free: set[Block] = set()
        self._released: deque[Block] = deque()  # by finalisers, which may run in the middle of anything
        self._stats = dict.fromkeys(("allocated", "reserved", "asked", "active"), 0)
        self._peaks = dict(self._stats)

    def allocate(self, size: int) -> Block:
        """A block for ``size`` bytes; raises ``Full``. Nothing is taken for 0 bytes."""
        with self._lock:
            self._drain()
            if not size:
                return Block(0, True)
            rounded = -(-size // _ROUND) * _ROUND
            block = self._fitting(rounded) or self._segment(rounded)
            self._split(block, rounded)
            block.asked, block.free = size, False
            self.counts["allocation"] += 1
            self._count(block.size, size, 1)
            return block

    def release(self, block: Block) -> None:
        """Gives a block back; counted at the next question or request."""
        self._released.append(block)

    def empty_cache(self) -> None:
        """Gives back every segment in which nothing is held."""
        with self._lock:
            self._drain()
            for block in [b for b in self._free if b.before is None and b.after is None]:
                self._free.discard(block)
                self._count(0, 0, 0, -block.size)

    def stats(self) -> dict[str, int]:
        """``allocated``, ``reserved``, ``asked`` (bytes) and ``active`` (blocks) now, and ``peak_`` of each."""
        with self._lock:
            self._drain()
            return self._stats | {f"peak_{name}": value for name, value in self._peaks.items()}

    def reset_peaks(self) -> None:
        """Peaks start again at what is held now."""
        with self._lock:
            self._drain()
            self._peaks = dict(self._stats)

    def _count(self, allocated: int, asked: int, active: int, reserved: int = 0) -> None:
        stats, peaks = self._stats, self._peaks
        stats["allocated"] += allocated
        stats["asked"] += asked
        stats["active"] += active
        stats["reserved"] += reserved
        if allocated > 0 or reserved > 0:
            for name, value in stats.items():
                if value > peaks[name]:
                    peaks[name] = value

    def _drain(self) -> None:
        while self._released:
            block = self._released.popleft()
            if not block.size or block.free:
                continue
            self._count(-block.size, -block.asked, -1)
            self.counts["free"] += 1
            block.free, block.asked = True, 0
            self._free.add(self._merged(block))

    def _merged(self, block: Block) -> Block:
        """The block grown together with the neighbours that are free."""
        before, after = block.before, block.after
        if after is not None and after.free:
            self._free.discard(after)
            block.size += after.size
            block.after = after.after
            if block.after is not None:
                block.after.before = block
        if before is not None and before.free:
            self._free.discard(before)
            before.size += block.size
            before.after = block.after
            if before.after is not None:
                before.after.before = before
            return before
        return block

    def _fitting(self, size: int) -> Block | None:
        small = size <= _SMALL
        found = min(
            (b for b in self._free if b.small is small and b.size >= size), key=lambda block: block.size, default=None
        )
        if found is not None:
            self._free.discard(found)
        return found

    def _segment(self, size: int) -> Block:
        small = size <= _SMALL
        whole = _SMALL_SEGMENT if small else _LARGE_SEGMENT if size < _LARGE else -(-size // (2 * MB)) * 2 * MB
        if self._stats["reserved"] + whole > self.capacity:
            self.counts["retry"] += 1
            self.empty_cache()
        if self._stats["reserved"] + whole > self.capacity:
            self.counts["out_of_memory"] += 1
            raise Full(size)
        self._count(0, 0, 0, whole)
        return Block(whole, small)

    def _split(self, block: Block, size: int) -> None:
        """Splits off what is left of the block: from 512 bytes of a small one, above 1 MB of a large one."""
        left = block.size - size
        if left < _ROUND or (not block.small and left <= _SMALL):
            return
        rest = Block(left, block.small, free=True, before=block, after=block.after)
        if block.after is not None:
            block.after.before = rest
        block.size, block.after = size, rest
        self._free.add(rest)
