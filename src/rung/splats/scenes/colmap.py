"""COLMAP's models, binary and text: cameras, images, points (colmap.github.io/format.html)."""

from __future__ import annotations

import itertools
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rung.core.errors import BadFile
from rung.models.card import SceneCard
from rung.splats.files.ply import elements, rows

#: Folders of a scene in which a model may lie, in the order in which they are tried; then their numbered subfolders.
PLACES = (".", "sparse", "colmap/sparse")
_CAMERAS, _IMAGES, _POINTS = ("cameras", "images", "points3D")

#: Names and numbers of parameters by COLMAP's id of a camera model.
_MODELS = {
    0: ("SIMPLE_PINHOLE", 3),
    1: ("PINHOLE", 4),
    2: ("SIMPLE_RADIAL", 4),
    3: ("RADIAL", 5),
    4: ("OPENCV", 8),
    5: ("OPENCV_FISHEYE", 8),
    6: ("FULL_OPENCV", 12),
    7: ("FOV", 5),
    8: ("SIMPLE_RADIAL_FISHEYE", 4),
    9: ("RADIAL_FISHEYE", 5),
    10: ("THIN_PRISM_FISHEYE", 12),
}
_PARAMETERS = dict(_MODELS.values())
_NEEDS = "undistort the images once: colmap image_undistorter"


class Camera(NamedTuple):
    """See ``rung.models.card.View``."""

    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float
    lens: str
    bend: tuple[float, ...]


class Image(NamedTuple):
    """A registered photograph: its name, its camera's id, and three rows of world to camera."""

    name: str
    camera: int
    pose: tuple[float, ...]


class _Bytes:
    """A file read piece by piece, that says where it ends too soon."""

    def __init__(self, path: Path) -> None:
        self.path, self.data, self.at = path, path.read_bytes(), 0

    def take(self, format: str) -> tuple[float, ...]:
        """The values of a little-endian struct."""
        size = struct.calcsize("<" + format)
        if self.at + size > len(self.data):
            raise BadFile(
                f"{self.path} ends after {len(self.data):,} bytes, in the middle of an entry.",
                [],
                AGAIN,
                code="file-truncated",
            )
        found = struct.unpack_from("<" + format, self.data, self.at)
        self.at += size
        return found

    def skip(self, size: int) -> None:
        """Goes on after ``size`` bytes."""
        if not 0 <= size <= len(self.data) - self.at:
            raise BadFile(f"{self.path} declares {size:,} bytes more than it holds.", [], AGAIN, code="file-truncated")
        self.at += size

    def text(self) -> str:
        """A string that ends with a zero byte."""
        end = self.data.find(b"\0", self.at, self.at + 4096)
        if end < 0:
            raise BadFile(f"{self.path} has a name without an end.", [], AGAIN, code="file-truncated")
        found, self.at = self.data[self.at : end].decode("utf-8", "replace"), end + 1
        return found

    def count(self, least: int) -> int:
        """A number of entries of at least ``least`` bytes each."""
        number = int(self.take("Q")[0])
        if number * least > len(self.data) - self.at:
            raise BadFile(
                f"{self.path} declares {number:,} entries, more than it can hold.", [], AGAIN, code="file-truncated"
            )
        return number


AGAIN = ["export the model again: colmap model_converter"]


def camera(path: Path, model: str, width: int, height: int, parameters: list[float]) -> Camera:
    """A camera by the name of its model; raises ``BadFile`` for one unknown to rung, and for values of no camera."""
    if model in ("SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL"):
        focal, cx, cy, *radial = parameters
        fx = fy = focal
        lens, bend = ("opencv", (*radial, *[0.0] * (4 - len(radial)))) if radial else ("pinhole", ())
    elif model in ("PINHOLE", "OPENCV", "OPENCV_FISHEYE"):
        fx, fy, cx, cy, *rest = parameters
        lens, bend = ("pinhole" if not rest else "opencv" if model == "OPENCV" else "fisheye"), tuple(rest)
    else:
        known = "SIMPLE_PINHOLE, PINHOLE, SIMPLE_RADIAL, RADIAL, OPENCV and OPENCV_FISHEYE"
        raise BadFile(f"{path} has a camera of the model {model}; rung knows {known}.", [], [_NEEDS])
    if not any(bend):
        lens, bend = ("pinhole", ()) if lens == "opencv" else (lens, bend)
    good = 0 < width < 1 << 20 and 0 < height < 1 << 20 and fx > 0 and fy > 0 and all(map(math.isfinite, parameters))
    if not good:
        raise BadFile(f"{path} has a camera of {width} x {height} with the parameters {parameters}.", [], AGAIN)
    return Camera(width, height, fx, fy, cx, cy, lens, bend)


def pose(path: Path, name: str, quat: list[float], shift: list[float]) -> tuple[float, ...]:
    """Three rows of world to camera from a quaternion (w, x, y, z) and a translation."""
    length = math.sqrt(sum(q * q for q in quat))
    if not (math.isfinite(length) and length > 1e-6 and all(map(math.isfinite, shift))):
        raise BadFile(f"{path}: the pose of {name} is no rotation: {quat} {shift}.", [], AGAIN)
    w, x, y, z = (q / length for q in quat)
    return (
        *(1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y), shift[0]),
        *(2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x), shift[1]),
        *(2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y), shift[2]),
    )


def _lines(path: Path) -> Iterator[list[str]]:
    """The words of every line that is no comment."""
    for line in path.read_text("utf-8", "replace").splitlines():
        if not line.startswith("#"):
            yield line.split()


def _numbers(path: Path, words: list[str]) -> list[float]:
    try:
        return [float(word) for word in words]
    except ValueError:
        raise BadFile(f"{path}: {' '.join(words)[:80]!r} are no numbers.", [], AGAIN) from None


def cameras(folder: Path) -> dict[int, Camera]:
    """Cameras by id."""
    path, found = folder / "cameras.bin", dict[int, Camera]()
    if path.exists():
        data = _Bytes(path)
        for _ in range(data.count(24 + 24)):
            number, kind, width, height = (int(value) for value in data.take("IiQQ"))
            if kind not in _MODELS:
                raise BadFile(f"{path} has a camera of the unknown model {kind}.", [], [_NEEDS])
            model, parameters = _MODELS[kind]
            found[number] = camera(path, model, width, height, list(data.take(f"{parameters}d")))
        return found
    path = folder / "cameras.txt"
    for words in _lines(path):
        if words:
            numbers = _numbers(path, words[:1] + words[2:])
            if len(words) < 4 or len(numbers) - 3 != _PARAMETERS.get(words[1], len(numbers) - 3):
                raise BadFile(f"{path}: {' '.join(words)[:80]!r} is no camera.", [], AGAIN)
            found[int(numbers[0])] = camera(path, words[1], int(numbers[1]), int(numbers[2]), numbers[3:])
    return found


def images(folder: Path) -> list[Image]:
    """The registered photographs, in the file's order."""
    path, found = folder / "images.bin", list[Image]()
    if path.exists():
        data = _Bytes(path)
        for _ in range(data.count(64 + 1 + 8)):
            _, *numbers, camera_id = data.take("I7dI")
            name = data.text()
            found.append(Image(name, int(camera_id), pose(path, name, numbers[:4], numbers[4:])))
            data.skip(24 * int(data.take("Q")[0]))
        return found
    path = folder / "images.txt"
    lines = _lines(path)
    for words in lines:
        if not words:
            continue
        if len(words) < 10:
            raise BadFile(f"{path}: {' '.join(words)[:80]!r} is no image.", [], AGAIN)
        numbers, name = _numbers(path, words[:9]), " ".join(words[9:])
        found.append(Image(name, int(numbers[8]), pose(path, name, numbers[1:5], numbers[5:8])))
        next(lines, None)  # where its points are, which may be an empty line
    return found


def points(folder: Path) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.uint8]]:
    """Centers [N, 3] and colors [N, 3] of the points; none where there is no file of them."""
    path, found = folder / "points3D.bin", list[tuple[float, ...]]()
    if path.exists():
        data = _Bytes(path)
        for _ in range(data.count(51)):
            _, *center, red, green, blue, _, track = data.take("Q3d3BdQ")
            found.append((*center, red, green, blue))
            data.skip(8 * int(track))
    elif (path := folder / "points3D.txt").exists():
        for words in _lines(path):
            if words:
                numbers = _numbers(path, words[:7])
                if len(numbers) < 7 or not all(0 <= value <= 255 for value in numbers[4:]):
                    raise BadFile(f"{path}: {' '.join(words)[:80]!r} is no point.", [], AGAIN)
                found.append(tuple(numbers[1:]))
    rows = np.array(found, np.float64).reshape(-1, 6)
    rows = rows[(np.abs(rows) < np.finfo(np.float32).max).all(axis=1)]  # NaN is not below it either
    return rows[:, :3].astype(np.float32), rows[:, 3:].astype(np.uint8)


def folders(scene: Path) -> list[Path]:
    """Folders of a scene that hold a model."""
    near = [scene / subfolder for subfolder in PLACES]
    numbered = [
        sub for folder in near[1:] if folder.is_dir() for sub in sorted(folder.iterdir()) if sub.name.isdecimal()
    ]
    return [
        folder
        for folder in (*near, *numbered)
        if all(any((folder / f"{name}.{end}").is_file() for end in ("bin", "txt")) for name in (_CAMERAS, _IMAGES))
    ]


Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]

_POSITION, _COLOR = ("x", "y", "z"), ("red", "green", "blue")
_HEADER = 1000
_AWAY = ["take ply_file_path out: it begins without points"]


def points_of(card: SceneCard) -> tuple[Floats, Bytes]:
    """Centers and colors, [N, 3] each, of the points; none where it has no file of them. Raises ``BadFile``."""
    if not card.points_file:
        return np.zeros((0, 3), np.float32), np.zeros((0, 3), np.uint8)
    path = Path(card.points_file)
    return points(path.parent) if card.kind == "colmap" else ply(path)


def ply(path: Path) -> tuple[Floats, Bytes]:
    """Points of a PLY file with x, y, z and, where it has them, red, green, blue (gray where not)."""
    columns = _text(path)
    if columns is None:
        elements_of_file = elements(path)
        found = (
            rows(path, elements_of_file["vertex"]) if "vertex" in elements_of_file else np.zeros(0, [("nothing", "f4")])
        )
        columns = {name: found[name] for name in found.dtype.names or ()}
    if not set(_POSITION) <= set(columns):
        raise BadFile(f"{path} holds no points: its vertices have no x, y, z.", [], _AWAY)
    with np.errstate(over="ignore", invalid="ignore"):
        centers = np.stack([columns[name] for name in _POSITION], axis=1).astype(np.float32)
        colors = np.full(centers.shape, 128, np.uint8)
        if set(_COLOR) <= set(columns):
            colors = np.stack([columns[name] for name in _COLOR], axis=1).astype(np.uint8)
    good = np.isfinite(centers).all(axis=1)
    return centers[good], colors[good]


def _text(path: Path) -> dict[str, npt.NDArray[np.float64]] | None:
    """Columns of the vertices of a PLY file in text, as nerfstudio writes them; ``None`` for one that is binary."""
    with path.open("rb") as file:
        if file.readline(16).strip() != b"ply" or file.readline(64).split()[:2] != [b"format", b"ascii"]:
            return None
        number, names, open_ = 0, list[str](), False
        for line in itertools.islice(iter(lambda: file.readline(4096), b""), _HEADER):
            match line.decode("latin-1").split():
                case ["element", name, digits] if digits.isdecimal():
                    open_ = name == "vertex" and not names
                    number = int(digits) if open_ else number
                case ["property", _, name] if open_:
                    names.append(name)
                case ["end_header"]:
                    break
        if 2 * number * len(names) > path.stat().st_size:
            raise BadFile(
                f"{path} declares {number:,} points, more than it can hold.", [], _AWAY, code="file-truncated"
            )
        try:
            found = np.loadtxt(file, np.float64, max_rows=number, ndmin=2) if number and names else np.zeros((0, 0))
        except ValueError as error:
            raise BadFile(f"{path}: its points are no numbers.", [str(error)[:200]], _AWAY) from error
    if number and found.shape != (number, len(names)):
        raise BadFile(f"{path} declares {number:,} points of {len(names)} numbers, it holds {found.shape}.", [], _AWAY)
    return {name: found[:, column] if number else np.zeros(0) for column, name in enumerate(names)}
