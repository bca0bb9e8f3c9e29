"""Clang's offload bundles: code objects for several AMD targets in one, plain or compressed (``CCOB``).

Layouts as clang's ClangOffloadBundler writes and documents them; the names at the beginning of a bundle are all that
is decompressed.
"""

from __future__ import annotations

import re
import struct

from rung.binaries import unpack
from rung.binaries.fatbin import Found
from rung.binaries.images import CODE_OBJECT, SPIRV, Image
from rung.binaries.stream import Stream

PLAIN, COMPRESSED = b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB"
_COUNT, _ENTRY = struct.Struct("<Q"), struct.Struct("<QQQ")
_MOST_ENTRIES, _LONGEST_NAME = 1024, 256
#: Bytes that hold the names of any bundle of real size, decompressed and compressed.
_NAMES, _PACKED = 1 << 16, 1 << 18
#: By version: the layout behind magic, version and method; whether it gives the size of the whole.
_HEADERS = {1: (struct.Struct("<IQ"), False), 2: (struct.Struct("<IIQ"), True), 3: (struct.Struct("<QQQ"), True)}
_LONGEST_HEADER = 36  # with the magic number of zstd behind it
_METHODS = {0: unpack.deflate, 1: unpack.zstd}
#: ``hipv4-amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-``; the host's own entry is empty.
_TARGET = re.compile(r"-(gfx[0-9a-z-]+(?::[a-z]+[+-])*|amdgcnspirv)$")


def read(stream: Stream, at: int) -> Found | None:
    """The plain bundle that begins at ``at``, None when it is only the word."""
    listed = _names(stream.take(at, _NAMES))
    if listed is None:
        return None
    images, size = listed
    if at + size > stream.size:
        remark = f"the bundle at byte {at:,} says that it ends at {at + size:,}, the file ends at {stream.size:,}"
        return Found(images, at + len(PLAIN), remark)
    return Found(images, at + max(size, len(PLAIN)))


def read_compressed(stream: Stream, at: int) -> Found | None:
    """The compressed bundle that begins at ``at``, None when it is only the four letters."""
    head = stream.take(at, _LONGEST_HEADER)
    if len(head) < _LONGEST_HEADER:
        return None
    version, method = struct.unpack_from("<HH", head, 4)
    if version not in _HEADERS or method not in _METHODS:
        return None
    layout, whole = _HEADERS[version]
    start = 8 + layout.size
    size = int(layout.unpack_from(head, 8)[0]) if whole else 0
    if method == 1 and head[start : start + 4] != unpack.ZSTD_MAGIC:
        return None
    packed = stream.take(at, min(size, _PACKED) if whole else _PACKED)[start:]
    try:
        listed = _names(_METHODS[method](packed, _NAMES))
    except unpack.CannotUnpack as error:
        return Found((), at + 4, f"the compressed bundle at byte {at:,} cannot be read: {error}")
    if listed is None:
        return Found((), at + 4, f"what is compressed at byte {at:,} is no bundle")
    if at + size > stream.size:
        remark = f"the bundle at byte {at:,} says that it ends at {at + size:,}, the file ends at {stream.size:,}"
        return Found(listed[0], at + start, remark)
    return Found(listed[0], at + max(size, start))


def _names(head: bytes) -> tuple[tuple[Image, ...], int] | None:
    """The images that the head of a bundle names, and the bytes of the whole; None when it is none."""
    if not head.startswith(PLAIN) or len(head) < 32:
        return None
    (count,) = _COUNT.unpack_from(head, len(PLAIN))
    start, end = 32, 32
    images = []
    if not 1 <= count <= _MOST_ENTRIES:
        return None
    for _ in range(count):
        if start + _ENTRY.size > len(head):
            return None
        offset, size, length = _ENTRY.unpack_from(head, start)
        start += _ENTRY.size
        if length > _LONGEST_NAME or start + length > len(head):
            return None
        name = head[start : start + length].decode("ascii", "replace")
        start += length
        end = max(end, offset + size)
        if size and (image := image_of(name)):
            images.append(image)
    return tuple(images), max(end, start)


def image_of(name: str) -> Image | None:
    """The image of an entry's name, None for the host's part and for other vendors' code."""
    found = _TARGET.search(name)
    if not found:
        return None
    return Image(SPIRV if found[1] == "amdgcnspirv" else CODE_OBJECT, found[1])
