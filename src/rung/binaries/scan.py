"""Read one file once: its device code by the marks that it begins with, its CPU code by headers and instructions."""

from __future__ import annotations

import math
import re
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import BinaryIO

from rung.binaries import containers, heads
from rung.binaries.containers import Found
from rung.binaries.images import CODE_OBJECT, IN_FATBINS, PTX, CpuCode, Image, Library, Object
from rung.binaries.stream import Stream

#: Byte sequences that show a set, newest last: moves and broadcasts of whole registers, as Intel's manual encodes them.
_SIGNS: dict[str, tuple[bytes, ...]] = {
    "avx": (b"\xc5\xf8\x77",),  # vzeroupper, at the end of every function that used ymm registers
    "avx2": (b"\xc4\xe3\x7d\x39", b"\xc4\xe3\xfd\x00", b"\xc4\xe2\x7d\x58"),  # vextracti128, vpermq, vpbroadcastd
    "avx512f": (  # vmovups, vmovupd/vmovdqa64 and vmovdqu64 of zmm, the first and last of ymm16 and up
        b"\x62\xf1\x7c\x48",
        b"\x62\xf1\xfd\x48",
        b"\x62\xf1\xfe\x48",
        b"\x62\xe1\x7c\x28",
        b"\x62\xe1\xfe\x28",
    ),
}
#: More code than this is looked at in evenly spread pieces.
_BUDGET = 64 << 20
#: A set counts when its sequences occur this often beyond chance: twice in a little code is chance.
_FEWEST, _BEYOND, _SPREAD = 1.5, 4, 5


class Watch:
    """Looks at the pieces of a file as they go by; its code lies at ``code``, as (from, to)."""

    def __init__(self, code: Sequence[tuple[int, int]]) -> None:
        self._code = code
        self._counts: Counter[str] = Counter()
        self._pieces = 0
        self._every = max(1, -(-sum(end - start for start, end in code) // _BUDGET))
        self.looked_at = 0

    def __call__(self, offset: int, piece: bytes) -> None:
        for start, end in self._code:
            part = piece[max(0, start - offset) : max(0, end - offset)]
            if part:
                self._pieces += 1
                if self._pieces % self._every == 0:
                    self._look(part)

    def _look(self, part: bytes) -> None:
        self.looked_at += len(part)
        for name, signs in _SIGNS.items():
            self._counts[name] += sum(part.count(sign) for sign in signs)

    def holds(self) -> tuple[str, ...]:
        """Return the sets that were found."""
        return tuple(name for name, signs in _SIGNS.items() if self._counts[name] >= self._threshold(signs))

    def _threshold(self, signs: Sequence[bytes]) -> float:
        by_chance = self.looked_at * sum(256.0 ** -len(sign) for sign in signs)
        return _FEWEST + _BEYOND * by_chance + _SPREAD * math.sqrt(by_chance)


_READERS: Mapping[bytes, tuple[str, Callable[[Stream, int], Found | None]]] = {
    containers.FATBIN_MAGIC: ("fatbin", containers.read_fatbin),
    containers.PLAIN: ("bundle", containers.read_bundle),
    containers.COMPRESSED: ("bundle", containers.read_compressed),
    containers.ELF_MAGIC: ("alone", containers.read_elf),
}
#: Kinds of files that begin with their device code.
FORMATS = {"fatbin": "fatbin", "bundle": "offload bundle", "alone": "device code"}
_CONTAINERS = {
    containers.FATBIN_MAGIC: "a fatbin",
    containers.PLAIN: "an offload bundle",
    containers.COMPRESSED: "a compressed offload bundle",
}
_MOST_REMARKS = 8
#: More different objects than any library has: the file was made to fill the memory.
_MOST_OBJECTS = 10_000
_PTX = re.compile(rb"^[ \t]*\.version[ \t]+(\d\.\d)[ \t]*\r?\n[ \t]*\.target[ \t]+sm_(\d{2,3}[af]?)", re.MULTILINE)
#: Files beside ROCm's libraries that hold kernels in formats of their own: only their names say for which target.
_NAMED = re.compile(r"(gfx[0-9a-f]{3,5})(?:[^/]*)\.(?:dat|kdb|co|hsaco|aks2|model)$")


def begun(head: bytes) -> str:
    """Return the container that a file of device code begins with; empty where it is none that is known."""
    return next((what for mark, what in _CONTAINERS.items() if head.startswith(mark)), "")


def known(head: bytes) -> bool:
    """Return whether a file that begins so is worth reading: a library, a program, or device code by itself."""
    return head.startswith(tuple(_READERS)) or heads.read(head) is not None or _PTX.search(head) is not None


def scan(name: str, file: BinaryIO, size: int, first: bytes, *, seeks: bool) -> Library:
    """Read the contents of a file of that size, of which ``first`` has been read. Broken parts become remarks.

    Raises nothing but what reading the file raises.
    """
    head = heads.read(first)
    code = Watch(head.code if head and head.machine == "x86_64" else ())
    table = heads.Table(head)

    def watch(offset: int, piece: bytes) -> None:
        code(offset, piece)
        table(offset, piece)

    stream = Stream(file, size, seeks=seeks, begun=first, watch=watch)
    positions, remarks = _walk(stream)
    registered = table.fatbins()
    found: Counter[tuple[str, tuple[Image, ...]]] = Counter()
    for (where, images), offsets in positions.items():
        outside = sum(not _within(offset, registered) for offset in offsets) if where in IN_FATBINS else 0
        found.update({(where, images): len(offsets) - outside, ("data", images): outside})
    if not positions:
        found.update(_without_marks(name, first))
    if head and head.end > size:
        remarks.insert(0, f"it is cut off: {head.end:,} bytes by its own account, {size:,} are there")
    return Library(
        name=name,
        size=size,
        format=head.format if head else _format(first, found),
        objects=tuple(sorted(Object(where, images, count) for (where, images), count in found.items() if count)),
        cpu=_cpu(head, code),
        remarks=tuple(remarks),
    )


def _walk(stream: Stream) -> tuple[dict[tuple[str, tuple[Image, ...]], array[int]], list[str]]:
    """Where the objects lie, by kind and images, and what is wrong with them."""
    positions: dict[tuple[str, tuple[Image, ...]], array[int]] = {}
    remarks: list[str] = []
    at = broken = 0
    while (hit := stream.find(_READERS, at)) and len(positions) < _MOST_OBJECTS:
        where, reader = _READERS[hit[1]]
        read = reader(stream, hit[0])
        at = max(read.end, hit[0] + 1) if read else hit[0] + 1
        if read and read.images:
            where = "empty" if read.empty else where
            positions.setdefault((where, read.images), array("Q")).append(hit[0])
        if read and read.remark:
            broken += 1
            remarks += [read.remark] if broken <= _MOST_REMARKS else []
    if broken > _MOST_REMARKS:
        remarks.append(f"and {broken - _MOST_REMARKS:,} more of the kind")
    if len(positions) >= _MOST_OBJECTS:
        remarks.append(f"it holds more than {_MOST_OBJECTS:,} different objects: the rest was not read")
    return positions, remarks


def _within(offset: int, ranges: list[tuple[int, int]] | None) -> bool:
    return ranges is None or any(start <= offset < end for start, end in ranges)


def _without_marks(name: str, first: bytes) -> list[tuple[str, tuple[Image, ...]]]:
    """PTX as text, or a kernel file whose name alone says what it is for."""
    if text := _PTX.search(first):
        return [("alone", (Image(PTX, f"compute_{text[2].decode()}", text[1].decode()),))]
    if target := _NAMED.search(name):
        return [("name", (Image(CODE_OBJECT, target[1]),))]
    return []


def _format(first: bytes, found: Counter[tuple[str, tuple[Image, ...]]]) -> str:
    for marker, (where, _) in _READERS.items():
        if first.startswith(marker) and found:
            return FORMATS[where]
    return "device code" if found else ""


def _cpu(head: heads.Head | None, watch: Watch) -> CpuCode | None:
    if head is None or not head.machine or head.machine.startswith("machine"):
        return None
    size = sum(end - start for start, end in head.code)
    return CpuCode(head.machine, head.needs, watch.holds(), watch.looked_at, size)
