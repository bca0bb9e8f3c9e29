"""The folder of the store: manifests by name, blobs by hash.

::

    names/smollm2.json          a manifest: title, license, format, files with their sizes and hashes
    blobs/sha256-b179.../       the files of one model under their own names; the hash is that of the only file, or of
                                the list of several
    parts/                      downloads that are not finished
    uses/sha256-b179.../        a mark of each process that runs the model
    locks/                      one for each name

A blob gets its name in one step when all of it is there and its hashes are right; a manifest is written after it.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from rung.core import locks
from rung.core.errors import BadFile, DiskFull, ModelInUse, RungError
from rung.core.files import FULL, used, write_whole
from rung.core.settings import MODELS
from rung.core.value import Value
from rung.models.files.jsonfile import SMALL, read_object

#: File names of most systems are at most so long.
_LONGEST = 240


@dataclass(frozen=True)
class StoredFile(Value):
    """A file of a stored model."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest(Value):
    """A model of the store. ``source`` says where it came from; the first file is the one to open."""

    name: str
    title: str
    license: str
    format: str
    source: str
    files: tuple[StoredFile, ...]

    @property
    def blob(self) -> str:
        """The name of its folder among the blobs."""
        return blob_name(self.files)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def folder(self) -> Path:
        """The folder of its files."""
        return root() / "blobs" / self.blob

    @property
    def path(self) -> Path:
        """Return the path to open: the GGUF file, the first part of a split one, or the folder of a Hugging Face
        model."""
        whole = any(file.name == "config.json" for file in self.files)
        return self.folder if whole else self.folder / self.files[0].name

    @property
    def is_whole(self) -> bool:
        """Return whether all files are there in their full size."""
        try:
            return all((self.folder / file.name).stat().st_size == file.size for file in self.files)
        except OSError:
            return False

    @property
    def last_used(self) -> float:
        """When it was last run or pulled, in seconds since 1970."""
        try:
            return _manifest_file(self.name).stat().st_mtime
        except OSError:
            return 0.0


def root() -> Path:
    """Return the folder of the store; it need not exist."""
    path: Path = MODELS.read()
    return path


def blob_name(files: tuple[StoredFile, ...]) -> str:
    """Return the name of the blob that holds these files."""
    if len(files) == 1:
        return f"sha256-{files[0].sha256}"
    lines = "".join(f"{file.sha256}  {file.name}\n" for file in sorted(files, key=lambda each: each.name))
    return f"sha256-{hashlib.sha256(lines.encode()).hexdigest()}"


def find(name: str) -> Manifest | None:
    """Return the manifest of a name in any case, None where there is none. Raises ``BadFile``."""
    path = _manifest_file(name)
    return _read(path) if len(path.name) < _LONGEST and path.is_file() else None


def manifests() -> tuple[list[Manifest], list[str]]:
    """Return all manifests by name, and a sentence for each that cannot be read."""
    found, notes = [], []
    folder = root() / "names"
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            found.append(_read(path))
        except BadFile as error:
            notes.append(error.cause)
    return found, notes


def write_manifest(manifest: Manifest) -> None:
    """Make a blob that is in place a model of the store. Raises ``OSError``."""
    path = _manifest_file(manifest.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(manifest.to_json(), indent=1).encode())


def mark_used(manifest: Manifest) -> None:
    """Note that a model is used now, and that this process uses it until it ends."""
    used(_manifest_file(manifest.name))
    locks.mark_use(root() / "uses" / manifest.blob)


def remove(manifest: Manifest) -> bool:
    """Remove a model; return whether its files went too, which stay where another name has them.

    Raises ``ModelInUse``, and ``RungError`` where the store cannot be written.
    """
    users = locks.users_of(root() / "uses" / manifest.blob)
    if users:
        numbers = ", ".join(map(str, users))
        raise ModelInUse(
            f"{manifest.name} is in use.",
            [f"process {numbers} runs it" if len(users) == 1 else f"processes {numbers} run it"],
            [f"end it, then:  rung rm {manifest.name}"],
        )
    try:
        _manifest_file(manifest.name).unlink(missing_ok=True)
        shared = any(other.blob == manifest.blob for other in manifests()[0])
        if not shared and manifest.folder.exists():
            gone = root() / "parts" / f"removed-{manifest.blob}-{os.getpid()}"
            gone.parent.mkdir(parents=True, exist_ok=True)
            os.replace(manifest.folder, gone)  # at once: half a blob is never found under its name
            shutil.rmtree(gone)
        shutil.rmtree(root() / "uses" / manifest.blob, ignore_errors=True)
    except OSError as error:
        raise cannot_write(error) from error
    return not shared


def cannot_write(error: OSError) -> RungError:
    """Return the error for a store that does not let itself be written."""
    return RungError(
        f"The store of models {root()} cannot be written: {error.strerror or error}.",
        [],
        ["RUNG_MODELS=/a/folder/of/yours   # where models are kept"],
        code="output-unwritable",
    )


def name_lock(name: str) -> Path:
    """Return the lock that a process holds while it fetches or removes that name."""
    return root() / "locks" / f"{_file_name(name)}.lock"


def _file_name(name: str) -> str:
    return quote(name.lower(), safe="")


def _manifest_file(name: str) -> Path:
    return root() / "names" / f"{_file_name(name)}.json"


def _read(path: Path) -> Manifest:
    bad = BadFile(f"The manifest {path} is broken.", [], [f"rm {path}   # then pull the model again"])
    try:
        found: Manifest = Manifest.from_json(read_object(path, SMALL))
    except (BadFile, ValueError, TypeError, KeyError) as error:
        raise bad from error
    names = [file.name for file in found.files]
    if not names or any(Path(name).name != name or name in ("", ".", "..") for name in names):
        raise bad
    return found


#: Called with a label, the bytes that are here and the bytes in all.
Progress = Callable[[str, int, int], None]


def disk_full(fact: str) -> DiskFull:
    """Return the error for a disk that cannot hold a model."""
    ways = ["rung list   # what takes room there; rung rm NAME removes one", "RUNG_MODELS=/a/larger/disk"]
    return DiskFull(f"No room for it in {root()}.", [fact, "nothing that is there was changed"], ways)


@contextlib.contextmanager
def writing_store() -> Iterator[None]:
    """Raise ``DiskFull`` and ``RungError`` for what the system says against writing the store in the block."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise disk_full(error.strerror or str(error)) from error
        raise cannot_write(error) from error


def keep_blob(source: Path, blob: str) -> None:
    """Give a folder of finished files its name among the blobs, in one step; what lies there already is replaced."""
    target = root() / "blobs" / blob
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():  # a model whose files someone removed or changed
        shutil.rmtree(target)
    try:
        os.replace(source, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
