"""Pages of mapped files that count as this process's memory."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

from torch import Tensor

_MAPS = Path("/proc/self/maps")


def give_back(values: Tensor) -> None:
    """Lets go of the pages of a tensor that looks into a mapped file, which keeps them; of another one nothing.

    For values that nobody has changed since they were mapped: a change would be lost.
    """
    if values.device.type != "cpu" or not values.is_contiguous() or not _MAPS.exists():
        return
    first, last = values.data_ptr(), values.data_ptr() + values.nbytes
    for line in _MAPS.read_text().splitlines():
        place, _, _, _, inode, *_ = line.split(maxsplit=5)
        low, high = (int(each, 16) for each in place.split("-"))
        if low <= first and last <= high:
            begin = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE
            size = (last - begin) // mmap.PAGESIZE * mmap.PAGESIZE
            if inode != "0" and size > 0:
                ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(size), mmap.MADV_DONTNEED)
            return
