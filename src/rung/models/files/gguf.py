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
import os
import re
import struct
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

from rung import formats
from rung.core.errors import BadFile, ModelNotFound
from rung.core.files import state_of
from rung.core.text import count as counted
from rung.core.text import size
from rung.core.types import Format
from rung.models.files.file_sniffing import foreign
from rung.models.files.tensors import FileTensor, check_places, truncated, unsound


class Numbers(Sequence[Any]):
    """An array of numbers or booleans; ``code`` is their type as ``array`` names it, little-endian as in the file."""

    def __init__(self, data: bytes, code: str, boolean: bool = False) -> None:
        self._array = array(code, data)
        self._boolean = boolean

    def __len__(self) -> int:
        return len(self._array)

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        part = self._array[index]
        if isinstance(part, array):
            return [bool(value) for value in part] if self._boolean else part.tolist()
        return bool(part) if self._boolean else part

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tolist())

    def tolist(self) -> list[Any]:
        """All values, as Python's."""
        return list(self[:])


class Strings(Sequence[str]):
    """An array of strings, kept as the bytes of the file (8 bytes of length, then UTF-8) and where each begins.

    Bytes that are no UTF-8 become U+FFFD: some vocabularies have such tokens.
    """

    def __init__(self, data: bytes, offsets: array[int]) -> None:
        self._data = data
        self._offsets = offsets

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._text(begin) for begin in self._offsets[index]]
        return self._text(self._offsets[index])

    def _text(self, begin: int) -> str:
        end = begin + 8 + int.from_bytes(self._data[begin : begin + 8], "little")
        return self._data[begin + 8 : end].decode("utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        return iter(self.tolist())

    def tolist(self) -> list[str]:
        """All strings."""
        begins = self._offsets.tolist()
        ends = [*begins[1:], len(self._data)]
        data = self._data
        return [data[begin + 8 : end].decode("utf-8", "replace") for begin, end in zip(begins, ends, strict=False)]

    def find(self, texts: Iterable[str]) -> dict[str, int]:
        """The first index of each of ``texts`` that is there, without decoding the others."""
        found = {text: self._first(text.encode()) for text in texts}
        return {text: index for text, index in found.items() if index is not None}

    def _first(self, raw: bytes) -> int | None:
        stored = len(raw).to_bytes(8, "little") + raw
        at = self._data.find(stored)
        while at >= 0:  # the same bytes may stand inside of another string
            index = bisect_left(self._offsets, at)
            if index < len(self._offsets) and self._offsets[index] == at:
                return index
            at = self._data.find(stored, at + 1)
        return None


#: Parts of a bundle begin at multiples of this: pages have 64 kB at most where models are mapped.
BUNDLE_ALIGNMENT = 2**16
#: Bytes at the beginning of a bundle in which the line must stand.
_HEAD = 4096
_LINE = re.compile(rb"^# rung bundle: GGUF model at (\d{1,15}), (\d{1,15}) bytes, sha256 ([0-9a-f]{64})$", re.MULTILINE)


@dataclass(frozen=True)
class Extent:
    """Bytes [begin, end) of a file; ``sha256`` is their hash in hex where the file says it."""

    begin: int
    end: int
    sha256: str = ""


def model_line(size: int, sha256: str) -> str:
    """Return the line that says where a model of ``size`` bytes lies in a bundle."""
    return f"# rung bundle: GGUF model at {BUNDLE_ALIGNMENT}, {size} bytes, sha256 {sha256}"


def find_model(path: Path) -> Extent | None:
    """Return where the GGUF model in a file lies, or None for a file that is neither GGUF nor a bundle.

    Raises ``BadFile`` for a bundle that is cut off, ``OSError`` for a file that cannot be read.
    """
    with open(path, "rb") as file:
        head, length = file.read(_HEAD), os.fstat(file.fileno()).st_size
    if head.startswith(b"GGUF"):
        return Extent(0, length)
    line = _LINE.search(head) if head.startswith(b"#!") else None
    if line is None:
        return None
    begin = int(line[1])
    extent = Extent(begin, begin + int(line[2]), line[3].decode())
    if extent.end > length:
        raise BadFile(
            f"{path.name} is a bundle that was cut off.",
            [f"its model ends at byte {extent.end:,}, the file at {length:,}"],
            ["copy or fetch the file again"],
            code="file-truncated",
        )
    return extent


def is_gguf(path: Path) -> bool:
    """Return whether a file has a GGUF model. Raises ``BadFile`` where it cannot be read or is a bundle cut off."""
    try:
        return find_model(path) is not None
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror or error}", code="file-unreadable") from error


def identity(paths: Sequence[Path]) -> str:
    """Return a name of a model's files that changes when they do: of a bundle, which is copied from machine to machine,
    the hash of its model; else what ``state_of`` says. Raises ``OSError``."""
    extent = find_model(paths[0]) if len(paths) == 1 else None
    return extent.sha256 if extent is not None and extent.sha256 else state_of(paths)


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


_NAME = re.compile(r"(?P<stem>.+)-(?P<part>\d{5})-of-(?P<all>\d{5})(?P<suffix>\.gguf)", re.IGNORECASE)
_MOST_PARTS = 1024


def part_names(name: str) -> tuple[str, ...]:
    """The names of all parts of the model that a file of this name is a part of; the name alone for a whole model."""
    found = _NAME.fullmatch(name)
    if not found or not 1 <= int(found["all"]) <= _MOST_PARTS:
        return (name,)
    parts = range(1, int(found["all"]) + 1)
    return tuple(f"{found['stem']}-{part:05d}-of-{found['all']}{found['suffix']}" for part in parts)


def read_parts(path: Path) -> tuple[Header, ...]:
    """The headers of all parts of a GGUF model, the first with its metadata first; any part may be given.

    Raises ``ModelNotFound`` that names the missing parts, ``BadFile`` when the parts do not belong together.
    """
    names = part_names(path.name)
    missing = [name for name in names if not (path.parent / name).is_file()]
    if missing:
        raise ModelNotFound(
            f"{path.name} is one of {counted(len(names), 'part')}, and {counted(len(missing), 'part')} cannot be found",
            [f"missing in {path.parent}: {name}" for name in missing[:20]],
            [f"hf download ORG/REPO {missing[0]}"],
            code="model-incomplete",
        )
    headers = tuple(read_header(path.parent / name) for name in names)
    _check(headers)
    return headers


def _check(headers: tuple[Header, ...]) -> None:
    for number, header in enumerate(headers):
        count, own = header.metadata.get("split.count", 1), header.metadata.get("split.no", 0)
        if count not in (len(headers), 0) or (len(headers) > 1 and own != number):
            raise BadFile(
                f"{header.path.name} says that it is part {own} of {count} (counted from 0), its name says otherwise",
                ["the parts of a model must keep the names NAME-00001-of-0000N.gguf"],
            )
    names = [tensor.name for header in headers for tensor in header.tensors]
    if len(set(names)) != len(names):
        known: set[str] = set()
        twice = next(name for name in names if name in known or known.add(name))  # type: ignore[func-returns-value]
        raise BadFile(f"The tensor {twice} is in two parts of {headers[0].path.name}")
    total = headers[0].metadata.get("split.tensors.count", len(names))
    if len(headers) > 1 and total != len(names):
        raise BadFile(f"The parts of {headers[0].path.name} hold {len(names)} tensors, and should hold {total}")


#: Bytes that every tensor begins at a multiple of.
TENSOR_ALIGNMENT = 32
_TYPE_U32, _TYPE_F32, _TYPE_BOOL, _TYPE_STRING, _TYPE_ARRAY, _TYPE_U64, _TYPE_I32 = 4, 6, 7, 8, 9, 10, 5


def pair(key: str, value: Any) -> bytes:
    """A key and its value: bool, int (u32, or u64 where it needs it), float (f32), str, or a list of one of them.

    Lists of int are i32: these are the types that llama.cpp asks for.
    """
    return _text(key) + _value(value)


def head(pairs: Iterable[bytes], tensors: Sequence[tuple[str, tuple[int, ...], Format]]) -> tuple[bytes, list[int]]:
    """The bytes before the weights, and where in the file each tensor (name, shape row major, format) begins.

    ``pairs`` come from ``pair`` or ``gguf.raw_pairs``.
    """
    listed = list(pairs)
    infos, offsets, at = [], [], 0
    for name, shape, format in tensors:
        number = formats.gguf_number(format)
        assert number is not None, f"GGUF has no {format.name}"
        dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *reversed(shape))
        infos.append(_text(name) + dimensions + struct.pack("<IQ", number, at))
        offsets.append(at)
        at += -(-format.bytes(shape) // TENSOR_ALIGNMENT) * TENSOR_ALIGNMENT
    result = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(listed)) + b"".join(listed) + b"".join(infos)
    result += bytes(-len(result) % TENSOR_ALIGNMENT)
    return result, [len(result) + offset for offset in offsets]


def _text(text: str) -> bytes:
    data = text.encode("utf-8")
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    if isinstance(value, list):
        kind = _kind(value[0], _TYPE_I32) if value else _TYPE_I32
        return struct.pack("<IIQ", _TYPE_ARRAY, kind, len(value)) + b"".join(_bare(item, kind) for item in value)
    kind = _kind(value, _TYPE_U32 if not isinstance(value, int) or value < 2**32 else _TYPE_U64)
    return struct.pack("<I", kind) + _bare(value, kind)


def _kind(value: Any, whole: int) -> int:
    return {bool: _TYPE_BOOL, int: whole, float: _TYPE_F32, str: _TYPE_STRING}[type(value)]


def _bare(value: Any, kind: int) -> bytes:
    if kind == _TYPE_STRING:
        return _text(value)
    return struct.pack(
        {_TYPE_U32: "<I", _TYPE_F32: "<f", _TYPE_BOOL: "<?", _TYPE_U64: "<Q", _TYPE_I32: "<i"}[kind], value
    )
