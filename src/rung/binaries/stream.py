"""Read a file once, forwards, in pieces: compressed members are unpacked as they are read and never kept."""

from __future__ import annotations

import ctypes
import functools
import sys
import zlib
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


ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_LIBRARIES = ("libzstd.so.1", "libzstd.1.dylib", "zstd.dll", "libzstd.dll")


class CannotUnpack(Exception):
    """Compressed data that is broken, or that nothing here can decompress; the message says which."""


def deflate(data: bytes, count: int) -> bytes:
    """At most ``count`` first bytes of zlib's format. Raises ``CannotUnpack``."""
    try:
        return zlib.decompressobj().decompress(data, count)
    except zlib.error as error:
        raise CannotUnpack(f"its zlib data is broken: {error}") from error


def zstd(data: bytes, count: int) -> bytes:
    """At most ``count`` first bytes of a zstd frame; ``data`` may be its beginning only. Raises ``CannotUnpack``."""
    return _zstd()(data, count)


@functools.cache
def _zstd() -> Callable[[bytes, int], bytes]:
    if sys.version_info >= (3, 14):
        return _by_python
    for name in _LIBRARIES:
        try:
            return functools.partial(_by_library, ctypes.CDLL(name))
        except OSError:
            continue
    return _by_nobody


def _by_python(data: bytes, count: int) -> bytes:
    from compression import zstd as module

    try:
        return bytes(module.ZstdDecompressor().decompress(data, count))
    except module.ZstdError as error:
        raise CannotUnpack(f"its zstd data is broken: {error}") from error


class _Buffer(ctypes.Structure):
    """``ZSTD_inBuffer`` and ``ZSTD_outBuffer``."""

    _fields_ = (("data", ctypes.c_void_p), ("size", ctypes.c_size_t), ("used", ctypes.c_size_t))


def _by_library(library: ctypes.CDLL, data: bytes, count: int) -> bytes:
    library.ZSTD_createDCtx.restype = ctypes.c_void_p
    library.ZSTD_decompressStream.restype = ctypes.c_size_t
    library.ZSTD_getErrorName.restype = ctypes.c_char_p
    room = ctypes.create_string_buffer(count)
    source = _Buffer(ctypes.cast(ctypes.c_char_p(data), ctypes.c_void_p), len(data), 0)
    output = _Buffer(ctypes.cast(room, ctypes.c_void_p), count, 0)
    context = ctypes.c_void_p(library.ZSTD_createDCtx())
    try:
        while source.used < source.size and output.used < output.size:
            before = source.used, output.used
            status = ctypes.c_size_t(library.ZSTD_decompressStream(context, ctypes.byref(output), ctypes.byref(source)))
            if library.ZSTD_isError(status):
                raise CannotUnpack(f"its zstd data is broken: {library.ZSTD_getErrorName(status).decode()}")
            if status.value == 0 or before == (source.used, output.used):
                break
    finally:
        library.ZSTD_freeDCtx(context)
    return room.raw[: output.used]


def _by_nobody(data: bytes, count: int) -> bytes:
    raise CannotUnpack("it is compressed with zstd, which Python has from 3.14 on, and there is no libzstd here")
