"""PLY as the reference implementation of 3D Gaussian Splatting writes it: binary, one vertex a splat.

Properties: x y z, nx ny nz (zeros), f_dc_0..2, f_rest_* (channel by channel), opacity as logit, scale_0..2 as
logarithms, rot_0..3 with w first. Read in either byte order, with whatever other properties stand between, and as
SuperSplat compresses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rung.core.errors import BadFile
from rung.splats.cloud import C0, Cloud, Floats
from rung.splats.files.packing import REST, Indexes, along_curve, logits, opacity_bytes, smallest_three, whole_quats

_CHUNK = 256
_CENTERS = ("min_x", "min_y", "min_z", "max_x", "max_y", "max_z")
_SCALES = tuple(name.replace("_", "_scale_") for name in _CENTERS)
_COLORS = ("min_r", "min_g", "min_b", "max_r", "max_g", "max_b")
_PACKED = ("packed_position", "packed_rotation", "packed_scale", "packed_color")
#: Where the numbers of a packed word begin, and how many bits they have.
_MIXED = ((21, 11), (11, 10), (0, 11))
_COMPRESSED_COLOR = ((24, 8), (16, 8), (8, 8))
_THREE = ((20, 10), (10, 10), (0, 10))
#: Logarithms of scales beyond this are held at it.
_LARGEST = 20.0
#: Splats whose harmonics are turned into bytes at once.
_BLOCK = 1 << 16


def unpacked(path: Path, found: dict[str, Element]) -> Cloud:
    """The splats of a file with these elements; raises ``BadFile`` with what is wrong, and ``OSError``."""
    expected: dict[str, tuple[str, set[tuple[str, ...]]]] = {
        "chunk": ("f4", {(*_CENTERS, *_SCALES), (*_CENTERS, *_SCALES, *_COLORS)}),
        "vertex": ("u4", {_PACKED}),
        "sh": ("u1", {tuple(f"f_rest_{index}" for index in range(3 * terms)) for terms in REST}),
    }
    for name, (kind, sets) in expected.items():
        names: tuple[str, ...] = (found[name].kind.names or ()) if name in found else ()
        if names not in sets or any(found[name].kind[field].str[1:] != kind for field in names):
            raise bad(path, f"its element {name} has not the properties of a compressed PLY")
    chunks, vertices = found["chunk"].number, found["vertex"].number
    if chunks != -(-vertices // _CHUNK) or ("sh" in found and found["sh"].number != vertices):
        raise bad(path, f"it declares {vertices:,} splats, {chunks:,} chunks of 256 and harmonics that do not fit")
    bounds, packed = rows(path, found["chunk"]), rows(path, found["vertex"])
    degree_0, opacities = _colors(bounds, packed["packed_color"])
    rotation = packed["packed_rotation"]
    return Cloud(
        _between(bounds, _CENTERS, _fields(packed["packed_position"], _MIXED)),
        whole_quats((rotation >> 30).astype(np.int64), _fields(rotation, _THREE) * 2 - 1),
        _between(bounds, _SCALES, _fields(packed["packed_scale"], _MIXED)),
        logits(opacities),
        _harmonics(degree_0, rows(path, found["sh"]) if "sh" in found else None),
    )


def _fields(words: np.ndarray, layout: tuple[tuple[int, int], ...]) -> Floats:
    """[N, 3] in 0 to 1 of packed words [N]."""
    fields = [((words >> shift) & (2**bits - 1)) / np.float32(2**bits - 1) for shift, bits in layout]
    return np.stack(fields, axis=1).astype(np.float32)


def _between(bounds: np.ndarray, names: tuple[str, ...], fractions: Floats) -> Floats:
    """[N, 3]: what lies so far between the least and the largest of its chunk."""
    chunk = np.arange(len(fractions)) // _CHUNK
    columns = [
        bounds[low][chunk] * (1 - fractions[:, axis]) + bounds[high][chunk] * fractions[:, axis]
        for axis, (low, high) in enumerate(zip(names[:3], names[3:], strict=True))
    ]
    return np.stack(columns, axis=1).astype(np.float32)


def _colors(bounds: np.ndarray, words: np.ndarray) -> tuple[Floats, npt.NDArray[np.uint8]]:
    """The first harmonics [N, 3] and opacities [N]; older files have no bounds of colors, which are 0 to 1."""
    colors = _fields(words, _COMPRESSED_COLOR)
    if "min_r" in (bounds.dtype.names or ()):
        colors = _between(bounds, _COLORS, colors)
    return ((colors - 0.5) / C0).astype(np.float32), (words & 255).astype(np.uint8)


def _harmonics(degree_0: Floats, rest: np.ndarray | None) -> Floats:
    if rest is None:
        return degree_0[:, None, :]
    names = rest.dtype.names or ()
    harmonics = np.empty((len(degree_0), 1 + len(names) // 3, 3), np.float32)
    harmonics[:, 0] = degree_0
    middles = (np.arange(256, dtype=np.float32) + 0.5) / 256
    middles[[0, 255]] = 0, 1
    values = (middles - 0.5) * 8
    for index, name in enumerate(names):
        channel, term = divmod(index, len(names) // 3)
        harmonics[:, 1 + term, channel] = values[rest[name]]
    return harmonics


def encode_compressed(cloud: Cloud) -> Iterator[bytes]:
    """The file's bytes, in pieces; the splats are in another order."""
    number, rest = len(cloud.means), 3 * (cloud.harmonics.shape[1] - 1)
    order = along_curve(cloud.means)
    full = np.concatenate([order, np.repeat(order[-1:], -number % _CHUNK)])  # the last splat fills its chunk
    lines = ["ply", "format binary_little_endian 1.0", f"element chunk {len(full) // _CHUNK}"]
    lines += [f"property float {name}" for name in (*_CENTERS, *_SCALES, *_COLORS)]
    lines += [f"element vertex {number}", *(f"property uint {name}" for name in _PACKED)]
    lines += [f"element sh {number}"] * (rest > 0) + [f"property uchar f_rest_{index}" for index in range(rest)]
    yield "\n".join([*lines, "end_header", ""]).encode("ascii")
    yield from _tables(cloud, full, number)
    for first in range(0, number if rest else 0, _BLOCK):
        values = cloud.harmonics[order[first : first + _BLOCK], 1:].swapaxes(1, 2)
        yield np.clip(np.floor((values / 8 + 0.5) * 256), 0, 255).astype(np.uint8).tobytes()


def _tables(cloud: Cloud, full: Indexes, number: int) -> Iterator[bytes]:
    """The rows of chunks and the rows of splats; ``full`` are the indexes of splats in whole chunks."""
    scales = np.clip(cloud.log_scales, -_LARGEST, _LARGEST)
    tables = []
    words = []
    for values, fields in ((cloud.means, _MIXED), (scales, _MIXED), (cloud.tints, _COMPRESSED_COLOR)):
        chunks = values[full].astype(np.float32).reshape(-1, _CHUNK, 3)
        low, high = chunks.min(1), chunks.max(1)
        span = np.maximum(high.astype(np.float64) - low, 1e-30)
        words.append(_word(((chunks - low[:, None]) / span[:, None]).reshape(-1, 3)[:number], fields))
        tables += [low, high]
    yield np.concatenate(tables, axis=1).astype("<f4").tobytes()
    order = full[:number]
    largest, three = smallest_three(cloud.units[order])
    rotation = _word(three / 2 + 0.5, _THREE) | largest.astype(np.uint32) << np.uint32(30)
    color = words[2] | opacity_bytes(cloud)[order]
    yield np.stack([words[0], rotation, words[1], color], axis=1).astype("<u4").tobytes()


def _word(fractions: np.ndarray, fields: tuple[tuple[int, int], ...]) -> npt.NDArray[np.uint32]:
    """[N] of numbers [N, 3] in 0 to 1."""
    word = np.zeros(len(fractions), np.uint32)
    for column, (shift, bits) in zip(fractions.T, fields, strict=True):
        word |= np.rint(column * (2**bits - 1)).astype(np.uint32) << np.uint32(shift)
    return word


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


_CENTER, _COLOR = ("x", "y", "z"), ("f_dc_0", "f_dc_1", "f_dc_2")
_SCALE, _ROTATION = ("scale_0", "scale_1", "scale_2"), ("rot_0", "rot_1", "rot_2", "rot_3")
_NEEDED = (*_CENTER, *_COLOR, "opacity", *_SCALE, *_ROTATION)


def read(path: Path) -> Cloud:
    """The splats of a file; raises ``BadFile`` with what is wrong, and ``OSError``."""
    found = elements(path)
    if "chunk" in found:
        return unpacked(path, found)
    if "vertex" not in found:
        raise bad(path, "it has no vertices, or a list stands before them")
    names = found["vertex"].kind.names or ()
    if missing := [name for name in _NEEDED if name not in names]:
        raise bad(path, f"its vertices have no {', '.join(missing)}", "a point cloud is trained into splats first")
    number = sum(name.startswith("f_rest_") for name in names)
    rest = tuple(f"f_rest_{index}" for index in range(number))
    if number not in {3 * terms for terms in REST} or not set(rest) <= set(names):
        raise bad(path, f"its properties f_rest_* are {number}, not 0, 9, 24 or 45 from f_rest_0 on")
    return _cloud(rows(path, found["vertex"]), rest)


def _cloud(vertices: np.ndarray, rest: tuple[str, ...]) -> Cloud:
    def columns(names: tuple[str, ...]) -> Floats:
        values = np.empty((len(vertices), len(names)), np.float32)
        for index, name in enumerate(names):
            values[:, index] = vertices[name]
        return values

    harmonics = np.empty((len(vertices), 1 + len(rest) // 3, 3), np.float32)
    harmonics[:, 0] = columns(_COLOR)
    for index, name in enumerate(rest):
        channel, term = divmod(index, len(rest) // 3)
        harmonics[:, 1 + term, channel] = vertices[name]
    return Cloud(columns(_CENTER), columns(_ROTATION), columns(_SCALE), columns(("opacity",))[:, 0], harmonics)


def encode(cloud: Cloud) -> Iterator[bytes]:
    """The file's bytes, in pieces."""
    rest = 3 * (cloud.harmonics.shape[1] - 1)
    names = [*_CENTER, "nx", "ny", "nz", *_COLOR, *(f"f_rest_{index}" for index in range(rest))]
    names += ["opacity", *_SCALE, *_ROTATION]
    head = ["ply", "format binary_little_endian 1.0", f"element vertex {len(cloud.means)}"]
    head += [*(f"property float {name}" for name in names), "end_header", ""]
    yield "\n".join(head).encode("ascii")
    for first in range(0, len(cloud.means), _BLOCK):
        yield _vertices(cloud.chosen(slice(first, first + _BLOCK)))


def _vertices(cloud: Cloud) -> bytes:
    number = len(cloud.means)
    columns = [cloud.means, np.zeros((number, 3), np.float32), cloud.harmonics[:, 0]]
    columns += [cloud.harmonics[:, 1:].swapaxes(1, 2).reshape(number, -1), cloud.logits[:, None]]
    columns += [cloud.log_scales, cloud.quats]
    return np.concatenate(columns, axis=1).astype("<f4").tobytes()
