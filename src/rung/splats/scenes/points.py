"""The points that come with a scene: COLMAP's, or those of a PLY file, binary or text."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rung.core.errors import BadFile
from rung.models.card import SceneCard
from rung.splats.files.ply import elements, rows
from rung.splats.scenes import colmap

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
    return colmap.points(path.parent) if card.kind == "colmap" else ply(path)


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
