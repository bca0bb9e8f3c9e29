"""The first bytes of libraries and programs: what they are, for which processor, and where their code lies.

The section table of an ELF file stands at its end, and says where the CUDA runtime's own fat binaries lie.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from rung.binaries.containers import AMDGPU, CUDA, HEADER

#: Bytes that hold the headers of every file that a linker made.
SIZE = 1 << 16
_ELF_MACHINES = {3: "x86", 40: "arm", 62: "x86_64", 183: "aarch64", 21: "ppc64", 22: "s390x", 243: "riscv64"}
_DEVICES = {CUDA: "cubin", AMDGPU: "AMD code object"}
_ELF_KINDS = {1: "object file", 2: "program", 3: "library"}
_PE_MACHINES = {0x14C: "x86", 0x8664: "x86_64", 0xAA64: "aarch64"}
_MACH_MACHINES = {0x01000007: "x86_64", 0x0100000C: "aarch64"}
_PROGRAM = struct.Struct("<IIQQQQQQ")  # p_type, p_flags, p_offset, p_vaddr, p_paddr, p_filesz, p_memsz, p_align
_LOAD, _PROPERTY = 1, 0x6474E553
_EXECUTABLE = 1
#: GNU_PROPERTY_X86_ISA_1_NEEDED and its bits (x86-64 psABI): the loader refuses the file where they are not met.
_ISA_NEEDED = 0xC0008002
_LEVELS = {8: "x86-64-v4", 4: "x86-64-v3", 2: "x86-64-v2"}
_PE_SECTION = struct.Struct("<8sIIIIIIHHI")
_PE_CODE = 0x20000000
_ELF = b"\x7fELF"
_MACH = b"\xcf\xfa\xed\xfe"
_MACH_FAT = b"\xca\xfe\xba\xbe"
_MACH_SEGMENT = 0x19
_MOST_SLICES = 16  # Java's class files begin with the same four bytes, and a number that is larger
_ARCHIVE = b"!<arch>\n"
#: Names of the sections that the runtime registers from; fatbins elsewhere are data, which a program loads by hand.
_FATBINS = (b".nv_fatbin", b"__nv_relfatbin")
#: The names of sections stand before the table, closer than this.
_BEFORE_TABLE = 1 << 20
_SECTION = struct.Struct("<IIQQQQIIQQ")  # name, type, flags, address, offset, size, link, info, alignment, entry size


@dataclass(frozen=True)
class Head:
    """``code``: where machine code lies, as (from, to); ``end``: where the file says that it ends, 0 if it does not.

    ``sections``: where an ELF file's section table begins, how many it lists, which of them holds the names.
    """

    format: str
    machine: str = ""
    needs: str = ""
    code: tuple[tuple[int, int], ...] = ()
    end: int = 0
    sections: tuple[int, int, int] = (0, 0, 0)


def read(head: bytes) -> Head | None:
    """Read the kind of a file from its first bytes; None where it is no library, program or archive of object files."""
    if head.startswith(_ELF) and len(head) >= 52:
        return _elf(head)
    if head.startswith(b"MZ"):
        return _pe(head)
    if head.startswith((_MACH, _MACH_FAT)) and len(head) >= 32:
        return _mach(head) if head.startswith(_MACH) else _fat(head)
    return Head("archive") if head.startswith(_ARCHIVE) else None


def _elf(head: bytes) -> Head:
    kind, machine = struct.unpack_from("<HH" if head[5] == 1 else ">HH", head, 16)
    if machine in _DEVICES:
        return Head(_DEVICES[machine])
    name = f"ELF {_ELF_KINDS.get(kind, 'file')}"
    known = _ELF_MACHINES.get(machine, f"machine {machine}")
    if head[4:6] != b"\x02\x01":
        return Head(name, known)
    if len(head) < 64:
        return Head(name, known, end=64)
    fields = HEADER.unpack_from(head, 16)
    programs, sections, (size, count, section_size, section_count) = *fields[4:6], fields[8:]
    code, needs, end = [], "", max(64, programs + size * count, sections + section_size * section_count)
    for number in range(count):
        entry = programs + number * size
        if size < _PROGRAM.size or entry + _PROGRAM.size > len(head):
            break
        kind, flags, offset, _, _, length, _, _ = _PROGRAM.unpack_from(head, entry)
        if kind == _LOAD:
            end = max(end, offset + length)
            if flags & _EXECUTABLE:
                code.append((offset, offset + length))
        elif kind == _PROPERTY:
            needs = _needed(head[offset : offset + length])
    names_in = int.from_bytes(head[62:64], "little")
    return Head(name, known, needs, tuple(code), end, (sections, section_count, names_in))


def _needed(note: bytes) -> str:
    """The level of x86-64 that a property note demands, empty when none; a note of other things is passed over."""
    if len(note) < 16 or note[12:16] != b"GNU\0":
        return ""
    offset = 16
    while offset + 8 <= len(note):
        kind, length = struct.unpack_from("<II", note, offset)
        if kind == _ISA_NEEDED and offset + 12 <= len(note):
            (bits,) = struct.unpack_from("<I", note, offset + 8)
            return next((level for bit, level in _LEVELS.items() if bits & bit), "")
        offset += 8 + (length + 7) // 8 * 8
    return ""


def _pe(head: bytes) -> Head | None:
    if len(head) < 64:
        return None
    (start,) = struct.unpack_from("<I", head, 60)
    if head[start : start + 4] != b"PE\0\0" or start + 24 > len(head):
        return None
    machine, sections = struct.unpack_from("<HH", head, start + 4)
    optional, characteristics = struct.unpack_from("<HH", head, start + 20)
    code, end = [], start + 24 + optional + sections * _PE_SECTION.size
    for number in range(sections):
        entry = start + 24 + optional + number * _PE_SECTION.size
        if entry + _PE_SECTION.size > len(head):
            break
        _, _, _, length, offset, _, _, _, _, flags = _PE_SECTION.unpack_from(head, entry)
        end = max(end, offset + length)
        if flags & _PE_CODE:
            code.append((offset, offset + length))
    name = "PE library" if characteristics & 0x2000 else "PE program"
    return Head(name, _PE_MACHINES.get(machine, f"machine {machine:#x}"), "", tuple(code), end)


def _mach(head: bytes) -> Head:
    machine, _, _, commands, length = struct.unpack_from("<IIIII", head, 4)
    code, end = [], 32 + length
    for kind, command in _commands(head, commands):
        if kind == _MACH_SEGMENT and command + 72 <= len(head):
            offset, length, _, rights = struct.unpack_from("<QQII", head, command + 40)
            end = max(end, offset + length)
            if rights & 4:
                code.append((offset, offset + length))
    return Head("Mach-O file", _MACH_MACHINES.get(machine, f"machine {machine:#x}"), "", tuple(code), end)


def _commands(head: bytes, count: int) -> Iterator[tuple[int, int]]:
    """The kind and the place of each load command."""
    offset = 32
    for _ in range(count):
        if offset + 8 > len(head):
            return
        kind, length = struct.unpack_from("<II", head, offset)
        yield kind, offset
        offset += max(length, 8)


def _fat(head: bytes) -> Head | None:
    (count,) = struct.unpack_from(">I", head, 4)
    if not 1 <= count <= _MOST_SLICES or 8 + 20 * count > len(head):
        return None
    slices = [struct.unpack_from(">IIIII", head, 8 + 20 * number) for number in range(count)]
    machines = [_MACH_MACHINES.get(machine, f"machine {machine:#x}") for machine, *_ in slices]
    return Head("Mach-O file", " + ".join(machines), end=max(offset + size for _, _, offset, size, _ in slices))


class Table:
    """Keep a file's section table and what stands shortly before it while the file goes by."""

    def __init__(self, head: Head | None) -> None:
        self._table = head.sections if head else (0, 0, 0)
        self._from = max(0, self._table[0] - _BEFORE_TABLE)
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
        """Return where the runtime's fat binaries lie, as (from, to); None where no table is or it is not whole."""
        at, count, names_in = self._table
        table = self._at(at, count * _SECTION.size)
        if names_in >= count or len(table) < count * _SECTION.size:
            return None
        sections = list(_SECTION.iter_unpack(table))
        names = self._at(sections[names_in][4], sections[names_in][5])
        if not names:
            return None
        found = (section for section in sections if names[section[0] :].split(b"\0", 1)[0] in _FATBINS)
        return [(section[4], section[4] + section[5]) for section in found]

    def _at(self, at: int, count: int) -> bytes:
        return self._kept[at - self._start : at - self._start + count] if at >= self._start else b""
