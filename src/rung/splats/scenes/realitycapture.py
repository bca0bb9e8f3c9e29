"""The csv of RealityCapture: *Internal/External camera parameters*, a line for each photograph.

``x, y, alt`` is the place; ``heading, pitch, roll`` are degrees, all 0 of a camera that looks straight down with north
up. ``f`` is the focal length of 36 mm film, ``px, py`` the principal point from the middle in the same mm; k1
to k4, t1, t2 are Brown's distortion. The angles are nerfstudio's reading of the format (``realitycapture_utils.py``);
what ``px, py`` mean is nowhere said, and this is how its focal length is.
"""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np

from rung.core.errors import BadFile
from rung.models.card import View
from rung.splats.scenes.pictures import size_of

_LIMIT = 64 * 2**20
_NAME = "#name"
_NEEDED = ("x", "y", "alt", "heading", "pitch", "roll", "f")
_FILM = 36.0
_AGAIN = ["export again: Alignment, Registration, Internal/External camera parameters"]


def table(folder: Path) -> Path | None:
    """The first csv file of the folder that begins as RealityCapture's do."""
    for path in sorted(folder.glob("*.csv")) if folder.is_dir() else ():
        with path.open("rb") as file:
            head = file.readline(4096).decode("utf-8-sig", "replace").split(",")
        if head[0].strip() == _NAME:
            return path
    return None


def views(path: Path, images: Path | None = None) -> list[View]:
    """The views of a file. Photographs lie in ``images``, in the folder ``images`` beside it, or beside it."""
    if path.stat().st_size > _LIMIT:
        raise BadFile(f"{path} has {path.stat().st_size:,} bytes, too many for a list of photographs.", [], _AGAIN)
    lines = path.read_text("utf-8-sig", "replace").splitlines()
    try:
        rows = list(csv.DictReader(lines, skipinitialspace=True))
    except csv.Error as error:
        raise BadFile(f"{path} is no csv: {error}.", [], _AGAIN) from error
    missing = [name for name in _NEEDED if not rows or name not in rows[0]]
    if missing:
        raise BadFile(f"{path} has no column {', '.join(missing)}.", [], _AGAIN)
    near = path.parent / "images"
    folder = images or (near if near.is_dir() else path.parent)
    return [_view(path, number, row, folder) for number, row in enumerate(rows, 2)]


def _number(where: str, row: dict[str, str], name: str, default: str | None = None) -> float:
    text = row.get(name) or default
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadFile(f"{where}: {name} is {text!r}, not a number.", [], _AGAIN)
    return value


def _view(path: Path, line: int, row: dict[str, str], folder: Path) -> View:
    where, name = f"{path.name}, line {line}", row.get(_NAME) or ""
    if not name:
        raise BadFile(f"{where}: no name of a photograph.", [], _AGAIN)
    x, y, z, heading, pitch, roll, focal = (_number(where, row, column) for column in _NEEDED)
    image = folder / name
    # Where the photograph is not there, it is left out later, by its name.
    width, height = size_of(image) if image.is_file() else (1, 1)
    longer = max(width, height)
    if focal <= 0:
        raise BadFile(f"{where}: a focal length of {focal:g}.", [], _AGAIN)
    shift = [_number(where, row, column, "0") * longer / _FILM for column in ("px", "py")]
    bend = tuple(_number(where, row, column, "0") for column in ("k1", "k2", "t1", "t2", "k3", "k4"))
    turn = _about(2, -heading) @ _about(0, pitch) @ _about(1, roll)  # camera to world: right, up, backward
    back = (turn * np.array([1.0, -1.0, -1.0])).T
    position = np.array([[x], [y], [z]])
    return View(
        name,
        str(image),
        width,
        height,
        *(focal * longer / _FILM,) * 2,
        width / 2 + shift[0],
        height / 2 + shift[1],
        tuple(np.concatenate([back, -(back @ position)], axis=1).reshape(-1).tolist()),
        "opencv" if any(bend) else "pinhole",
        (bend if any(bend[4:]) else bend[:4]) if any(bend) else (),
    )


def _about(axis: int, degrees: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """The rotation about an axis by the right-hand rule."""
    cos, sin = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    found = np.eye(3)
    first, second = (axis + 1) % 3, (axis + 2) % 3
    found[[first, second], [first, second]] = cos
    found[first, second], found[second, first] = -sin, sin
    return found
