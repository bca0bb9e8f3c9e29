"""Pages of mapped files that count as this process's memory."""

from __future__ import annotations

import bisect
import ctypes
import mmap
from collections.abc import Iterable
from pathlib import Path

from torch import Tensor

_MAPS = Path("/proc/self/maps")


def give_back(tensors: Iterable[Tensor]) -> None:
    """Lets go of the pages of the mapped files that tensors look into, which keep them; of other memory none.

    All of such a mapping goes, with what else was read of it. For files that nobody has changed anything of since they
    were mapped: a change would be lost.
    """
    places = sorted(each.data_ptr() for each in tensors if each.device.type == "cpu" and each.nbytes)
    if not places or not _MAPS.exists():
        return
    advise = ctypes.CDLL(None).madvise
    for line in _MAPS.read_text().splitlines():
        place, _, _, _, inode, *_ = line.split(maxsplit=5)
        low, high = (int(each, 16) for each in place.split("-"))
        at = bisect.bisect_left(places, low)
        if inode != "0" and at < len(places) and places[at] < high:
            advise(ctypes.c_void_p(low), ctypes.c_size_t(high - low), mmap.MADV_DONTNEED)
