"""Resident pages of mapped files, released: the file keeps their bytes and they are read again when used."""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path

#: ``MADV_POPULATE_WRITE`` (man 2 madvise), which Python does not name.
_POPULATE_WRITE = 23
_HUGE = "sys/kernel/mm/transparent_hugepage/hpage_pmd_size"


def release(mapped: mmap.mmap, first: int, end: int) -> None:
    """Release the whole pages within bytes [first, end) of a mapped file. Without ``madvise`` (Windows) do nothing."""
    first, end = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if end > first and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED, first, end - first)


def release_range(low: int, high: int) -> None:
    """Release the pages of a file's mapping that lies at the addresses [low, high). Linux only."""
    ctypes.CDLL(None).madvise(ctypes.c_void_p(low), ctypes.c_size_t(high - low), mmap.MADV_DONTNEED)


def populate(low: int, high: int) -> None:
    """Have the pages of memory at the addresses [low, high) be there before they are written to, and change no byte.

    A page that is touched first takes 10 to 12 us here for 4 kB. Linux from 5.14 on; elsewhere do nothing.
    """
    if sys.platform == "linux":
        low = -(-low // mmap.PAGESIZE) * mmap.PAGESIZE
        size = ctypes.c_size_t(max(high // mmap.PAGESIZE * mmap.PAGESIZE - low, 0))
        ctypes.CDLL(None).madvise(ctypes.c_void_p(low), size, _POPULATE_WRITE)


def huge_advice(most: int, root: Path = Path("/")) -> int | None:
    """Return the advice for a mapping whose last huge page may be used in part: huge pages of up to ``most`` bytes.

    They have 2 MB where pages have 4 kB; with pages of 16 kB (Raspberry Pi 5, Asahi) 32 MB, with 64 kB (servers with
    Arm) 512 MB, which the system would clear and hold for a few weights. None where it has no such advice.
    """
    try:
        size = int((root / _HUGE).read_text(encoding="ascii"))
    except (OSError, ValueError):
        size = most  # the system does not say
    return getattr(mmap, "MADV_HUGEPAGE" if size <= most else "MADV_NOHUGEPAGE", None)
