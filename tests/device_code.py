"""Files with device code, made byte by byte: good ones, and ones that lie."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib

PTX, CUBIN, LTO = 1, 2, 8
A, F = 1 << 20, 1 << 21


def entry(kind: int, target: int, flags: int = 0, payload: bytes = bytes(4096), isa: tuple[int, int] = (8, 7)) -> bytes:
    """One image of a fatbin with its header of 64 bytes."""
    head = struct.pack("<HHIQIIHHIIIQ", kind, 0x101, 64, len(payload), 0, 0, isa[1], isa[0], target, 0, 0, flags | 0x11)
    return head + struct.pack("<QQ", 0, 0) + payload


def fatbin(*entries: bytes) -> bytes:
    """One container."""
    body = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def plain_bundle(*targets: str, payload: bytes = b"\x7fELF" + b"\0" * 60) -> bytes:
    """A clang offload bundle: the empty part of the host, then one code object for each target."""
    names = ["host-x86_64-unknown-linux-gnu-", *(f"hipv4-amdgcn-amd-amdhsa--{target}" for target in targets)]
    offset = 32 + sum(24 + len(name) for name in names)
    table, parts = b"", b""
    for name in names:
        part = b"" if name.startswith("host") else payload
        table += struct.pack("<QQQ", offset + len(parts), len(part), len(name)) + name.encode()
        parts += part
    return b"__CLANG_OFFLOAD_BUNDLE__" + struct.pack("<Q", len(names)) + table + parts


def compressed_bundle(version: int, plain: bytes) -> bytes:
    """The same, compressed with zlib as versions 1 to 3 of the format have it."""
    packed = zlib.compress(plain)
    if version == 1:
        sizes = struct.pack("<IQ", len(plain), 7)
    elif version == 2:
        sizes = struct.pack("<IIQ", 24 + len(packed), len(plain), 7)
    else:
        sizes = struct.pack("<QQQ", 32 + len(packed), len(plain), 7)
    return b"CCOB" + struct.pack("<HH", version, 0) + sizes + packed


def elf(data: bytes = b"", code: bytes = b"\x90" * 64, machine: int = 62, needs: int = 0) -> bytes:
    """A shared library: headers, a property note that demands ``needs`` (bits of x86-64's levels), code, data."""
    note = struct.pack("<III4sIIII", 4, 16, 5, b"GNU\0", 0xC0008002, 4, needs, 0)
    start = 64 + 3 * 56
    at = start + len(note)
    programs = struct.pack("<IIQQQQQQ", 0x6474E553, 4, start, 0, 0, len(note), len(note), 8)
    programs += struct.pack("<IIQQQQQQ", 1, 5, at, 0, 0, len(code), len(code), 4096)
    programs += struct.pack("<IIQQQQQQ", 1, 6, at + len(code), 0, 0, len(data), len(data), 4096)
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, 0, 0, 64, 56, 3, 64, 0, 0)
    return head + programs + note + code + data


def elf_with_sections(fatbins: bytes, data: bytes) -> bytes:
    """A shared library whose section table says what is .nv_fatbin and what is other data."""
    names = b"\0.nv_fatbin\0.lrodata\0.shstrtab\0"
    start = 64
    parts = ((1, fatbins), (12, data), (21, names))
    table = bytes(64)
    for name, content in parts:
        table += struct.pack("<IIQQQQIIQQ", name, 1, 2, 0, start, len(content), 0, 0, 8, 0)
        start += len(content)
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, start, 0, 64, 56, 0, 64, 4, 3)
    return head + fatbins + data + names + table


def device_elf(machine: int, abi: int, flags: int, text: bytes = b"", osabi: int = 64) -> bytes:
    """A cubin (machine 190) or an AMD code object (224): a header, some text, one empty section header."""
    head = b"\x7fELF\x02\x01\x01" + bytes([osabi, abi]) + bytes(7)
    sections = 64 + len(text)
    return (
        head
        + struct.pack("<HHIQQQIHHHHHH", 2, machine, 1, 0, 0, sections, flags, 64, 0, 0, 64, 1, 0)
        + text
        + bytes(64)
    )


def pe(data: bytes, code: bytes = b"\x90" * 64) -> bytes:
    """A DLL with the sections .text and .nv_fatb."""
    start, at = 64, 64 + 24 + 2 * 40
    head = b"MZ" + bytes(58) + struct.pack("<I", start)
    coff = b"PE\0\0" + struct.pack("<HHIIIHH", 0x8664, 2, 0, 0, 0, 0, 0x2022)
    sections = struct.pack("<8sIIIIIIHHI", b".text", 0, 0, len(code), at, 0, 0, 0, 0, 0x60000020)
    sections += struct.pack("<8sIIIIIIHHI", b".nv_fatb", 0, 0, len(data), at + len(code), 0, 0, 0, 0, 0x40000040)
    return head + coff + sections + code + data


def mach_o(data: bytes) -> bytes:
    """A 64-bit Mach-O file with one segment, __NV_CUDA."""
    at = 32 + 72
    segment = struct.pack("<II16sQQQQIIII", 0x19, 72, b"__NV_CUDA", 0, 0, at, len(data), 1, 1, 0, 0)
    return struct.pack("<IIIIIIII", 0xFEEDFACF, 0x01000007, 3, 6, 1, 72, 0, 0) + segment + data


def archive(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED, before: bytes = b"") -> bytes:
    """A wheel, or with something ``before`` it a program that carries an archive."""
    buffer = io.BytesIO()
    buffer.write(before)
    with zipfile.ZipFile(buffer, "a" if before else "w", method) as file:
        for name, content in members.items():
            file.writestr(name, content)
    return buffer.getvalue()
