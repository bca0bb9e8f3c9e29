"""NVIDIA's fat binaries: containers of cubins and PTX for several targets, one for each object file of a library.

The layout was measured with fatbinary 13.0 and 13.5 on all its targets and modes. All that a list of targets needs
stands in headers that are never compressed; the suffix of ``sm_90a`` is in the flags only.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from rung.binaries.images import CUBIN, LTO, PTX, Image
from rung.binaries.stream import Stream

#: The magic number 0xBA55ED50, version 1, a header of 16 bytes: no other has been seen. Eight bytes are found twice as
#: fast as four.
MAGIC = b"\x50\xed\x55\xba\x01\x00\x10\x00"
#: The above, bytes of all entries.
_HEADER = struct.Struct("<8sQ")
#: kind, version, bytes of this header, bytes of the payload, compressed bytes, offset of options, minor, major, target,
#: offset and length of a name, flags, nothing, bytes before compression (0: not compressed)
_ENTRY = struct.Struct("<HHIQIIHHIIIQQQ")
_KINDS = {1: PTX, 2: CUBIN, 8: LTO}
#: A cubin for a target from the first number on with at most so many bytes holds no kernel: nvcc writes one for every
#: source file. Between what ptxas 12.9 to 13.4 make of no kernel (at most 872, 2,168, 2,688) and of the smallest (at
#: least 1,864, 2,344, 4,840).
_EMPTY = ((100, 3000), (75, 2300), (0, 1800))
_SUFFIXES = ((1 << 20, "a"), (1 << 21, "f"))
_PREFIXES = {CUBIN: "sm_", PTX: "compute_", LTO: "lto_"}
#: A target is major and minor number in decimal: 75, 100. Larger ones are no targets.
_LARGEST_TARGET = 999
_LONGEST_ENTRY = 4096


@dataclass(frozen=True)
class Found:
    """Hold what a reader found: the images of one object, where to go on, and what is wrong, empty when nothing is."""

    images: tuple[Image, ...]
    end: int
    remark: str = ""
    empty: bool = False  # there is machine code in it, and no kernel


def read(stream: Stream, at: int) -> Found | None:
    """The container that begins at ``at``, None when the bytes there only look like one.

    A container whose sizes contradict each other or the file is read up to the contradiction.
    """
    head = stream.take(at, _HEADER.size + _ENTRY.size)
    if _entry(head[_HEADER.size :]) is None:
        return None
    total = _HEADER.unpack_from(head)[1]
    start, end = at + _HEADER.size, at + _HEADER.size + total
    images: list[Image] = []
    full: list[bool] = []
    while start + _ENTRY.size <= end:
        entry = _entry(stream.take(start, _ENTRY.size))
        if entry is None or start + entry.bytes > end:
            break
        images += entry.images
        full += [entry.full] if any(image.kind == CUBIN for image in entry.images) else []
        start += entry.bytes
    if end > stream.size:
        remark = f"the fatbin at byte {at:,} says that it ends at {end:,}, the file ends at {stream.size:,}"
    elif start + _ENTRY.size <= end or start == at + _HEADER.size:  # so small that its first entry lies beyond it
        remark = f"the fatbin at byte {at:,} contradicts itself at byte {start:,}: what follows there was not read"
    else:
        return Found(tuple(sorted(images)), end, empty=bool(full) and not any(full))
    return Found(tuple(sorted(images)), min(start, stream.size), remark)


@dataclass(frozen=True)
class _Entry:
    """``bytes`` with the payload; ``images``: one, or none of a kind that is not known; ``full``: it holds a kernel."""

    bytes: int
    images: tuple[Image, ...]
    full: bool


def _entry(data: bytes) -> _Entry | None:
    """The header of an entry, None when it is none."""
    if len(data) < _ENTRY.size:
        return None
    kind, _, length, size, _, _, minor, major, target, _, _, flags, _, plain = _ENTRY.unpack(data)
    if not _ENTRY.size <= length <= _LONGEST_ENTRY or target > _LARGEST_TARGET:
        return None
    images = (_image(_KINDS[kind], target, flags, f"{major}.{minor}"),) if kind in _KINDS else ()
    most = next(most for first, most in _EMPTY if target >= first)
    return _Entry(length + size, images, (plain or size) > most)


def _image(kind: str, target: int, flags: int, version: str) -> Image:
    suffix = next((letter for bit, letter in _SUFFIXES if flags & bit), "")
    return Image(kind, f"{_PREFIXES[kind]}{target}{suffix}", version if kind == PTX else "")
