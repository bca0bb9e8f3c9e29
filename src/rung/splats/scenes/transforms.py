"""``transforms.json`` as nerfstudio writes it, and Blender's ``transforms_train.json`` and ``transforms_test.json``.

Their poses are camera to world with axes right, up, backward; those of a ``View`` are world to camera with axes
right, down, forward.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from rung.core.errors import BadFile
from rung.models.card import View
from rung.models.files.jsonfile import read_object
from rung.splats.scenes.pictures import size_of

#: 7,000 frames take 4 MB.
_LIMIT = 64 * 2**20
_LENSES = {"PINHOLE": "pinhole", "SIMPLE_PINHOLE": "pinhole", "PERSPECTIVE": "pinhole", "OPENCV": "opencv"}
_LENSES |= {"OPENCV_FISHEYE": "fisheye"}
_BENDS = {"opencv": ("k1", "k2", "p1", "p2", "k3", "k4"), "fisheye": ("k1", "k2", "k3", "k4"), "pinhole": ()}
_AGAIN = ["export the data set again: ns-process-data"]


def _number(where: str, fields: dict[str, Any], name: str, default: float | None = None) -> float:
    value = fields.get(name, default)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= sys.float_info.max:
        raise BadFile(f"{where}: {name} is {value!r}, not a number.", [], _AGAIN)
    return float(value)


def pose(where: str, value: Any) -> tuple[float, ...]:
    """World to camera from camera to world; raises ``BadFile`` for what is no rotation and translation."""
    try:
        matrix = np.array(value, np.float64)
    except (TypeError, ValueError, OverflowError):
        matrix = np.empty(0)
    good = matrix.shape in ((4, 4), (3, 4)) and bool(np.isfinite(matrix).all())
    if not good or np.abs(matrix[:3, :3] @ matrix[:3, :3].T - np.eye(3)).max() > 1e-2:
        raise BadFile(f"{where}: its transform_matrix is no rotation and translation.", [], _AGAIN)
    turn = matrix[:3, :3] * np.array([1.0, -1.0, -1.0])
    back = np.linalg.inv(turn)
    return tuple(np.concatenate([back, -(back @ matrix[:3, 3:])], axis=1).reshape(-1).tolist())


def inside(name: str) -> PurePath:
    """A photograph's name, which cannot lead out of a folder."""
    return PurePath(*(part for part in PurePath(name).parts if part not in (".", "..", "/")))


def below(name: str) -> PurePath:
    """A photograph's name without the folder of the photographs, as folders of masks and of smaller ones repeat it."""
    parts = inside(name).parts
    return PurePath(*(parts[1:] if len(parts) > 1 and parts[0].startswith("images") else parts))


def _image(folder: Path, where: str, value: Any, images: Path | None) -> Path:
    """The picture's place; Blender leaves its suffix out."""
    if not isinstance(value, str) or not PurePath(value).name:
        raise BadFile(f"{where}: file_path is {value!r}.", [], _AGAIN)
    path = folder / value if images is None else images / below(value)
    return path if path.suffix else path.with_name(path.name + ".png")


def _intrinsics(where: str, fields: dict[str, Any], path: Path) -> dict[str, Any]:
    """The camera of a frame, whose keys come before the file's."""
    if "w" in fields or "h" in fields:
        width, height = (_number(where, fields, name) for name in ("w", "h"))
    else:
        width, height = size_of(path)
    if not (1 <= width < 1 << 20 and 1 <= height < 1 << 20):
        raise BadFile(f"{where}: a picture of {width:g} x {height:g}.", [], _AGAIN)
    if "fl_x" in fields or "fl_y" in fields:
        fx = _number(where, fields, "fl_x", fields.get("fl_y"))
        fy = _number(where, fields, "fl_y", fx)
    else:
        angle = _number(where, fields, "camera_angle_x")
        fx = fy = 0.5 * width / math.tan(0.5 * angle) if 0 < angle < math.pi else 0.0
    if fx <= 0 or fy <= 0:
        raise BadFile(f"{where}: a focal length of {fx:g} and {fy:g}.", [], _AGAIN)
    model = str(fields.get("camera_model", "OPENCV"))
    if model not in _LENSES:
        raise BadFile(f"{where}: camera_model is {model!r}.", [f"known: {', '.join(_LENSES)}"], _AGAIN)
    lens = _LENSES[model]
    bend = tuple(_number(where, fields, name, 0.0) for name in _BENDS[lens])
    if lens == "opencv":
        lens, bend = ("pinhole", ()) if not any(bend) else (lens, bend if any(bend[4:]) else bend[:4])
    return {
        "width": round(width),
        "height": round(height),
        "fx": fx,
        "fy": fy,
        "lens": lens,
        "bend": bend,
        "cx": _number(where, fields, "cx", width / 2),
        "cy": _number(where, fields, "cy", height / 2),
    }


def views(path: Path, split: str = "", images: Path | None = None) -> tuple[list[View], str]:
    """The views of a file, and that of its points if it names one. ``split`` is that of the whole file; ``images`` is
    where the photographs are if not where it says."""
    fields = read_object(path, _LIMIT, _AGAIN)
    frames = fields.get("frames")
    if not isinstance(frames, list) or not all(isinstance(frame, dict) for frame in frames):
        raise BadFile(f"{path} has no list of frames.", [], _AGAIN)
    splits, found = dict[str, str](), []
    for part in ("train", "test"):
        named = fields.get(f"{part}_filenames") or []
        if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
            raise BadFile(f"{path.name}: {part}_filenames is no list of names.", [], _AGAIN)
        splits |= dict.fromkeys(named, part)
    for number, frame in enumerate(frames):
        where = f"{path}, frame {number} ({str(frame.get('file_path'))[:80]})"
        image = _image(path.parent, where, frame.get("file_path"), images)
        mask = frame.get("mask_path")
        found.append(
            View(
                name=str(frame["file_path"]),
                image=str(image),
                pose=pose(where, frame.get("transform_matrix")),
                mask=str(path.parent / mask) if isinstance(mask, str) else "",
                split=split or splits.get(frame["file_path"], ""),
                **_intrinsics(where, {**fields, **frame}, image),
            )
        )
    points = fields.get("ply_file_path")
    return found, str(path.parent / points) if isinstance(points, str) else ""
