"""Resident pages of mapped files, released: the file keeps their bytes and they are read again when used."""

from __future__ import annotations

import ctypes
import mmap


def release(mapped: mmap.mmap, first: int, end: int) -> None:
    """Release the whole pages within bytes [first, end) of a mapped file. Without ``madvise`` (Windows) do nothing."""
    first, end = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if end > first and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED, first, end - first)


def release_range(low: int, high: int) -> None:
    """Release the pages of a file's mapping that lies at the addresses [low, high). Linux only."""
    ctypes.CDLL(None).madvise(ctypes.c_void_p(low), ctypes.c_size_t(high - low), mmap.MADV_DONTNEED)
