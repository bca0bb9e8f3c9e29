"""PLY as the reference implementation of 3D Gaussian Splatting writes it: binary, one vertex a splat.

Properties: x y z, nx ny nz (zeros), f_dc_0..2, f_rest_* (channel by channel), opacity as logit, scale_0..2 as
logarithms, rot_0..3 with w first. Read in either byte order, with whatever other properties stand between, and as
SuperSplat compresses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rung.splats.cloud import Cloud, Floats
from rung.splats.files import compressed_ply
from rung.splats.files.packing import REST
from rung.splats.files.ply_header import bad, elements, rows

_CENTER, _COLOR = ("x", "y", "z"), ("f_dc_0", "f_dc_1", "f_dc_2")
_SCALE, _ROTATION = ("scale_0", "scale_1", "scale_2"), ("rot_0", "rot_1", "rot_2", "rot_3")
_NEEDED = (*_CENTER, *_COLOR, "opacity", *_SCALE, *_ROTATION)
#: Splats that are turned into bytes at once.
_BLOCK = 1 << 16


def read(path: Path) -> Cloud:
    """The splats of a file; raises ``BadFile`` with what is wrong, and ``OSError``."""
    found = elements(path)
    if "chunk" in found:
        return compressed_ply.unpacked(path, found)
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
