"""Where the CUDA runtime's own fat binaries lie in an ELF file: its section table stands behind them."""

from __future__ import annotations

import struct

from rung.binaries.heads import Head

#: Names of the sections that the runtime registers from; fatbins elsewhere are data, which a program loads by hand.
_NAMES = (b".nv_fatbin", b"__nv_relfatbin")
#: The names of sections stand before the table, closer than this.
_BEFORE = 1 << 20
_SECTION = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, address, offset, size, link, info, alignment, entry size


class Table:
    """Keeps a file's section table and what stands shortly before it while the file goes by."""

    def __init__(self, head: Head | None) -> None:
        self._table = head.sections if head else (0, 0, 0)
        self._from = max(0, self._table[0] - _BEFORE)
        self._to = self._table[0] + self._table[1] * _SECTION.size
        self._start = 0
        self._kept = b""

    def __call__(self, offset: int, piece: bytes) -> None:
        if offset + len(piece) <= self._from or offset >= self._to:
            return
        if self._start + len(self._kept) != offset:
            self._start, self._kept = offset, b""
        self._kept += piece

    def fatbins(self) -> list[tuple[int, int]] | None:
        """The sections of the runtime's fat binaries, as (from, to); None when there is no table or it is not whole."""
        at, count, names_in = self._table
        table = self._at(at, count * _SECTION.size)
        if names_in >= count or len(table) < count * _SECTION.size:
            return None
        sections = list(_SECTION.iter_unpack(table))
        names = self._at(sections[names_in][4], sections[names_in][5])
        if not names:
            return None
        found = (section for section in sections if names[section[0] :].split(b"\0", 1)[0] in _NAMES)
        return [(section[4], section[4] + section[5]) for section in found]

    def _at(self, at: int, count: int) -> bytes:
        return self._kept[at - self._start : at - self._start + count] if at >= self._start else b""
