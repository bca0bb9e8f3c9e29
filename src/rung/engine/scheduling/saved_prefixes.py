"""Keys and values of one conversation in one file, under a name that whoever saves it chooses.

A file has the nodes of a tree of prefixes one after the other, each as ``rung.engine.scheduling.prefix_files`` writes
it. The name is part of a hash only, together with the model, how it computes and the owner: it is never joined to a
path, and nobody finds what another owner or model has saved. A file is there whole or not at all; its bytes are checked
when they are read.
"""

from __future__ import annotations

import contextlib
import os
import struct
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO
from zlib import crc32

from rung.core.errors import BadFile, DiskFull, UsageError
from rung.core.text import size
from rung.engine.scheduling.prefix_cache import PrefixCache
from rung.engine.scheduling.prefix_files import Bytes, NewFile, PrefixFile, hash_of, pack_head, unpack_head

_SUFFIX, _PART = ".slot", ".part"
_MAGIC = b"rungsl02"
#: Magic, number of nodes, bytes of the key of the adapter that follows, CRC-32 of all of them.
_HEAD = struct.Struct("<8sIHI")


class SavedPrefix:
    """A file that is read: its nodes, parents first. Raises ``BadFile`` for one that is damaged."""

    def __init__(self, path: Path) -> None:
        self._path = path
        #: Whether a block was not what was written.
        self.damaged = False
        self.nodes: list[PrefixFile] = []
        self._heads: list[tuple[list[int], list[tuple[int, int, int]], int]] = []
        try:
            with open(path, "rb") as file:
                self.nbytes = os.fstat(file.fileno()).st_size
                magic, count, length, digest = _HEAD.unpack(file.read(_HEAD.size))
                key = file.read(length)
                if magic != _MAGIC or digest != _digest(count, key):
                    raise ValueError("damaged")
                #: The key of the adapter by which it was computed, empty for none.
                self.adapter = key.decode()
                for number in range(count):
                    self._read_node(file, number)
                if file.tell() != self.nbytes:
                    raise ValueError("damaged")
        except (struct.error, ValueError) as error:
            raise _damaged() from error

    def _read_node(self, file: IO[bytes], number: int) -> None:
        ids, groups = unpack_head(file)
        offset = file.tell()
        file.seek(sum(count for _, count, _ in groups), os.SEEK_CUR)
        start = self.nodes[-1].start + len(self._heads[-1][0]) if self.nodes else 0
        self.nodes.append(PrefixFile(self._path, b"", number.to_bytes(4, "little"), start))
        self._heads.append((ids, groups, offset))

    @property
    def ids(self) -> list[int]:
        """Return the tokens of all nodes."""
        return [token for ids, _, _ in self._heads for token in ids]

    def head(self, file: PrefixFile) -> tuple[list[int], list[int]]:
        """Return the tokens of a node and the groups that it has blocks of."""
        ids, groups, _ = self._heads[int.from_bytes(file.key, "little")]
        return ids, [group for group, _, _ in groups]

    def read(self, file: PrefixFile, blocks: Mapping[int, Bytes]) -> bool:
        """Read the blocks of some groups of a node into arrays; return whether they are whole. Any thread may call."""
        _, groups, offset = self._heads[int.from_bytes(file.key, "little")]
        try:
            with open(self._path, "rb", buffering=0) as opened:
                for group, count, digest in groups:
                    opened.seek(offset)
                    offset += count
                    if (block := blocks.get(group)) is None:
                        continue
                    if count != block.nbytes or opened.readinto(block.data) != count or crc32(block.data) != digest:
                        raise ValueError("damaged")
        except (OSError, ValueError):
            self.damaged = True
            return False
        return True


class SavedPrefixes:
    """The files of a folder, of at most ``most`` bytes, for a model and its way of computing (``identity``)."""

    def __init__(self, folder: Path, most: int, identity: bytes) -> None:
        self._folder, self._most, self._identity = folder, most, identity

    def _path(self, owner: str, name: str) -> Path:
        return self._folder / (hash_of(self._identity, owner.encode(), name.encode()).hex() + _SUFFIX)

    def save(self, nodes: Sequence[NewFile], owner: str, name: str, adapter: str = "") -> tuple[int, int]:
        """Write nodes that follow each other, computed by the adapter of a key; return how many tokens and bytes that
        are.

        Raises ``UsageError`` where the folder would have more than its bytes, ``DiskFull`` where nothing can be
        written.
        """
        path = self._path(owner, name)
        key = adapter.encode()
        head = _HEAD.pack(_MAGIC, len(nodes), len(key), _digest(len(nodes), key)) + key
        count = len(head) + sum(node.nbytes for node in nodes)
        try:
            self._check_room(path, count)
            self._write(path, head, nodes)
        except OSError as error:
            raise DiskFull(
                f"The slot is not saved: {error.strerror or error}.", ways_out=["free space where --slot-save-path is"]
            ) from error
        return sum(len(node.ids) for node in nodes), count

    def _check_room(self, path: Path, count: int) -> None:
        """Raise ``UsageError`` where the folder has no room for a file beside its others."""
        taken = 0
        for each in self._folder.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(FileNotFoundError):
                taken += each.stat().st_size if each != path else 0
        if taken + count > self._most:
            raise UsageError(
                f"The slot takes {size(count)}, and saved ones take {size(taken)} of {size(self._most)}.",
                ways_out=["save it under a name that is there", "rung serve --slot-save-path DIR:SIZE"],
            )

    def _write(self, path: Path, head: bytes, nodes: Sequence[NewFile]) -> None:
        number, part = tempfile.mkstemp(prefix=".", suffix=_PART, dir=self._folder)  # of mode 0600
        try:
            with open(number, "wb") as file:
                file.write(head)
                for node in nodes:
                    file.write(pack_head(node))
                    for block in node.blocks.values():
                        file.write(block.data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise

    def restore(
        self, prefixes: PrefixCache, owner: str, name: str, tree: Callable[[str], str]
    ) -> tuple[str, list[int], int, int]:
        """Read a file into the ``tree`` of its adapter's key; return this key, the tokens of the file, how many of them
        a sequence can begin with, and its bytes.

        Raises ``UsageError`` where there is none of that name, ``BadFile`` for one that is damaged.
        """
        try:
            saved = SavedPrefix(self._path(owner, name))
        except FileNotFoundError as error:
            raise UsageError(
                f"No slot is saved as {name}.", ["this model, computed as it is now, and this key have saved none"]
            ) from error
        except OSError as error:
            raise UsageError(f"{name} cannot be read: {error.strerror or error}.") from error
        count = prefixes.restore(saved, saved.nodes, tree(saved.adapter))
        if saved.damaged:
            raise _damaged()
        return saved.adapter, saved.ids, count, saved.nbytes


def _digest(count: int, key: bytes) -> int:
    """Return the CRC-32 of a file's head."""
    return crc32(key, crc32(struct.pack("<IH", count, len(key)), crc32(_MAGIC)))


def _damaged() -> BadFile:
    return BadFile("The file of the slot is damaged.", ["its checks do not fit its bytes"], ["save the slot again"])
