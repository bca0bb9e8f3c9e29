"""The first bytes of compressed data. Python has zstd from 3.14 on; before, the system's library is asked for it."""

from __future__ import annotations

import ctypes
import functools
import sys
import zlib
from collections.abc import Callable

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
