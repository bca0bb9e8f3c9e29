"""PLY as the reference implementation of 3D Gaussian Splatting writes it: binary, one vertex a splat.

Properties: x y z, nx ny nz (zeros), f_dc_0..2, f_rest_* (channel by channel), opacity as logit, scale_0..2 as
logarithms, rot_0..3 with w first. Read in either byte order, with whatever other properties stand between.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rung.core.errors import BadFile
from rung.core.text import count
from rung.splats.cloud import Cloud, Floats

#: Bytes within which a header must end: 62 properties take 1.5 kB.
_HEADER = 1 << 16
_TYPES = {"char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4"}
_TYPES |= {"float": "f4", "double": "f8", "int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2"}
_TYPES |= {"int32": "i4", "uint32": "u4", "float32": "f4", "float64": "f8"}
_ORDERS = {"binary_little_endian": "<", "binary_big_endian": ">"}
_CENTRE, _COLOR = ("x", "y", "z"), ("f_dc_0", "f_dc_1", "f_dc_2")
_SCALE, _ROTATION = ("scale_0", "scale_1", "scale_2"), ("rot_0", "rot_1", "rot_2", "rot_3")
_NEEDED = (*_CENTRE, *_COLOR, "opacity", *_SCALE, *_ROTATION)
#: Properties f_rest_* for each degree of harmonics.
_REST = (0, 9, 24, 45)


def _bad(path: Path, why: str, *ways: str) -> BadFile:
    return BadFile(
        f"{path} is not a file of splats: {why}.", [], list(ways) or ["export the scene again, as binary PLY"]
    )


def _header(path: Path, data: bytes) -> tuple[np.dtype, int, int]:
    """The type of a vertex, how many there are, and where they begin."""
    end = data.find(b"end_header")
    if not data.startswith(b"ply") or end < 0:
        raise _bad(path, "it does not begin as a PLY file does, or its header does not end within 64 kB")
    order, fields, number, inside = "", list[tuple[str, str]](), -1, False
    for line in data[:end].decode("latin-1").splitlines()[1:]:
        match line.split():
            case ["format", name, "1.0"]:
                order = _ORDERS.get(name, "")
                if not order:
                    raise _bad(path, f"it is {name}, which no program writes splats in", "convert it to binary PLY")
            case ["element", "vertex", digits] if digits.isdecimal() and len(digits) < 19 and number < 0:
                number, inside = int(digits), True
            case ["element", *_]:
                inside = False
                if number < 0:
                    raise _bad(path, f"{line.strip()!r} stands before the vertices")
            case ["property", kind, name] if inside and kind in _TYPES:
                fields.append((name, order + _TYPES[kind]))
            case ["property", *_] if inside:
                raise _bad(path, f"it has the property {line.strip()!r}")
    names = [name for name, _ in fields]
    if not order or number < 0 or len(set(names)) < len(names):
        raise _bad(path, "its header has no format, no vertices, or a property twice")
    return np.dtype(fields), number, data.index(b"\n", end) + 1 if b"\n" in data[end:] else len(data)


def read(path: Path) -> Cloud:
    """The splats of a file; raises ``BadFile`` with what is wrong, and ``OSError``."""
    with path.open("rb") as file:
        kind, number, begin = _header(path, file.read(_HEADER))
        held = path.stat().st_size - begin
        if number * kind.itemsize > held:
            raise _bad(path, f"{count(number, 'splat')} take {number * kind.itemsize:,} bytes, it holds {held:,}")
        file.seek(begin)
        rows = np.fromfile(file, kind, number) if number else np.empty(0, kind)
    missing = [name for name in _NEEDED if name not in (kind.names or ())]
    if missing:
        raise _bad(path, f"its vertices have no {', '.join(missing)}", "a point cloud is trained into splats first")
    return _cloud(path, rows)


def _cloud(path: Path, rows: np.ndarray) -> Cloud:
    rest = sorted(
        (name for name in rows.dtype.names or () if name.startswith("f_rest_")), key=lambda name: int(name[7:])
    )
    if len(rest) not in _REST or rest != [f"f_rest_{index}" for index in range(len(rest))]:
        raise _bad(path, f"its properties f_rest_* are {len(rest)}, not 0, 9, 24 or 45 from f_rest_0 on")

    def columns(names: tuple[str, ...] | list[str]) -> Floats:
        return np.stack([rows[name].astype(np.float32) for name in names], axis=1)

    harmonics = columns(_COLOR)[:, None, :]
    if rest:
        higher = columns(rest).reshape(len(rows), 3, len(rest) // 3).swapaxes(1, 2)
        harmonics = np.concatenate([harmonics, higher], axis=1)
    cloud = Cloud(columns(_CENTRE), columns(_ROTATION), columns(_SCALE), columns(("opacity",))[:, 0], harmonics)
    broken = next((name for name, values in cloud._asdict().items() if not np.isfinite(values).all()), "")
    if broken:
        raise _bad(path, f"its {broken} have NaN or infinite values")
    return cloud


def encode(cloud: Cloud) -> bytes:
    """The file's bytes."""
    rest = 3 * (cloud.harmonics.shape[1] - 1)
    names = [*_CENTRE, "nx", "ny", "nz", *_COLOR, *(f"f_rest_{index}" for index in range(rest))]
    names += ["opacity", *_SCALE, *_ROTATION]
    number = len(cloud.means)
    columns = [cloud.means, np.zeros((number, 3), np.float32), cloud.harmonics[:, 0]]
    columns += [cloud.harmonics[:, 1:].swapaxes(1, 2).reshape(number, rest), cloud.logits[:, None]]
    columns += [cloud.log_scales, cloud.quats]
    head = ["ply", "format binary_little_endian 1.0", f"element vertex {number}"]
    head += [*(f"property float {name}" for name in names), "end_header", ""]
    return "\n".join(head).encode("ascii") + np.concatenate(columns, axis=1).astype("<f4").tobytes()
