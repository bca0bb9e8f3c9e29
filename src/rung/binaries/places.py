"""Find the libraries behind a path or the name of a package: files, folders, wheels, archives, installed packages.

Nothing is unpacked to disk and nothing that was read is run. Names and sizes in archives are somebody else's claims.
"""

from __future__ import annotations

import os
import re
import stat
import zipfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any, BinaryIO, cast

from rung.binaries import heads, scan
from rung.binaries.images import NOT_READ, Library
from rung.core.errors import BadFile, UsageError
from rung.core.shield import Workers
from rung.core.text import count, quoted
from rung.core.text import size as as_size
from rung.core.zips import DAMAGED

#: Text and weights: never opened in folders and archives, where they are most of the files.
_PLAIN = """
.py .pyi .pyc .h .hpp .hxx .cuh .cu .c .cc .cpp .inl .inc .cmake .txt .md .rst .json .yaml .yml .toml .csv .html .js
.css .svg .png .jpg .gif .ipynb .gguf .safetensors .bin .npz .npy .pt .pth .onnx .parquet .zip .gz .xz .tar
"""
#: Archives in archives and folders: each may hold more than what it lies in, so they are named and not looked into.
_ARCHIVES = (".whl", ".zip", ".conda", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst", ".7z")
#: Names that lead out of a folder on Windows: ``C:\\x``.
_DRIVE = re.compile(r"[A-Za-z]:")
#: What is not a library, and what to ask instead.
_WEIGHTS = {b"GGUF": "a GGUF model"}
#: An archive may inflate to so many times its size and so many bytes more, far beyond any wheel.
_RATIO, _ALLOWANCE = 50, 1 << 30
_ENCRYPTED = 1
#: Members from this size on are inflated several at a time: zlib lets other threads run, and inflating is nearly all
#: the work. Each keeps a few MB.
_LARGE, _AT_ONCE = 8 << 20, 4
#: Names that a remark shows.
_SHOWN = 3
_ZIP_ERRORS = (*DAMAGED, OSError)


def libraries(path: Path, remarks: list[str]) -> Iterator[Library]:
    """The libraries of a file, an archive or a folder, one at a time; what is wrong with the whole goes to ``remarks``.

    A file that is named is always read; in folders and archives only what begins like a library or like device code.
    Raises ``BadFile`` for a file that is neither, ``UsageError`` for what cannot be opened.
    """
    if path.is_dir():
        yield from _folder(path, remarks)
        return
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UsageError(f"{path} is neither a file nor a folder.", code="path-unknown")
        with open(path, "rb") as file:
            yield from _named(path, file, remarks)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", code="file-unreadable") from error


def _named(path: Path, file: BinaryIO, remarks: list[str]) -> Iterator[Library]:
    size = os.fstat(file.fileno()).st_size
    first = file.read(heads.SIZE)
    for mark, what in _WEIGHTS.items():
        if first.startswith(mark):
            raise BadFile(f"{path} is {what}: it holds weights, not code.", ways_out=[f"rung check {quoted(path)}"])
    archive = _archive(file)
    if archive is None:
        yield _read(printable(path.name), file, size, first)
        return
    with archive:
        # a program with an archive behind it (a llamafile): the program ends where the first member begins
        start = min((member.header_offset for member in archive.infolist()), default=0)
        if start > 0 and scan.known(first):
            yield _read(printable(path.name), file, start, first)
        yield from _members(path, archive, size, remarks)


def _archive(file: BinaryIO) -> zipfile.ZipFile | None:
    """The zip archive that a file is or ends with; None when there is none or its directory is broken."""
    try:
        return zipfile.ZipFile(file) if zipfile.is_zipfile(file) else None
    except _ZIP_ERRORS:
        return None


def _read(name: str, file: BinaryIO, size: int, first: bytes) -> Library:
    if first.startswith(b"PK\x03\x04"):
        raise BadFile(
            f"{name} is a wheel or another zip archive without its end: it was cut off, or is still being fetched.",
            [f"{as_size(size)} are there"],
            ["pip download --no-deps NAME==VERSION"],
            code="file-truncated",
        )
    file.seek(len(first))
    found = scan.scan(name, file, size, first, seeks=True)
    if not found.format:
        begun = scan.begun(first)
        says = f"begins as {begun} does, but nothing in it can be read: it is cut off, or its sizes lie."
        raise BadFile(
            f"{name} {says if begun else 'is neither a library nor GPU code, and no archive of them.'}",
            found.remarks or [f"its first bytes are {first[:8].hex(' ') or 'missing: it is empty'}"],
            ["rung inspect FILE.so   # or a wheel, a folder, a package"],
        )
    return found


def _members(path: Path, archive: zipfile.ZipFile, size: int, remarks: list[str]) -> Iterator[Library]:
    left = _RATIO * size + _ALLOWANCE
    outside = 0
    kept, archives = [], []
    for member in archive.infolist():
        outside += _leads_out(member.filename)
        if member.filename.lower().endswith(_ARCHIVES):
            archives.append(printable(member.filename))
        if member.is_dir() or _plain(member.filename):
            continue
        left -= member.file_size
        if left < 0:
            remarks.append(
                f"it is made to fill a disk: {as_size(size)} that say they hold more than"
                f" {as_size(_RATIO * size + _ALLOWANCE)}; {printable(member.filename)} and what follows it was not read"
            )
            break
        kept.append(member)
    yield from _inflated(archive, kept)
    _name_archives(archives, remarks)
    if outside:
        lead = "leads" if outside == 1 else "lead"
        remarks.append(f"{outside:,} of its names {lead} out of the folder that it is unpacked to: do not install it")


def _leads_out(name: str) -> bool:
    """Return whether a member's name stands for a file outside of the folder that the archive is unpacked to."""
    named = name.replace("\\", "/")
    return named.startswith("/") or _DRIVE.match(named) is not None or ".." in named.split("/")


def _name_archives(names: Sequence[str], remarks: list[str]) -> None:
    if names:
        shown = ", ".join(names[:_SHOWN]) + (" ..." if len(names) > _SHOWN else "")
        those, them = ("is", "it") if len(names) == 1 else ("are", "them")
        remarks.append(f"{count(len(names), 'archive')} in it {those} not looked into; unpack or name {them}: {shown}")


def _inflated(archive: zipfile.ZipFile, members: Sequence[zipfile.ZipInfo]) -> Iterator[Library]:
    """The libraries among members, in their order; the large ones are read beside each other, the largest first."""
    large = sorted((m for m in members if m.file_size >= _LARGE), key=lambda member: -member.file_size)
    with Workers(max(1, min(_AT_ONCE, os.cpu_count() or 1))) as pool:
        begun = {member.header_offset: pool.submit(_member, archive, member, pool) for member in large}
        for member in members:
            later = begun.get(member.header_offset)
            if found := later.result() if later else _member(archive, member, pool):
                yield found


def _member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, pool: Workers) -> Library | None:
    name = printable(member.filename)
    if member.flag_bits & _ENCRYPTED:
        return Library(name, member.file_size, NOT_READ, remarks=("it is encrypted",))
    try:
        with archive.open(member) as opened:
            file = _Stoppable(opened, pool)
            first = file.read(heads.SIZE)
            if not scan.known(first):
                return None
            return scan.scan(name, cast(BinaryIO, file), member.file_size, first, seeks=False)
    except _ZIP_ERRORS as error:
        return Library(name, member.file_size, NOT_READ, remarks=(f"it cannot be read: {error}",))


class _Stoppable:
    """A file that ends when nobody waits for it any more."""

    def __init__(self, file: Any, pool: Workers) -> None:
        self._file, self._pool = file, pool

    def read(self, count: int) -> bytes:
        return cast(bytes, self._file.read(count)) if self._pool.open else b""


def _folder(path: Path, remarks: list[str]) -> Iterator[Library]:
    visited: set[tuple[int, int]] = set()
    unread: list[str] = []
    archives: list[str] = []
    for folder, folders, names in os.walk(path, onerror=lambda error: unread.append(str(error.filename))):
        folders.sort()
        for name in sorted(names):
            file = Path(folder, name)
            shown = printable(str(file.relative_to(path)))
            if name.lower().endswith(_ARCHIVES):
                archives.append(shown)
            elif found := file_in_folder(file, shown, visited, unread):
                yield found
    _name_archives(archives, remarks)
    if unread:
        what = "file or folder" if len(unread) == 1 else "files or folders"
        remarks.append(f"{len(unread):,} {what} cannot be read: {', '.join(unread[:_SHOWN])}")


def file_in_folder(file: Path, name: str, visited: set[tuple[int, int]], unread: list[str]) -> Library | None:
    """The library in one file of many, None when it is none or was ``visited`` under another name."""
    if _plain(name):
        return None
    try:
        state = file.stat()
        if not stat.S_ISREG(state.st_mode) or (state.st_dev, state.st_ino) in visited:
            return None
        visited.add((state.st_dev, state.st_ino))
        with open(file, "rb") as opened:
            first = opened.read(heads.SIZE)
            if not scan.known(first):
                return None
            return scan.scan(name, opened, state.st_size, first, seeks=True)
    except OSError:
        unread.append(name)
        return None


def printable(name: str) -> str:
    """A name without characters that would steer a terminal or cannot be written."""
    if name.isprintable():
        return name
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in name)


def _plain(name: str) -> bool:
    extension = os.path.splitext(name)[1].lower()
    return bool(extension) and extension in _PLAIN.split()


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def installed() -> Mapping[str, Distribution]:
    """The packages of this Python by their normal names."""
    return {normal(found.name): found for found in distributions() if found.name}


def normal(name: str) -> str:
    """A package's name as indexes compare it: ``nvidia_cublas-cu12`` is ``nvidia-cublas-cu12``."""
    return re.sub(r"[-_.]+", "-", name).lower()


def related(name: str, packages: Mapping[str, Distribution]) -> tuple[str, ...]:
    """The package, everything installed that it needs, and what needs it itself: its extensions. The package first."""
    found = [name]
    waiting = deque(found)
    while waiting:
        for needed in _needs(packages[waiting.popleft()]):
            if needed in packages and needed not in found:
                found.append(needed)
                waiting.append(needed)
    return (
        *found,
        *(other for other, other_package in packages.items() if other not in found and name in _needs(other_package)),
    )


def _needs(package: Distribution) -> list[str]:
    names = (_NAME.match(text) for text in package.requires or ())
    return [normal(found[0]) for found in names if found]


def installed_libraries(
    names: tuple[str, ...], packages: Mapping[str, Distribution], remarks: list[str]
) -> Iterator[Library]:
    """The libraries that these packages have installed, one at a time; the same file once."""
    visited: set[tuple[int, int]] = set()
    for name in names:
        unread: list[str] = []
        for file in packages[name].files or ():
            where = Path(str(packages[name].locate_file(file)))
            if found := file_in_folder(where, str(file), visited, unread):
                yield found
        if unread:
            remarks.append(f"{len(unread):,} files that {name} installed cannot be read: {unread[0]}")
