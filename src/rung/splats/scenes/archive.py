"""Scenes in zip files, unpacked once into rung's cache."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import zipfile
from pathlib import Path, PurePosixPath

from rung.core.errors import BadFile, DiskFull, UnsafeFile
from rung.core.files import trim, used
from rung.core.settings import CACHE
from rung.core.text import size
from rung.core.zips import DAMAGED
from rung.splats.scenes import pictures

#: What scenes consist of; anything else is left in the archive.
_KINDS = pictures.SUFFIXES | {".txt", ".bin", ".json", ".csv", ".ply"}
#: Photographs do not shrink and text shrinks to a tenth: what becomes so many times as large is a bomb.
_SWELLS, _SMALL = 100, 64 * 2**20
_ENTRIES = 200_000
_BLOCK = 2**20
#: Bytes of scenes that are kept unpacked; those of the last day stay in any case.
_KEPT = 20 * 2**30


def unpacked(path: Path) -> Path:
    """The folder with the files of a zip file; the same as long as the file is. Those used longest ago are taken away.

    Raises ``UnsafeFile`` for names that lead out of it and for bombs, ``BadFile`` for what is no zip file
    or is damaged, ``DiskFull``.
    """
    stat = path.stat()
    key = hashlib.sha256(repr((str(path.absolute()), stat.st_mtime_ns, stat.st_size)).encode()).hexdigest()[:32]
    folder: Path = CACHE.read() / "scenes" / key
    if folder.is_dir():
        used(folder)
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    trim(folder.parent, _KEPT)
    temporary = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".unpacking-"))
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in _entries(path, archive, stat.st_size):
                extract_entry(path, archive, entry, temporary)
        _named(temporary, folder)
    except DAMAGED as error:
        raise BadFile(f"{path} is no zip file that can be read.", [str(error)], ["make the archive again"]) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def _named(temporary: Path, folder: Path) -> None:
    """Gives the whole folder its name, unless another process was quicker."""
    try:
        temporary.replace(folder)
    except OSError:
        if not folder.is_dir():
            raise


def _entries(path: Path, archive: zipfile.ZipFile, length: int) -> list[zipfile.ZipInfo]:
    """The files of a scene, after a look at what they declare."""
    entries = archive.infolist()
    for entry in entries:
        name = PurePosixPath(entry.filename.replace("\\", "/"))
        if name.is_absolute() or ".." in name.parts or any(":" in part for part in name.parts[:1]):
            raise UnsafeFile(f"{path} holds {entry.filename!r}, which leads out of it.", [], ["make the archive again"])
    found = [e for e in entries if not e.is_dir() and PurePosixPath(e.filename).suffix.lower() in _KINDS]
    whole = sum(entry.file_size for entry in found)
    if len(entries) > _ENTRIES or whole > max(_SWELLS * length, _SMALL):
        raise UnsafeFile(
            f"{path} would become {size(whole)} in {len(entries):,} files; it has {size(length)}.",
            [f"more than {_SWELLS} times as large is no archive of photographs"],
            ["unpack it yourself if you trust it, and give the folder"],
        )
    room = shutil.disk_usage(CACHE.read()).free
    if whole > room:
        raise DiskFull(
            f"{path} needs {size(whole)} to be unpacked; {size(room)} are free.", [], ["make room in the cache of rung"]
        )
    return found


def extract_entry(path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, folder: Path) -> None:
    """Writes one file; never more than it declares."""
    target = folder / PurePosixPath(entry.filename.replace("\\", "/"))
    target.parent.mkdir(parents=True, exist_ok=True)
    left = entry.file_size
    with archive.open(entry) as packed, target.open("wb") as file:
        while block := packed.read(_BLOCK):
            left -= len(block)
            if left < 0:
                raise UnsafeFile(
                    f"{path}: {entry.filename} is larger than it declares.", [], ["make the archive again"]
                )
            file.write(block)
