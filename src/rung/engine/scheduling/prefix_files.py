"""Keys and values of earlier sequences in files, which survive the process: a file for each node of a tree of prefixes.

A file is named by hashes of what keys and values depend on: the model and how it computes (``identity``), the owner and
every token up to the end of the node. What another model, version or owner left is never found, and is taken away when
it was used longest ago. A file is there whole or not at all; its bytes are checked when they are read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from rung.core.errors import UsageError
from rung.core.settings import CACHE
from rung.core.text import parse_size

Bytes = npt.NDArray[np.uint8]

_SUFFIX, _PART = ".kv", ".part"
#: Seconds after which nobody writes a file any more that is not whole.
_ABANDONED = 3600
#: Seconds after a write that failed, as on a full disk, before the next one is tried.
RETRY_SECONDS = 60.0
_MAGIC = b"rungkv01"
#: Magic, CRC-32 of what stands before the blocks, number of tokens and of groups.
_HEAD = struct.Struct("<8sIII")
#: Number of a group, bytes and CRC-32 of its block.
_GROUP = struct.Struct("<IQI")
_HASH_BYTES = 16


@dataclass(frozen=True)
class PrefixFile:
    """A file of a node: the hash of its parent and its own, and where its tokens begin."""

    path: Path
    parent: bytes
    key: bytes
    start: int


class NewFile(NamedTuple):
    """A node to write: the hash of its parent, where its tokens begin, its tokens, and its blocks by their group."""

    parent: bytes
    start: int
    ids: Sequence[int]
    blocks: Mapping[int, Bytes]

    @property
    def nbytes(self) -> int:
        """Return the bytes of the file."""
        heads = _HEAD.size + 4 * len(self.ids) + _GROUP.size * len(self.blocks)
        return heads + sum(block.nbytes for block in self.blocks.values())


class PrefixFiles:
    """The files of a folder, of at most ``most`` bytes. Another thread may write while this one reads.

    ``on_problem`` is called with a sentence where nothing can be written, once until something can again.
    """

    def __init__(self, folder: Path, most: int, identity: bytes, on_problem: Callable[[str], None]) -> None:
        self._folder, self._most, self._identity, self._on_problem = folder, most, identity, on_problem
        #: When writing is tried again (``time.monotonic``), where the last try failed.
        self._retry: float | None = None
        self._process, self._writing = os.getpid(), threading.Lock()
        self._listed = -1
        self._children: dict[bytes, dict[bytes, PrefixFile]] = {}
        self._heads: dict[bytes, tuple[list[int], list[int]]] = {}

    @property
    def nbytes(self) -> int:
        """Return the bytes of all files."""
        total = 0
        with contextlib.suppress(OSError):
            for file in list_files(self._folder):
                total += file.path.stat().st_size
        return total

    def root(self, owner: str) -> bytes:
        """Return the hash that the first nodes of an owner have as their parent."""
        return hash_of(self._identity, owner.encode())

    @staticmethod
    def key(parent: bytes, ids: Sequence[int]) -> bytes:
        """Return the hash of a node after its parent's."""
        return hash_of(parent, np.asarray(ids, np.int32).tobytes())

    def children(self, parent: bytes) -> Mapping[bytes, PrefixFile]:
        """Return the files of the nodes after a parent, by their hash; none where the folder is gone."""
        try:
            changed = self._folder.stat().st_mtime_ns
            if changed != self._listed:  # this process or another one wrote
                files = list_files(self._folder)
                self._listed, self._children = changed, {}
                for each in files:
                    self._children.setdefault(each.parent, {})[each.key] = each
                self._heads = {each.key: self._heads[each.key] for each in files if each.key in self._heads}
        except OSError:
            self._children = {}
        return self._children.get(parent, {})

    def head(self, file: PrefixFile) -> tuple[list[int], list[int]]:
        """Return the tokens of a file and the groups that it has blocks of; nothing where it is damaged or gone."""
        if file.key not in self._heads:
            self._heads[file.key] = self._read_head(file)
        return self._heads[file.key]

    def _read_head(self, file: PrefixFile) -> tuple[list[int], list[int]]:
        with contextlib.suppress(OSError, struct.error, ValueError), open(file.path, "rb") as opened:
            ids, groups = unpack_head(opened)
            if self.key(file.parent, ids) == file.key:
                return ids, [group for group, _, _ in groups]
        return [], []

    def read(self, file: PrefixFile, blocks: Mapping[int, Bytes]) -> bool:
        """Read the blocks of some groups into arrays; return whether they are whole. A damaged file is taken away."""
        try:
            with open(file.path, "rb", buffering=0) as opened:
                _, groups = unpack_head(opened)
                for group, size, digest in groups:
                    if (block := blocks.get(group)) is None:
                        opened.seek(size, os.SEEK_CUR)
                    elif size != block.nbytes or opened.readinto(block.data) != size or crc32(block.data) != digest:
                        raise ValueError("damaged")
        except (OSError, struct.error, ValueError):
            self._remove(file.path)
            return False
        return blocks.keys() <= {group for group, _, _ in groups}

    def touch(self, files: Sequence[PrefixFile]) -> None:
        """Note a use of files, parents first."""
        for file in reversed(files):  # a parent is never older than its child
            with contextlib.suppress(OSError):
                os.utime(file.path)

    def write(self, nodes: Sequence[NewFile]) -> None:
        """Write the files of nodes, instead of those that are there; make room before."""
        with self._locked():
            if self._retry is not None and time.monotonic() < self._retry:
                return
            try:
                room = self._make_room(sum(node.nbytes for node in nodes))
                for node in nodes:
                    if node.nbytes <= room:
                        self._write(node)
                        room -= node.nbytes
                self._retry = None
            except OSError as error:
                is_new, self._retry = self._retry is None, time.monotonic() + RETRY_SECONDS
                if is_new:
                    reason = error.strerror or error
                    self._on_problem(
                        f"the prefix cache in {self._folder} cannot be written: {reason} (tried again each minute)"
                    )

    def _locked(self) -> threading.Lock:
        if self._process != os.getpid():  # a fork: its parent's threads, which may have the lock, are not here
            self._process, self._writing = os.getpid(), threading.Lock()
        return self._writing

    def forget_heads(self, keys: Iterable[bytes]) -> None:
        """Read the heads of these files again: they were written anew."""
        for key in keys:
            self._heads.pop(key, None)

    def _write(self, node: NewFile) -> None:
        key = self.key(node.parent, node.ids)
        number, name = tempfile.mkstemp(prefix=".", suffix=_PART, dir=self._folder)  # of mode 0600
        try:
            with open(number, "wb") as file:
                file.write(pack_head(node))
                for block in node.blocks.values():
                    file.write(block.data)
            os.replace(name, self._folder / f"{node.parent.hex()}-{key.hex()}-{node.start}{_SUFFIX}")
        except BaseException:
            self._remove(Path(name))
            raise

    def _make_room(self, size: int) -> int:
        """Take files away that were used longest ago until there is room for so many bytes, if there may be; return the
        room."""
        self._remove_abandoned()
        found = []
        for file in list_files(self._folder):
            with contextlib.suppress(FileNotFoundError):  # another process took it away
                about = file.path.stat()
                found.append((about.st_mtime_ns, -file.start, about.st_size, file.path))
        total = sum(each[2] for each in found)
        for _, _, taken, path in sorted(found):
            if total + size <= self._most:
                break
            self._remove(path)
            total -= taken
        return self._most - total

    def _remove_abandoned(self) -> None:
        """Take away what processes that were killed had begun to write."""
        for path in self._folder.glob(f".*{_PART}"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < time.time() - _ABANDONED:
                    path.unlink()

    @staticmethod
    def _remove(path: Path) -> None:
        with contextlib.suppress(OSError):
            path.unlink()


def unpack_head(file: IO[bytes]) -> tuple[list[int], list[tuple[int, int, int]]]:
    """Read the head of a file; return its tokens, and the number, the bytes and the CRC of each group's block.

    Raises ``ValueError`` and ``struct.error`` for one that is damaged.
    """
    magic, digest, count, groups = _HEAD.unpack(file.read(_HEAD.size))
    rest = file.read(4 * count + groups * _GROUP.size)
    if magic != _MAGIC or crc32(rest) != digest:
        raise ValueError("damaged")
    return np.frombuffer(rest, np.int32, count).tolist(), list(_GROUP.iter_unpack(rest[4 * count :]))


def pack_head(node: NewFile) -> bytes:
    """Return the bytes that stand before the blocks of a node."""
    groups = (_GROUP.pack(group, block.nbytes, crc32(block.data)) for group, block in node.blocks.items())
    rest = np.asarray(node.ids, np.int32).tobytes() + b"".join(groups)
    return _HEAD.pack(_MAGIC, crc32(rest), len(node.ids), len(node.blocks)) + rest


def list_files(folder: Path) -> list[PrefixFile]:
    """Return the files of a prefix cache in a folder, and nothing else that may be there."""
    found = []
    for path in folder.iterdir():
        parent, _, rest = path.name.removesuffix(_SUFFIX).partition("-")
        key, _, start = rest.partition("-")
        hashes = [part for part in (parent, key) if len(part) == 2 * _HASH_BYTES]
        if path.suffix == _SUFFIX and len(hashes) == 2 and start.isdecimal():
            with contextlib.suppress(ValueError):
                found.append(PrefixFile(path, bytes.fromhex(parent), bytes.fromhex(key), int(start)))
    return found


def hash_of(*parts: bytes) -> bytes:
    """Return a hash of some parts, 16 bytes; other parts have another one however they are cut."""
    digest = hashlib.blake2b(digest_size=_HASH_BYTES)
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


#: Bytes of a folder whose size is not named.
_USUAL_BYTES = 4 << 30
#: The file in ``RUNG_CACHE`` that names the folders that were used.
_LIST = "prefix-caches"


def open_folder(text: str, option: str = "--prefix-cache") -> tuple[Path, int]:
    """Return the folder of ``DIR`` or ``DIR:SIZE``, which is made if need be, and the most bytes for it.

    Raises ``UsageError`` for a size that is none and for a folder that cannot be written.
    """
    name, _, size = text.rpartition(":")
    folder, most = Path(text), _USUAL_BYTES
    if name and size[:1].isdecimal():
        try:
            folder, most = Path(name), parse_size(size)
        except ValueError as error:
            raise UsageError(
                f"{option} {text}: {error}.", ["it is DIR or DIR:SIZE"], [f"{option} {name}:4GB"]
            ) from error
    folder = folder.expanduser().absolute()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        writable = os.access(folder, os.R_OK | os.W_OK | os.X_OK)
        reason = "" if writable else "permission denied"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise UsageError(
            f"{folder} cannot hold the files of {option}: {reason}.",
            [],
            [f"{option} ./{option.strip('-')}"],
            code="output-unwritable",
        )
    if option == "--prefix-cache":
        _remember(folder)
    return folder, most


def _remember(folder: Path) -> None:
    """Add a folder to the list; where the list cannot be written ``rung cache clear DIR`` is left."""
    names = [str(each) for each in known_folders()]
    with contextlib.suppress(OSError):
        if str(folder) not in names:
            CACHE.read().mkdir(parents=True, exist_ok=True)
            (CACHE.read() / _LIST).write_text("\n".join([*names, str(folder)]) + "\n")


def known_folders() -> list[Path]:
    """Return the folders that were used on this machine and are there still."""
    try:
        lines = (CACHE.read() / _LIST).read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    return [path for path in map(Path, lines) if path.is_dir()]


def clear_folder(folder: Path) -> tuple[int, int]:
    """Take the files of prefixes away; return how many there were, and their bytes."""
    files = size = 0
    for each in list_files(folder):
        with contextlib.suppress(OSError):  # another process took it away
            taken = each.path.stat().st_size
            each.path.unlink()
            files, size = files + 1, size + taken
    return files, size
