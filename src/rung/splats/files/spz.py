"""Niantic's ``.spz``: 20 bytes a splat and one for each harmonic, in a gzip stream. Versions 2 and 3 are read, 3 is
written.

Behind a header of 16 bytes lie, each for all splats: centers as three 24-bit fixed-point numbers, opacities, colors,
logarithms of scales, rotations and harmonics. Its axes are right, up, back: what PLY has down and forward is negated,
with the harmonics that change their sign.

Within: centers 2^-13, or 1/65536 of the largest coordinate where that is less (not below 2^-24), coarser only beyond
2048; opacities 1/510; first harmonics 1/76.5 over -3.33 to 3.33; scales e^(1/32) from e^-10 to e^5.9; rotations 0.0018
a part (version 2: 1/255, the real part follows); harmonics over -1 to 1 within 1/32 in degree 1, 1/16 above, as
Niantic's own encoder keeps them. Source: nianticlabs/spz, README and load-spz.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from rung.core.errors import BadFile, CannotEncode
from rung.core.text import size
from rung.splats.cloud import Cloud, Floats
from rung.splats.files.packing import REST, Bytes, logits, opacity_bytes, smallest_three, to_bytes, whole_quats

#: The mark, the version, how many splats, the degree, bits behind the point, flags and a byte of nothing.
_HEADER = struct.Struct("<4sIIBBBB")
_MARK = b"NGSP"
_EXTENDED = 2
_COLOR = 0.15
_STEPS = 511
#: The largest coordinate: what 23 bits before the point hold.
_FARTHEST = 8_388_000
#: Right, down, forward to right, up, back, of the center, of a quaternion's parts x, y, z, and of each harmonic.
_TURN = np.array([1, -1, -1], np.float32)
_SIGNS = np.array([-1, -1, 1, -1, 1, 1, -1, 1, -1, 1, -1, -1, 1, -1, 1], np.float32)
#: No scene is a hundredth of its size when it is packed; below so many bytes nobody asks.
_DENSEST, _SMALL = 100, 1 << 26
#: Splats whose harmonics are turned into bytes at once.
_BLOCK = 1 << 16


def _bad(path: Path, why: str, *ways: str) -> BadFile:
    return BadFile(f"{path} is not a file of splats: {why}.", [], list(ways) or ["export the scene again, as .spz"])


def read(path: Path) -> Cloud:
    """The splats of a file; raises ``BadFile`` with what is wrong, and ``OSError``."""
    packed = path.read_bytes()
    if packed[:4] == _MARK:
        raise _bad(path, "it is of version 4, which is packed with zstd", "save it as version 3 of SPZ, or as PLY")
    mark, version, number, degree, point, flags, _ = _header(path, packed)
    if mark != _MARK or version not in (2, 3) or degree > 3 or point > 23:
        raise _bad(path, f"its header says {mark!r}, version {version}, degree {degree}, {point} bits behind the point")
    if flags & _EXTENDED:
        raise _bad(path, "it has extensions of a vendor, which may turn its axes", "save it without extensions")
    parts = {
        "centers": 9,
        "opacities": 1,
        "colors": 3,
        "scales": 3,
        "rotations": version + 1,
        "rest": 3 * REST[degree],
    }
    whole = _HEADER.size + number * sum(parts.values())
    if whole > max(_SMALL, _DENSEST * len(packed)):
        raise _bad(path, f"it would unpack to {size(whole)}, more than {_DENSEST} times its size")
    data, ended = _unpacked(path, packed, whole)
    if len(data) != whole:
        raise _bad(path, f"its {number:,} splats take {whole:,} bytes, it unpacks to {len(data):,}")
    if not ended:
        raise _bad(path, "the end of its gzip stream is missing")
    streams, begin = {}, _HEADER.size
    for name, width in parts.items():
        streams[name] = np.frombuffer(data, np.uint8, number * width, begin).reshape(number, width)
        begin += number * width
    return _cloud(streams, point)


def _header(path: Path, packed: bytes) -> tuple[bytes, int, int, int, int, int, int]:
    data = _unpacked(path, packed[:1024], _HEADER.size - 1)[0][: _HEADER.size]
    if len(data) < _HEADER.size:
        raise _bad(path, "it ends within its header")
    return _HEADER.unpack(data)


def _unpacked(path: Path, packed: bytes, most: int) -> tuple[bytes, bool]:
    """At most a byte more than ``most``: what comes after tells that there is too much; and whether that is all."""
    stream = zlib.decompressobj(wbits=31)
    try:
        return stream.decompress(packed, most + 1), stream.eof
    except zlib.error as error:
        raise _bad(path, f"it is no gzip stream ({error})") from error


def _cloud(parts: dict[str, Bytes], point: int) -> Cloud:
    number = len(parts["opacities"])
    digits = parts["centers"].reshape(number, 3, 3).astype(np.int32)
    fixed = digits[..., 0] | digits[..., 1] << 8 | digits[..., 2] << 16
    fixed -= (fixed & 0x800000) << 1
    harmonics = np.empty((number, 1 + parts["rest"].shape[1] // 3, 3), np.float32)
    harmonics[:, 0] = (parts["colors"] / np.float32(255) - 0.5) / np.float32(_COLOR)
    harmonics[:, 1:] = parts["rest"].reshape(number, harmonics.shape[1] - 1, 3)
    harmonics[:, 1:] = (harmonics[:, 1:] / 128 - 1) * _SIGNS[: harmonics.shape[1] - 1, None]
    return Cloud(
        (fixed * 2.0**-point).astype(np.float32) * _TURN,
        _quats(parts["rotations"]),
        (parts["scales"] / 16 - 10).astype(np.float32),
        logits(parts["opacities"][:, 0]),
        harmonics,
    )


def _quats(rotations: Bytes) -> Floats:
    """[N, 4] (w, x, y, z) in PLY's axes, of three bytes or of a word."""
    if rotations.shape[1] == 3:
        turned = rotations / np.float32(127.5) - 1
        real = np.sqrt(np.maximum(0, 1 - (turned**2).sum(1, keepdims=True)))
        return np.concatenate([real, turned * _TURN], axis=1).astype(np.float32)
    words = np.ascontiguousarray(rotations).view("<u4")[:, 0]
    fields = [(words >> shift) & 1023 for shift in (20, 10, 0)]
    three = np.stack([np.where(field >> 9, -1.0, 1.0) * (field & _STEPS) / _STEPS for field in fields], axis=1)
    return np.roll(whole_quats((words >> 30).astype(np.int64), three), 1, axis=1) * np.array([1, *_TURN], np.float32)


def encode(cloud: Cloud) -> Iterator[bytes]:
    """The file's bytes, in pieces; raises ``CannotEncode`` for centers beyond 2^23."""
    number, degree = len(cloud.means), cloud.degree
    farthest = float(np.abs(cloud.means).max()) if number else 0.0
    if farthest > _FARTHEST:
        raise CannotEncode(
            f"SPZ holds centers up to {_FARTHEST:,}, and one lies at {farthest:,.0f}.",
            [],
            ["crop the scene:  rung splat export SRC OUT --crop=-100,-100,-100,100,100,100", "export it as .ply"],
        )
    point = _point(farthest)
    packer = zlib.compressobj(6, wbits=31)
    yield packer.compress(_HEADER.pack(_MARK, 3, number, degree, point, 0, 0))
    fixed = np.rint(cloud.means.astype(np.float64) * _TURN * 2.0**point).astype("<i4")
    yield packer.compress(fixed.view(np.uint8).reshape(number, 3, 4)[..., :3].tobytes())
    yield packer.compress(opacity_bytes(cloud).tobytes())
    yield packer.compress(to_bytes((cloud.harmonics[:, 0] * _COLOR + 0.5) * 255).tobytes())
    yield packer.compress(to_bytes((cloud.log_scales + 10) * 16).tobytes())
    yield packer.compress(_words(cloud.units).astype("<u4").tobytes())
    for first in range(0, number if degree else 0, _BLOCK):
        yield packer.compress(_rest(cloud.harmonics[first : first + _BLOCK, 1:]).tobytes())
    yield packer.flush()


def _point(farthest: float) -> int:
    """Bits behind the point: 12 as Niantic's encoder has, more for small scenes, fewer where they do not fit."""
    if farthest <= 0:
        return 12
    whole = max(int(np.ceil(np.log2(farthest * 1.000001))), -7)  # an axis takes 2^23 steps to either side
    return min(23 - whole, max(12, 16 - whole))


def _words(quats: Floats) -> np.ndarray:
    """[N] uint32 of unit quaternions [N, 4]: the largest part's index of (x, y, z, w), then a sign and nine bits for
    each of the others."""
    largest, three = smallest_three(np.roll(quats * np.array([1, *_TURN], np.float32), -1, axis=1))
    word = largest.astype(np.uint32)
    for column in three.T:
        magnitude = np.rint(np.abs(column) * _STEPS).astype(np.uint32)
        word = word << np.uint32(10) | (column < 0).astype(np.uint32) << np.uint32(9) | magnitude
    return word


def _rest(harmonics: Floats) -> Bytes:
    """Bytes [N, terms, 3] in steps of 1/16 for degree 1 and 1/8 above."""
    terms = harmonics.shape[1]
    step = np.where(np.arange(terms) < 3, 8, 16)[:, None].astype(np.float32)
    signed = harmonics * (_SIGNS[:terms, None] * 128)
    return to_bytes(np.rint(signed / step) * step + 128)
