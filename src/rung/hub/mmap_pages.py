"""Pages of mapped files that count as this process's memory."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from pathlib import Path

from torch import Tensor

from rung.core.pages import release_range

_MAPS = Path("/proc/self/maps")
#: The same, with what is resident of each and what of that was changed: slower to read.
_USED = Path("/proc/self/smaps")


def give_back(tensors: Iterable[Tensor]) -> None:
    """Let go of the pages of the mapped files that tensors look into, which keep them; of other memory none.

    All of such a mapping goes, with what else was read of it. For files that nobody has changed anything of since they
    were mapped: a change would be lost.
    """
    addresses = sorted(each.data_ptr() for each in tensors if each.device.type == "cpu" and each.nbytes)
    if not addresses:
        return
    for low, high in _mapped():
        at = bisect.bisect_left(addresses, low)
        if at < len(addresses) and addresses[at] < high:
            release_range(low, high)


def give_back_files(files: Iterable[Path]) -> None:
    """Let go of the pages of these files, wherever they are mapped and nobody has changed anything."""
    resolved, span = {str(file.resolve()) for file in files}, None
    for line in _USED.read_text().splitlines() if _USED.exists() else ():
        first, *rest = line.split(maxsplit=5)
        if not first.endswith(":"):
            span = first if rest[-1] in resolved else None
        elif span and first == "Anonymous:" and rest[0] == "0":
            release_range(*_range(span))


def _mapped() -> Iterator[tuple[int, int]]:
    """First place, and the place after the last, of each mapping of a file."""
    for line in _MAPS.read_text().splitlines() if _MAPS.exists() else ():
        span, _, _, _, inode, *_ = line.split(maxsplit=5)
        if inode != "0":
            yield _range(span)


def _range(span: str) -> tuple[int, int]:
    low, high = (int(each, 16) for each in span.split("-"))
    return low, high
