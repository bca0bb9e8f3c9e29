"""PlayCanvas's ``.sog``, version 2: a zip of ``meta.json`` and lossless WebP pictures with one pixel for each splat.

Centers are 16 bits an axis of sign(x) log(1 + |x|) in two pictures; rotations their three smallest parts in a byte
each; scales and first harmonics indexes into codebooks of 256 values, opacities a byte; the higher harmonics of a splat
are one row of a palette of up to 65,536, whose numbers are indexes into a codebook again.

Within: centers 1/131070 of the extent of those logarithms; opacities 1/510; rotations 0.0028 a part; the rest as near
as the codebooks come (k-means). Source: PlayCanvas's SOG specification, and what SplatTransform 1.10.1 reads and
writes.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rung.core.errors import BadFile, SoftwareMissing
from rung.core.zips import DAMAGED
from rung.splats.cloud import Cloud, Floats
from rung.splats.files.packing import (
    REST,
    Bytes,
    along_curve,
    codebook,
    logits,
    opacity_bytes,
    palette,
    smallest_three,
    to_bytes,
    whole_quats,
)

#: Rows of the palette beside each other in its picture.
_ACROSS = 64
#: The last byte of a rotation says which part is the largest.
_LARGEST = 252
_MOST_META, _MOST_ROWS = 1 << 20, 1 << 16
#: Method and quality of WebP's lossless encoder.
_EFFORT = (4, 75)
#: Bytes of a splat's pixels; no scene is a hundredth of its size when it is packed; below so many bytes nobody asks.
_PIXELS, _DENSEST, _SMALL = 20, 100, 1 << 26


def _bad(path: Path, why: str) -> BadFile:
    return BadFile(f"{path} is not a file of splats: {why}.", [], ["export the scene again, as .sog or as binary PLY"])


def _pictures() -> Any:
    try:
        from PIL import Image
    except ImportError as error:
        raise SoftwareMissing(
            "SOG keeps splats in WebP pictures, which Pillow reads and writes.", [], ['pip install "rung[splats]"']
        ) from error
    return Image


def read(path: Path) -> Cloud:
    """The splats of a file; raises ``BadFile`` with what is wrong, ``SoftwareMissing`` without Pillow, ``OSError``."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _Reader(path, archive).cloud()
    except (KeyError, TypeError, ValueError, IndexError, OverflowError, RecursionError) as error:
        raise _bad(path, f"its meta.json does not say what SOG needs ({error!r:.100})") from error
    except DAMAGED as error:
        raise _bad(path, f"it is no zip that can be read ({error})") from error


class _Reader:
    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self._path, self._archive, self._size = path, archive, path.stat().st_size
        self._meta = json.loads(self._bytes("meta.json", _MOST_META))
        version, self._number = int(self._meta["version"]), int(self._meta["count"])
        if version != 2 or self._number < 0:
            raise _bad(path, f"it is version {version} with {self._number:,} splats, and rung reads version 2")
        if self._number * _PIXELS > max(_SMALL, _DENSEST * self._size):
            raise _bad(path, f"it declares {self._number:,} splats in {self._size:,} bytes")

    def cloud(self) -> Cloud:
        """All of it."""
        scales, colors = self._picture("scales", 0), self._picture("sh0", 0)
        three = self._picture("quats", 0)
        first = self._codes("sh0")[colors[:, :3]]
        largest = three[:, 3].astype(np.int64) - _LARGEST
        if not ((largest >= 0) & (largest < 4)).all():
            raise _bad(self._path, "rotations do not say which part is the largest")
        return Cloud(
            self._means(),
            whole_quats(largest, three[:, :3] / np.float32(127.5) - 1),
            self._codes("scales")[scales[:, :3]],
            logits(colors[:, 3]),
            np.concatenate([first[:, None], self._rest()], axis=1) if "shN" in self._meta else first[:, None],
        )

    def _means(self) -> Floats:
        low, high = (np.array(self._meta["means"][name], np.float64).reshape(3) for name in ("mins", "maxs"))
        fine, coarse = (self._picture("means", index)[:, :3].astype(np.float64) for index in (0, 1))
        values = low + (high - low) * ((fine + coarse * 256) / 65535)
        return (np.sign(values) * np.expm1(np.abs(values))).astype(np.float32)

    def _rest(self) -> Floats:
        """[N, terms, 3]"""
        entry = self._meta["shN"]
        terms, rows = REST[int(entry["bands"])], int(entry["count"])
        labels = self._picture("shN", 1)
        label = labels[:, 0].astype(np.int64) | labels[:, 1].astype(np.int64) << 8
        height = -(-rows // _ACROSS)
        if not 0 < rows <= 1 << 16 or (label >= rows).any():
            raise _bad(self._path, f"splats ask for rows of harmonics beyond the {rows:,} that are there")
        table = self._picture("shN", 0, _ACROSS * terms * height, (_ACROSS * terms, height))
        return self._codes("shN")[table.reshape(-1, terms, 4)[label, :, :3]]

    def _codes(self, name: str) -> Floats:
        """[256]: values beyond the codebook are no numbers, which the cloud's check finds."""
        codebook = np.array(self._meta[name]["codebook"], np.float64).reshape(-1)[:256]
        return np.concatenate([codebook, np.full(256 - len(codebook), np.nan)]).astype(np.float32)

    def _picture(self, name: str, index: int, pixels: int | None = None, size: tuple[int, int] | None = None) -> Bytes:
        """[N, 4]: the first pixels, as many as there are splats; not decoded before its size is known to be right."""
        count = self._number if pixels is None else pixels
        file, image = str(self._meta[name]["files"][index]), _pictures()
        try:
            with image.open(io.BytesIO(self._bytes(file, 2 * self._size)), formats=["WEBP"]) as picture:
                if (size and picture.size != size) or not count <= picture.size[0] * picture.size[
                    1
                ] <= 4 * count + 4096:
                    raise _bad(self._path, f"{file} is {picture.size}, and {count:,} pixels are wanted")
                values: Bytes = np.asarray(picture.convert("RGBA")).reshape(-1, 4)[:count]
        except (OSError, SyntaxError, image.DecompressionBombError) as error:
            raise _bad(self._path, f"{file} is no WebP picture") from error
        return values

    def _bytes(self, name: str, most: int) -> bytes:
        with self._archive.open(name) as file:
            data = file.read(most + 1)
        if len(data) > most:
            raise _bad(self._path, f"{name} unpacks to more than {most:,} bytes")
        return data


def encode(cloud: Cloud) -> Iterator[bytes]:
    """The file's bytes; the splats are in another order. Raises ``SoftwareMissing`` without Pillow."""
    order = along_curve(cloud.means)
    cloud = cloud.chosen(order)
    pictures = _Pictures(len(order))
    meta = {
        "version": 2,
        "asset": {"generator": "rung"},
        "count": len(order),
        "means": _means(cloud, pictures),
        "scales": _coded("scales", cloud.log_scales, [], pictures),
        "quats": _rotations(cloud, pictures),
        "sh0": _coded("sh0", cloud.harmonics[:, 0], [opacity_bytes(cloud)], pictures),
    }
    if cloud.degree and len(order):
        meta["shN"] = _shared(cloud, pictures)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:  # stored: pictures are packed already
        for name, data in {"meta.json": json.dumps(meta).encode("ascii"), **pictures.files}.items():
            archive.writestr(zipfile.ZipInfo(name), data)  # of 1980: the same splats make the same file
    yield buffer.getvalue()


class _Pictures:
    """WebP files with a pixel for each of so many splats."""

    def __init__(self, number: int) -> None:
        self._width = max(4, -(-int(np.ceil(number**0.5)) // 4) * 4)
        self._height = max(4, -(-number // (4 * self._width)) * 4)
        self.files = dict[str, bytes]()

    def add(self, name: str, columns: np.ndarray, width: int | None = None) -> str:
        """The file's name; ``columns`` are [pixels, up to 4], what is left is 255."""
        wide = width or self._width
        pixels = np.full((-(-len(columns) // wide) * wide if width else wide * self._height, 4), 255, np.uint8)
        pixels[: len(columns), : columns.shape[1]] = columns
        buffer = io.BytesIO()
        picture = _pictures().fromarray(pixels.reshape(-1, wide, 4))
        picture.save(buffer, "WEBP", lossless=True, exact=True, method=_EFFORT[0], quality=_EFFORT[1])
        self.files[f"{name}.webp"] = buffer.getvalue()
        return f"{name}.webp"


def _means(cloud: Cloud, pictures: _Pictures) -> dict[str, Any]:
    values = cloud.means.astype(np.float64)
    values = np.sign(values) * np.log1p(np.abs(values))
    low, high = (f(values, axis=0) if len(values) else np.zeros(3) for f in (np.min, np.max))
    steps = np.rint((values - low) / np.maximum(high - low, 1e-30) * 65535).astype(np.uint16)
    files = [pictures.add("means_l", steps & 255), pictures.add("means_u", steps >> 8)]
    return {"mins": low.tolist(), "maxs": high.tolist(), "files": files}


def _rotations(cloud: Cloud, pictures: _Pictures) -> dict[str, Any]:
    largest, three = smallest_three(cloud.units)
    return {"files": [pictures.add("quats", np.column_stack([to_bytes((three + 1) * 127.5), largest + _LARGEST]))]}


def _coded(name: str, values: Floats, more: list[Bytes], pictures: _Pictures) -> dict[str, Any]:
    codes, labels = codebook(values)
    return {"codebook": codes.tolist(), "files": [pictures.add(name, np.column_stack([labels, *more]))]}


def _shared(cloud: Cloud, pictures: _Pictures) -> dict[str, Any]:
    """The harmonics above the first: as many rows as the largest power of two up to the splats, at most 65,536."""
    terms, number = REST[cloud.degree], len(cloud.means)
    table, labels = palette(cloud.harmonics[:, 1:].reshape(number, -1), min(_MOST_ROWS, 1 << number.bit_length() - 1))
    codes, indexes = codebook(table.reshape(-1, 3))
    files = [
        pictures.add("shN_centroids", indexes, _ACROSS * terms),
        pictures.add("shN_labels", np.column_stack([labels & 255, labels >> 8, np.zeros_like(labels)])),
    ]
    return {"count": len(table), "bands": cloud.degree, "codebook": codes.tolist(), "files": files}
