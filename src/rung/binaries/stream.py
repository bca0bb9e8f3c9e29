"""A file read once, forwards, in pieces: a member of an archive is inflated as it is read and never kept."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import BinaryIO

#: Bytes read at a time.
CHUNK = 1 << 20

Watch = Callable[[int, bytes], None]


def _nobody(offset: int, piece: bytes) -> None:
    """Looks at nothing."""


class Stream:
    """The first ``size`` bytes of ``file``, of which ``begun`` are read; what lies behind the place last asked for is
    forgotten.

    ``watch`` is called with the offset and the bytes of every piece that is kept; what is skipped is not read at all
    when ``seeks`` (a plain file) and not kept otherwise.
    """

    def __init__(self, file: BinaryIO, size: int, *, seeks: bool, begun: bytes = b"", watch: Watch = _nobody) -> None:
        self.size = size
        self._begun = begun[:size]
        self._watch = watch
        self._file = file
        self._seeks = seeks
        self._base = 0  # where what is kept begins
        self._kept = b""
        self._ended = False
        self._next: dict[bytes, int] = {}  # where the markers stand in what is kept; past its end: nowhere

    def take(self, at: int, count: int) -> bytes:
        """``count`` bytes (a few MB at most) from ``at`` on, fewer where the file ends; ``at`` never goes back."""
        self._reach(at, count)
        return self._kept[at - self._base : at - self._base + count]

    def find(self, markers: Iterable[bytes], at: int) -> tuple[int, bytes] | None:
        """Where the first of the markers stands from ``at`` on, and which it is; None when there is no more."""
        needles = tuple(markers)
        longest = max(len(marker) for marker in needles)
        while True:
            self._reach(at, CHUNK)
            end = self._base + len(self._kept)
            found = min((self._position(marker, at, end), marker) for marker in needles)
            if found[0] < end:
                return found
            if self._ended:
                return None
            at = max(at, end - longest + 1)

    def _position(self, marker: bytes, at: int, end: int) -> int:
        known = self._next.get(marker, -1)
        if known < at:
            position = self._kept.find(marker, max(0, at - self._base))
            known = self._next[marker] = end if position < 0 else self._base + position
        return known

    def _reach(self, at: int, count: int) -> None:
        """Makes sure that ``count`` bytes from ``at`` on are kept, or all that there are."""
        while self._base + len(self._kept) < at + count and not self._ended:
            end = self._base + len(self._kept)
            self._kept = self._kept[at - self._base :] if at < end else b""
            self._base = at
            if at > end:
                self._skip(min(at, self.size) - end)
            self._more()

    def _more(self) -> None:
        end = self._base + len(self._kept)
        piece = self._begun or self._file.read(max(0, min(CHUNK, self.size - end)))
        self._begun = b""
        self._next.clear()
        self._ended = not piece
        if piece:
            self._watch(end, piece)
            self._kept += piece

    def _skip(self, count: int) -> None:
        if self._seeks and count > 0:
            self._file.seek(count, 1)
            return
        while count > 0 and (piece := self._file.read(min(count, CHUNK))):
            count -= len(piece)
