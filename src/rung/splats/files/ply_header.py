"""The header of a PLY file: which elements it holds, and where they begin."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from rung.core.errors import BadFile

#: Bytes within which a header must end: 62 properties take 1.5 kB.
_MOST = 1 << 16
_TYPES = {"char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4"}
_TYPES |= {"float": "f4", "double": "f8", "int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2"}
_TYPES |= {"int32": "i4", "uint32": "u4", "float32": "f4", "float64": "f8"}
_ORDERS = {"binary_little_endian": "<", "binary_big_endian": ">"}


class Element(NamedTuple):
    """``number`` rows of ``kind``, from byte ``begin`` on."""

    name: str
    number: int
    kind: np.dtype
    begin: int


def bad(path: Path, why: str, *ways: str) -> BadFile:
    """The error of a PLY file that holds no splats."""
    return BadFile(
        f"{path} is not a file of splats: {why}.", [], list(ways) or ["export the scene again, as binary PLY"]
    )


def elements(path: Path) -> dict[str, Element]:
    """The elements of a binary PLY file by name, up to the first with lists (meshes have them).

    Raises ``BadFile`` for what is no header, for ASCII and for properties that are not there, and ``OSError``.
    """
    with path.open("rb") as file:
        data = file.read(_MOST)
    end = data.find(b"end_header")
    if not data.startswith(b"ply"):
        raise bad(path, "it does not begin with the letters ply" if data else "it is empty")
    if end < 0:
        short = len(data) < _MOST
        raise bad(
            path,
            "it ends within its header: it was cut off" if short else "its header does not end within 64 kB",
            *(["copy or download it again"] if short else []),
        )
    order, found = "", list[tuple[str, int, list[tuple[str, str]]]]()
    for line in data[:end].decode("latin-1").splitlines()[1:]:
        match line.split():
            case ["format", name, "1.0"]:
                order = _ORDERS.get(name, "")
                if not order:
                    raise bad(path, f"it is {name}, and splats are read from binary files", "convert it to binary PLY")
            case ["element", name, digits] if digits.isdecimal() and len(digits) < 19:
                found.append((name, int(digits), []))
            case ["property", "list", *_] if found:
                found[-1][2].append(("", "list"))
            case ["property", kind, name] if found and kind in _TYPES:
                found[-1][2].append((name, _TYPES[kind]))
            case ["element" | "property" | "format", *_]:
                raise bad(path, f"its header has the line {line.strip()[:80]!r}")
    if not order or not found:
        raise bad(path, "its header has no format or no elements")
    begin = data.index(b"\n", end) + 1 if b"\n" in data[end:] else len(data)
    return _placed(path, order, begin, found)


def _placed(
    path: Path, order: str, begin: int, found: list[tuple[str, int, list[tuple[str, str]]]]
) -> dict[str, Element]:
    placed = dict[str, Element]()
    for name, number, fields in found:
        names = [field for field, _ in fields]
        if "" in names:
            break
        if name in placed or len(set(names)) < len(names):
            raise bad(path, f"its header has {name} or one of its properties twice")
        kind = np.dtype([(field, order + kind) for field, kind in fields])
        placed[name] = Element(name, number, kind, begin)
        begin += number * kind.itemsize
    return placed


def rows(path: Path, element: Element) -> np.ndarray:
    """The rows [number] of an element; raises ``BadFile`` when the file ends before they do, and ``OSError``."""
    available, needed = path.stat().st_size - element.begin, element.number * element.kind.itemsize
    if needed > available:
        raise bad(
            path, f"{element.number:,} rows of {element.name} take {needed:,} bytes, it holds {max(available, 0):,}"
        )
    return np.fromfile(path, element.kind, element.number, offset=element.begin)
