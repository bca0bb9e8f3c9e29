"""Containers of device code: NVIDIA's fat binaries, clang's offload bundles, ELF files that stand alone."""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass

from rung.binaries.images import CODE_OBJECT, CUBIN, LTO, PTX, SPIRV, Image
from rung.binaries.stream import CHUNK, ZSTD_MAGIC, CannotUnpack, Stream, deflate, zstd

#: The magic number 0xBA55ED50, version 1, a header of 16 bytes: the only one that is known. A search for eight bytes is
#: twice as fast as one for four.
FATBIN_MAGIC = b"\x50\xed\x55\xba\x01\x00\x10\x00"
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


def read_fatbin(stream: Stream, at: int) -> Found | None:
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


PLAIN, COMPRESSED = b"__CLANG_OFFLOAD_BUNDLE__", b"CCOB"
_COUNT, _BUNDLE_ENTRY = struct.Struct("<Q"), struct.Struct("<QQQ")
_MOST_ENTRIES, _LONGEST_NAME = 1024, 256
#: Bytes that hold the names of any bundle of real size, decompressed and compressed.
_NAMES, _PACKED = 1 << 16, 1 << 18
#: By version: the layout behind magic, version and method; whether it gives the size of the whole.
_HEADERS = {1: (struct.Struct("<IQ"), False), 2: (struct.Struct("<IIQ"), True), 3: (struct.Struct("<QQQ"), True)}
_LONGEST_HEADER = 36  # with the magic number of zstd behind it
_METHODS = {0: deflate, 1: zstd}
#: ``hipv4-amdgcn-amd-amdhsa--gfx90a:sramecc+:xnack-``; the host's own entry is empty.
_TARGET = re.compile(r"-(gfx[0-9a-z-]+(?::[a-z]+[+-])*|amdgcnspirv)$")


def read_bundle(stream: Stream, at: int) -> Found | None:
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
    if method == 1 and head[start : start + 4] != ZSTD_MAGIC:
        return None
    packed = stream.take(at, min(size, _PACKED) if whole else _PACKED)[start:]
    try:
        listed = _names(_METHODS[method](packed, _NAMES))
    except CannotUnpack as error:
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
        if start + _BUNDLE_ENTRY.size > len(head):
            return None
        offset, size, length = _BUNDLE_ENTRY.unpack_from(head, start)
        start += _BUNDLE_ENTRY.size
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


#: An ELF file of 64 bits, little endian.
ELF_MAGIC = b"\x7fELF\x02\x01\x01"
#: Behind e_ident: e_type, e_machine, e_version, e_entry, e_phoff, e_shoff, e_flags, e_ehsize, size and number of
#: program headers, size and number of section headers.
HEADER = struct.Struct("<HHIQQQIHHHHH")
CUDA, AMDGPU = 190, 224
#: e_flags of AMD's code objects by its last byte, from 0x20 on (EF_AMDGPU_MACH_AMDGCN_* of LLVM's ELF.h).
_AMD_TARGETS = """600 601 700 701 702 703 704 ? 801 802 803 810 900 902 904 906
908 909 90c 1010 1011 1012 1030 1031 1032 1033 602 705 805 1035 1034 90a
940 1100 1013 1150 1103 1036 1101 1102 1200 1250 1151 941 942 ? 1201 950
1310 9-generic 10-1-generic 10-3-generic 11-generic 1152 ? 1154
1153 12-generic 1251 12-5-generic 1172 1170 1171 9-4-generic ? ? 11-7-generic 13-generic"""
_FIRST = 0x20
#: The ABI version from which on xnack and sramecc have two bits each: unsupported, any, off, on.
_SIGNED_ABI = 2
_SIGNS = {2: "-", 3: "+"}
#: From this ABI version on (CUDA 13) a cubin's target stands one byte higher, and its suffix in a note only: ptxas
#: writes its own command line there. Measured with ptxas 13.0 on 13 targets.
_NEW_ABI = 8
_ACCELERATED_V1, _FIRST_SPECIAL = 0x800, 90  # the bit means something else in cubins of 6.0
_ASSEMBLED_FOR = re.compile(rb"-arch\s*=?\s*sm_(\d+)([af])\b")


def read_elf(stream: Stream, at: int) -> Found | None:
    """The cubin or code object that begins at ``at``, None for any other ELF file."""
    head = stream.take(at, 16 + HEADER.size)
    if len(head) < 16 + HEADER.size:
        return None
    fields = HEADER.unpack_from(head, 16)
    machine, programs, sections, flags = fields[1], *fields[4:7]
    size, count, section_size, section_count = fields[8:]
    if machine not in (CUDA, AMDGPU):
        return None
    end = at + max(programs + size * count, sections + section_size * section_count, 16 + HEADER.size)
    abi = head[8]
    target = _amd(abi, flags) if machine == AMDGPU else _cuda(abi, flags, stream.take(at, min(end - at, CHUNK)))
    if not target:
        return None
    images = (Image(CODE_OBJECT if machine == AMDGPU else CUBIN, target),)
    if end > stream.size:
        what = "code object" if machine == AMDGPU else "cubin"
        remark = f"the {what} at byte {at:,} says that it ends at {end:,}, the file ends at {stream.size:,}"
        return Found(images, at + len(ELF_MAGIC), remark)
    return Found(images, end)


def _cuda(abi: int, flags: int, head: bytes) -> str:
    if abi < _NEW_ABI:
        number, suffix = flags & 0xFF, ""
        if flags & _ACCELERATED_V1 and number >= _FIRST_SPECIAL:
            suffix = "a"
    else:
        number = flags >> 8 & 0xFF
        match = _ASSEMBLED_FOR.search(head)
        suffix = match[2].decode() if match and int(match[1]) == number else ""
    return f"sm_{number}{suffix}" if number else ""


def _amd(abi: int, flags: int) -> str:
    index, names = (flags & 0xFF) - _FIRST, _AMD_TARGETS.split()
    if not 0 <= index < len(names) or names[index] == "?":
        return ""
    target = f"gfx{names[index]}"
    if abi >= _SIGNED_ABI:
        for name, shift in (("sramecc", 10), ("xnack", 8)):
            if sign := _SIGNS.get(flags >> shift & 3):
                target += f":{name}{sign}"
    return target
