"""Headers of GGUF files, versions 2 and 3, little-endian.

Layout (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): magic, version, number of tensors, number of
key-value pairs, the pairs, the tensors' names, shapes, types and offsets, padding, the tensors' data. Every count is
compared with the bytes that are left before anything is allocated for it.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import mmap
import struct
from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rung import formats
from rung.core.errors import BadFile
from rung.core.text import size
from rung.models.files.arrays import Numbers, Strings
from rung.models.files.bundled import Extent, find_model
from rung.models.files.file_sniffing import foreign
from rung.models.files.tensors import FileTensor, check_places, truncated, unsound

_KIND = "GGUF"
_SCALARS = {
    0: struct.Struct("<B"), 1: struct.Struct("<b"), 2: struct.Struct("<H"), 3: struct.Struct("<h"),
    4: struct.Struct("<I"), 5: struct.Struct("<i"), 6: struct.Struct("<f"), 7: struct.Struct("<?"),
    10: struct.Struct("<Q"), 11: struct.Struct("<q"), 12: struct.Struct("<d"),
}  # fmt: skip
_STRING, _ARRAY = 8, 9
#: The types of numbers as ``array`` names them.
_ARRAY_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")

# Far above every real file, and low enough that Python objects for them stay small.
MOST_PAIRS = 2**14
MOST_TENSORS = 2**15
MOST_STRINGS = 2**22
MOST_TEXT = 2**24
_MOST_DIMENSIONS = 4
_LONGEST_KEY = 256
_LONGEST_NAME = 128
_LARGEST_ALIGNMENT = 2**20


@dataclass(frozen=True)
class Header:
    """Hold what a GGUF file says before its tensors' data. Arrays are ``Numbers`` or ``Strings``, both sequences."""

    path: Path
    version: int
    metadata: dict[str, Any]
    tensors: tuple[FileTensor, ...]


def read_header(path: Path) -> Header:
    """The metadata and the tensors of a GGUF file, checked against its size; no weight is read.

    Raises ``BadFile`` (``UnsafeFile`` for a pickle) that says what is wrong and where.
    """
    try:
        with _opened(path) as parser:
            return parser.header()
    except (OSError, ValueError) as error:
        raise BadFile(f"{path} cannot be read: {error}", code="file-unreadable") from error


def raw_pairs(path: Path) -> dict[str, bytes]:
    """The key-value pairs of a GGUF file by their keys, as the file's own bytes: types of numbers included."""
    with _opened(path) as parser:
        parser.header()
        return {key: parser.data[begin:end] for key, (begin, end) in parser.places.items()}


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[_Parser]:
    """A parser of the GGUF model in a file, which may be a bundle; closed with the block."""
    extent = find_model(path)
    if extent is None:
        raise foreign(path, "a GGUF file")
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[extent.begin : extent.begin + 4] != b"GGUF":
            raise unsound(path.name, _KIND, f"no model begins at byte {extent.begin:,}", ())
        yield _Parser(path, data, extent)


class _Parser:
    """Walks over the header; ``at`` is the next byte. All places are those in the whole file."""

    def __init__(self, path: Path, data: mmap.mmap, extent: Extent) -> None:
        self.path, self.data, self.begin, self.length = path, data, extent.begin, extent.end
        self.at = extent.begin + 4
        self.places: dict[str, tuple[int, int]] = {}
        self.strings = 0
        self.text = 0

    def bad(self, what: str, *facts: str) -> BadFile:
        return unsound(self.path.name, _KIND, what, facts)

    def header(self) -> Header:
        version = self._version()
        tensor_count, pair_count = self._take(_U64, "the number of tensors"), self._take(_U64, "the number of keys")
        self._check_count("tensors", tensor_count, MOST_TENSORS, 24)
        self._check_count("keys", pair_count, MOST_PAIRS, 13)
        metadata: dict[str, Any] = {}
        for _ in range(pair_count):
            begin = self.at
            key = self._text("a key", _LONGEST_KEY)
            if not key:
                raise self.bad(f"it has a key without a name before byte {self.at:,}")
            if key in metadata:
                raise self.bad(f"the key {key} is there twice")
            metadata[key] = self._value(key, self._take(_U32, f"the type of {key}"))
            self.places[key] = begin, self.at
        infos = [self._info() for _ in range(tensor_count)]
        alignment = self._alignment(metadata)
        start = self.begin - (self.begin - self.at) // alignment * alignment
        tensors = tuple(self._stored(info, start, alignment) for info in infos)
        if len({tensor.name for tensor in tensors}) != len(tensors):
            names = sorted(tensor.name for tensor in tensors)
            twice = next(a for a, b in itertools.pairwise(names) if a == b)
            raise self.bad(f"the tensor {twice} is there twice")
        check_places(tensors, self.path.name, _KIND, self.length)
        return Header(self.path, version, metadata, tensors)

    def _version(self) -> int:
        version = int(self._take(_U32, "the version"))
        if version in (2, 3):
            return version
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        if swapped in (2, 3):
            raise BadFile(
                f"{self.path.name} is a big-endian GGUF file; rung reads little-endian ones",
                ways_out=["take the usual, little-endian file of the model:  rung run ORG/REPO"],
                code="file-version-unsupported",
            )
        if version == 1:
            raise BadFile(
                f"{self.path.name} is a GGUF file of version 1, which nobody writes since August 2023",
                ["rung reads versions 2 and 3"],
                ["convert the model again with a current llama.cpp, or take a newer file"],
                code="file-version-unsupported",
            )
        raise BadFile(
            f"{self.path.name} is a GGUF file of version {version}",
            ["rung reads versions 2 and 3"],
            ["take a file of version 3, or convert the model again with llama.cpp's convert_hf_to_gguf.py"],
            code="file-version-unsupported",
        )

    def _check_count(self, what: str, count: int, most: int, least_bytes: int) -> None:
        left = self.length - self.at
        if count > left // least_bytes:
            raise self.bad(f"it claims {count:,} {what}, and {left:,} bytes are left for them")
        if count > most:
            raise self.bad(f"it claims {count:,} {what}; rung reads up to {most:,}")

    def _take(self, struct_: struct.Struct, what: str) -> Any:
        self._need(struct_.size, what)
        (value,) = struct_.unpack_from(self.data, self.at)
        self.at += struct_.size
        return value

    def _need(self, count: int, what: str) -> None:
        if count > self.length - self.at:
            end = self.at + count
            raise truncated(self.path.name, _KIND, f"{what} ends at byte {end:,}, the file at {self.length:,}")

    def _text(self, what: str, most: int) -> str:
        count = self._take(_U64, what)
        if count > most:
            raise self.bad(f"{what} is {size(count)} long; rung reads up to {size(most)}")
        self._need(count, what)
        data = self.data[self.at : self.at + count]
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise self.bad(f"{what} is not UTF-8 at byte {self.at + error.start:,}") from error
        self.at += count
        return text

    def _value(self, key: str, kind: int) -> Any:
        if kind == _STRING:
            text = self._text(f"the text of {key}", MOST_TEXT)
            self.text += len(text)
            if self.text > MOST_TEXT:
                raise self.bad(f"its texts are longer than {size(MOST_TEXT)} together")
            return text
        if kind == _ARRAY:
            return self._array(key)
        if kind not in _SCALARS:
            raise self.bad(f"the key {key} has the unknown type {kind}")
        return self._take(_SCALARS[kind], f"the value of {key}")

    def _array(self, key: str) -> Numbers | Strings:
        kind, count = self._take(_U32, f"the type of {key}"), self._take(_U64, f"the length of {key}")
        if kind == _STRING:
            return self._string_array(key, count)
        if kind not in _ARRAY_CODES:
            raise self.bad(f"the array {key} has elements of the unknown type {kind}")
        width = _SCALARS[kind].size
        self._need(count * width, f"the array {key}")
        data = self.data[self.at : self.at + count * width]
        self.at += count * width
        return Numbers(data, _ARRAY_CODES[kind], boolean=kind == 7)

    def _string_array(self, key: str, count: int) -> Strings:
        self._need(8 * count, f"the array {key}")
        self.strings += count
        if self.strings > MOST_STRINGS:
            raise self.bad(f"it claims {self.strings:,} strings; rung reads up to {MOST_STRINGS:,}")
        start, at, limit = self.at, self.at, self.length - 8
        offsets = array("Q", [0]) * count
        unpack, data = _U64.unpack_from, self.data
        for index in range(count):
            if at > limit:
                break
            offsets[index] = at - start
            at += 8 + unpack(data, at)[0]
        else:
            limit = self.length
        if at > limit:
            raise truncated(self.path.name, _KIND, f"the array {key} goes on past its end at byte {self.length:,}")
        self.at = at
        return Strings(data[start:at], offsets)

    def _info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._text("a tensor's name", _LONGEST_NAME)
        count = self._take(_U32, f"tensor {name}")
        if not 1 <= count <= _MOST_DIMENSIONS:
            raise self.bad(f"tensor {name} has {count} dimensions")
        self._need(8 * count + 12, f"tensor {name}")
        shape = struct.unpack_from(f"<{count}Q", self.data, self.at)
        self.at += 8 * count
        return name, shape, self._take(_U32, f"the type of {name}"), self._take(_U64, f"the offset of {name}")

    def _alignment(self, metadata: dict[str, Any]) -> int:
        alignment = metadata.get("general.alignment", 32)
        power = isinstance(alignment, int) and alignment > 0 and alignment & (alignment - 1) == 0
        if isinstance(alignment, bool) or not power or alignment > _LARGEST_ALIGNMENT:
            raise self.bad(
                f"general.alignment is {str(alignment)[:40]}, not a power of two up to {_LARGEST_ALIGNMENT:,}"
            )
        return int(alignment)

    def _stored(self, info: tuple[str, tuple[int, ...], int, int], start: int, alignment: int) -> FileTensor:
        name, dimensions, kind, offset = info
        shape = tuple(reversed(dimensions))
        if math.prod(shape) == 0 or math.prod(shape) >= 2**60:
            raise self.bad(f"tensor {name} has the shape {list(shape)}")
        if offset % alignment:
            raise self.bad(f"tensor {name} begins at {offset:,} of the data, which the alignment {alignment} forbids")
        found = formats.gguf_type(kind)
        if found is None:
            raise BadFile(
                f"{self.path.name}: tensor {name} has the type number {kind}, which rung does not know",
                ["it was removed from GGUF, is newer than this rung, or the file is damaged"],
                ["rung formats   # the types that rung reads", "take another quantization:  rung run ORG/REPO:Q4_K_M"],
            )
        if not found.divides(shape[-1]):
            raise self.bad(f"tensor {name} of {found.name} has rows of {shape[-1]}, and its blocks hold {found.block}")
        return FileTensor(name, shape, found.name, True, start + offset, found.bytes(shape))
