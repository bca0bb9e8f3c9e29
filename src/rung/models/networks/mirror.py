"""A repository of the hub as a folder of this machine in which only the headers of weight files are real.

Weight files are sparse: as long as the real ones, with nothing but their headers in them. So whatever reads local
headers reads those of the hub, with all of its checks.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from pathlib import Path

from rung.core.errors import BadFile, HubError
from rung.core.shield import Workers
from rung.core.text import size
from rung.models.architectures.family import FREQUENCY_TENSORS
from rung.models.files import gguf
from rung.models.files.gguf_remote import Far, Lost
from rung.models.files.jsonfile import LIMIT
from rung.models.hub import Listing
from rung.models.hub.ranges import Ranges

#: First bytes of a safetensors file; most headers are shorter.
_SAFETENSORS = 2**15
#: First bytes of a GGUF file, whose vocabulary stands before the list of tensors, and the most that is tried.
_GGUF, _MOST_GGUF = 2**20, 2**25
_AT_ONCE = 8


class Mirror:
    """Files of a repository below ``folder``."""

    def __init__(self, ranges: Ranges, listed: Listing, folder: Path) -> None:
        self._ranges, self._listed, self._folder = ranges, listed, folder

    def small(self, name: str, limit: int = LIMIT) -> None:
        """Copies a JSON file. Raises ``HubError`` for one that is too long to be what it is called."""
        length = self._listed.files[name]
        if length > limit:
            raise HubError(
                f"{name} of {self._listed.repository} is {size(length)} long; rung reads up to {size(limit)}."
            )
        self._local_path(name).write_bytes(self._ranges.first(name, length, length) if length else b"")

    def headers(self, names: Iterable[str]) -> None:
        """Copies the headers of safetensors and GGUF files, several at once."""
        with Workers(_AT_ONCE) as pool:
            pool.map(self._header, names)

    def _header(self, name: str) -> None:
        (self._gguf if name.lower().endswith(".gguf") else self._safetensors)(name)

    def _safetensors(self, name: str) -> None:
        length = self._listed.files[name]
        data = self._ranges.first(name, _SAFETENSORS, length)
        count = min(8 + int.from_bytes(data[:8], "little"), length, LIMIT + 8)
        if count > len(data):
            data += self._ranges.first(name, count - len(data), length, len(data))
        self._sparse(name, data, length)

    def _gguf(self, name: str) -> None:
        """The header without its vocabulary where that can be stepped over, and the small tensors that cards are made
        of."""
        length = self._listed.files[name]
        try:
            data, moved = Far(functools.partial(self._part, name), length).short()
            path = self._sparse(name, data, length - moved)
            header = gguf.read_header(path)
        except (Lost, BadFile):  # read from its beginning it is whole, or the reader says what is wrong with it
            moved = 0
            path, header = self._whole_header(name)
        for tensor in header.tensors:
            if tensor.name in FREQUENCY_TENSORS and tensor.bytes <= LIMIT:
                with open(path, "r+b") as file:
                    file.seek(tensor.offset)
                    file.write(self._ranges.first(name, tensor.bytes, length, tensor.offset + moved))

    def _part(self, name: str, first: int, count: int) -> bytes:
        length = self._listed.files[name]
        return self._ranges.first(name, count, length, first) if first < length else b""

    def _whole_header(self, name: str) -> tuple[Path, gguf.Header]:
        """Reads on until the list of tensors is whole."""
        length, count, data = self._listed.files[name], _GGUF, b""
        while True:
            data += self._ranges.first(name, count - len(data), length, len(data)) if count > len(data) else b""
            path = self._sparse(name, data, length)
            try:
                header = gguf.read_header(path)
                if min((tensor.offset for tensor in header.tensors), default=0) <= len(data) or len(data) >= length:
                    return path, header
            except BadFile:  # or the bytes that are not here yet
                if data[:4] != b"GGUF" or len(data) >= min(length, _MOST_GGUF):
                    raise
            count = min(2 * len(data), length, _MOST_GGUF)

    def _sparse(self, name: str, data: bytes, length: int) -> Path:
        path = self._local_path(name)
        with open(path, "wb") as file:
            file.write(data)
            file.truncate(length)
        return path

    def _local_path(self, name: str) -> Path:
        path = self._folder / name
        if not path.resolve().is_relative_to(self._folder.resolve()):
            raise HubError(f"{self._listed.repository} lists a file {name[:80]!r}, which lies outside of it.")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path
