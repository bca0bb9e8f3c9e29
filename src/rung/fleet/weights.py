"""Files of models by their hashes: a node that lacks one fetches it from the head, and checks what came."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from rung.core.errors import DiskFull, DownloadError
from rung.core.files import written_whole
from rung.core.settings import MODELS
from rung.core.text import size
from rung.models.files import gguf

#: Bytes that are fetched at a time.
PIECE = 8 * 2**20


class ModelFile(msgspec.Struct, frozen=True):
    """A file of a model: where it is on the head, its name beside the others, bytes and SHA-256 in hex."""

    path: str
    name: str
    size: int
    sha256: str


def files_of(path: Path) -> list[ModelFile]:
    """Return the files of a model at a path: itself and its further parts, or those of a folder."""
    if path.is_dir():
        found = sorted(each for each in path.iterdir() if each.is_file())
    else:
        found = [path.parent / name for name in gguf.part_names(path.name)]
    return [ModelFile(str(each), each.name, each.stat().st_size, _hash(each)) for each in found]


def _hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class FileSource:
    """Give other nodes pieces of the files of models; an actor on the head. No other file is read."""

    def __init__(self, files: Sequence[ModelFile]) -> None:
        self._paths = {file.sha256: file.path for file in files}

    def read(self, sha256: str, offset: int) -> bytes:
        """Return the piece of a file that begins at an offset. Raises ``KeyError`` for a file of no model."""
        with open(self._paths[sha256], "rb") as file:
            file.seek(offset)
            return file.read(PIECE)


async def fetch(files: Sequence[ModelFile], source: Any) -> Path:
    """Return the path of a model on this node: that of the head where the same files are there, else of fetched ones.

    Raises ``DiskFull``, and ``DownloadError`` for bytes that have another hash.
    """
    if await asyncio.to_thread(_are_here, files):
        first = Path(files[0].path)
    else:
        digest = hashlib.sha256("".join(file.sha256 for file in files).encode()).hexdigest()
        target = MODELS.read() / "fleet" / digest
        target.mkdir(parents=True, exist_ok=True)
        for file in files:
            await _fetch_file(file, target / file.name, source)
        first = target / files[0].name
    return first.parent if (first.parent / "config.json").exists() and len(files) > 1 else first


def _are_here(files: Sequence[ModelFile]) -> bool:
    paths = [(Path(file.path), file) for file in files]
    if not all(path.is_file() and path.stat().st_size == file.size for path, file in paths):
        return False
    return all(_hash(path) == file.sha256 for path, file in paths)


async def _fetch_file(file: ModelFile, target: Path, source: Any) -> None:
    """Fetch a file, unless it is there."""
    if target.is_file() and target.stat().st_size == file.size:
        return
    free = shutil.disk_usage(target.parent).free
    if free < file.size:
        raise DiskFull(f"{file.name} needs {size(file.size)}, and {size(free)} are free.", [str(target.parent)])
    digest = hashlib.sha256()
    with written_whole(target) as temporary, open(temporary, "wb") as out:
        while out.tell() < file.size:
            piece: bytes = await source.read.remote(file.sha256, out.tell())
            if not piece:
                break
            out.write(piece)
            digest.update(piece)
        if digest.hexdigest() != file.sha256:
            raise DownloadError(f"{file.name} came with other bytes than the head has.", [f"sha256 {file.sha256}"])
