"""Device code that stands by itself: an ELF file for a GPU, as a file or in the data of a library."""

from __future__ import annotations

import re
import struct

from rung.binaries.fatbin import Found
from rung.binaries.images import CODE_OBJECT, CUBIN, Image
from rung.binaries.stream import CHUNK, Stream

#: An ELF file of 64 bits, little endian.
MAGIC = b"\x7fELF\x02\x01\x01"
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


def read(stream: Stream, at: int) -> Found | None:
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
        return Found(images, at + len(MAGIC), remark)
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
