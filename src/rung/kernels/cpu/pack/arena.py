"""Memory for packed weights, in huge pages where the system has them.

With pages of 4 kB a processor misses its table of pages every 4 kB, and its prefetcher stops there: reading weights
once a token ran at 5.6 instead of 10 GB/s. Most weights are smaller than what one would ask huge pages for, so they
share large mappings.
"""

from __future__ import annotations

import mmap
import threading

import numpy as np
import numpy.typing as npt

from rung.kernels.cpu.pack.layouts import HUGE

Bytes = npt.NDArray[np.uint8]

_ARENA = 64 << 20
_LINE = 64

_lock = threading.Lock()


class _Arena:
    """A mapping that is handed out from its start; it lives as long as an array looks into it."""

    def __init__(self, size: int) -> None:
        mapped = mmap.mmap(-1, size + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            mapped.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(mapped, np.uint8)
        start = -whole.ctypes.data % HUGE
        self.free = whole[start : start + size]

    def take(self, size: int) -> Bytes | None:
        """The next bytes, or None when there are not so many."""
        rounded = -(-size // _LINE) * _LINE
        if rounded > self.free.size:
            return None
        taken, self.free = self.free[:size], self.free[rounded:]
        return taken


_current = _Arena(0)


def empty(size: int) -> Bytes:
    """That many zero bytes, uint8, at an address that 64 divides."""
    global _current
    if size > _ARENA // 4:
        own = _Arena(-(-size // HUGE) * HUGE).take(size)
        assert own is not None
        return own
    with _lock:
        taken = _current.take(size)
        if taken is None:
            _current = _Arena(_ARENA)
            taken = _current.take(size)
        assert taken is not None
        return taken
