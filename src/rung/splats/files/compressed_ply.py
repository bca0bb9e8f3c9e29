"""SuperSplat's ``.compressed.ply``: chunks of 256 splats along a curve, 16 bytes a splat and one for each harmonic.

A chunk holds the least and the largest center, logarithm of scale and color of its splats as float32; a splat holds
where it lies between them: center and scales in 11, 10 and 11 bits, color and opacity in 8 each, and the rotation as
its three smallest parts in 10 bits each. Harmonics above the first are bytes over -4 to 4, channel by channel.

Within: half a step of 2047 (y: 1023) of the chunk's extent; scales the same, held within e^-20 to e^20; colors half
of 255 steps of the chunk's; opacity 1/510; rotations 0.0014 a part; harmonics 1/64 (1/32 at the ends). Source: the
file format section of PlayCanvas's engine documentation, and what SplatTransform 1.10.1 reads and writes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rung.splats.cloud import C0, Cloud, Floats
from rung.splats.files.packing import REST, Indexes, along_curve, logits, opacity_bytes, smallest_three, whole_quats
from rung.splats.files.ply_header import Element, bad, rows

_CHUNK = 256
_CENTERS = ("min_x", "min_y", "min_z", "max_x", "max_y", "max_z")
_SCALES = tuple(name.replace("_", "_scale_") for name in _CENTERS)
_COLORS = ("min_r", "min_g", "min_b", "max_r", "max_g", "max_b")
_PACKED = ("packed_position", "packed_rotation", "packed_scale", "packed_color")
#: Where the numbers of a packed word begin, and how many bits they have.
_MIXED = ((21, 11), (11, 10), (0, 11))
_COLOR = ((24, 8), (16, 8), (8, 8))
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
    colors = _fields(words, _COLOR)
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


def encode(cloud: Cloud) -> Iterator[bytes]:
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
    for values, fields in ((cloud.means, _MIXED), (scales, _MIXED), (cloud.tints, _COLOR)):
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
