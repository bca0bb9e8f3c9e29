"""Cameras that look at a trained scene: those of its run, an orbit, or those of a file. Without torch."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rung.core.errors import BadFile, UsageError
from rung.models.card import View
from rung.models.files.jsonfile import read_object
from rung.splats.cloud import Cloud
from rung.splats.poses import focus, places, pose_of
from rung.splats.scenes import colmap, transforms

#: The cameras of a training run, in its folder.
CAMERAS = "cameras.json"
#: 100,000 cameras take 60 MB.
_LIMIT = 256 * 2**20
#: Views of an orbit, its height above the horizon, and the picture of a scene whose cameras are not known.
FRAMES = 120
_ELEVATION, _FIELD, _SIZE = math.radians(15), math.radians(50), (800, 600)


class Frame(NamedTuple):
    """Hold what a scene is turned around: ``center`` [3], the direction ``up`` [3], and how far away cameras stand."""

    center: np.ndarray
    up: np.ndarray
    distance: float


def of_run(folder: Path) -> tuple[View, ...]:
    """The cameras that a training run left; none where it left no file. Raises ``BadFile``."""
    path = folder / CAMERAS
    return _of_views(path) if path.is_file() else ()


def _of_views(path: Path) -> tuple[View, ...]:
    if path.stat().st_size > _LIMIT:
        raise BadFile(f"{path} holds {path.stat().st_size:,} bytes: no list of cameras.", [], ["check the file"])
    try:
        found = tuple(View.from_json(each) for each in json.loads(path.read_text("utf-8")))
    except (ValueError, TypeError) as error:
        raise BadFile(f"{path} holds no cameras as rung writes them: {error}", [], ["check the file"]) from error
    for view in found:
        numbers = (view.fx, view.fy, view.cx, view.cy, *view.pose)
        good = len(view.pose) == 12 and all(map(math.isfinite, numbers)) and view.fx > 0 and view.fy > 0
        if not good or not (0 < view.width < 1 << 16 and 0 < view.height < 1 << 16):
            raise BadFile(f"{path}: {view.name} is no camera.", [str(view.to_json())], ["check the file"])
    return found


def chosen(
    which: str, views: Sequence[View], cloud: Cloud, size: tuple[int, int] | None = None, frames: int = FRAMES
) -> tuple[View, ...]:
    """The cameras of a name: ``test`` or ``train`` of a run's ``views``, ``orbit``, or those of a file or folder.

    ``size`` (width, height) is that of all pictures, by default each camera's own. Lenses are straight. Raises
    ``UsageError`` for names without cameras, ``BadFile``.
    """
    if which == "orbit":
        found = orbit(views, cloud, frames)
    elif which in ("test", "train"):
        found = tuple(view for view in views if view.split == which)
    else:
        found = _of_file(Path(which))
    if not found:
        raise UsageError(
            f"There are no cameras of {which}.",
            [] if views else [f"a run's cameras are in its folder, in {CAMERAS}"],
            ["--cameras orbit", "--cameras with a transforms.json or a COLMAP folder"],
        )
    found = tuple(replace(view, lens="pinhole", bend=()) for view in found)
    return found if size is None else tuple(_sized(view, *size) for view in found)


def _sized(view: View, width: int, height: int) -> View:
    """The view in another size: what it shows from top to bottom stays."""
    scale = height / view.height
    return replace(
        view,
        width=width,
        height=height,
        fx=view.fx * scale,
        fy=view.fy * scale,
        cx=width / 2 + (view.cx - view.width / 2) * scale,
        cy=view.cy * scale,
    )


def _of_file(path: Path) -> tuple[View, ...]:
    models = colmap.folders(path) if path.is_dir() else []
    file = path / "transforms.json" if path.is_dir() else path
    try:
        if models:
            return _of_colmap(max(models, key=lambda model: len(colmap.images(model))))
        if file.name == CAMERAS:
            return _of_views(file)
        if file.is_file():
            fields = read_object(file, _LIMIT, ["check the file"])
            return _of_path(file, fields) if "camera_path" in fields else tuple(transforms.views(file)[0])
    except OSError as error:
        raise BadFile(
            f"{error.filename or path} cannot be read: {error.strerror}.",
            [],
            ["check the name"],
            code="file-unreadable",
        ) from error
    raise UsageError(
        f"There are no cameras in {path}.",
        [f"taken are transforms.json, a folder with it or with a COLMAP model, a camera path of nerfstudio, {CAMERAS}"],
        ["--cameras orbit", "check the name"],
    )


def _of_colmap(model: Path) -> tuple[View, ...]:
    cameras = colmap.cameras(model)
    return tuple(
        View(image.name, "", pose=image.pose, **cameras[image.camera]._asdict())
        for image in colmap.images(model)
        if image.camera in cameras
    )


def _of_path(path: Path, fields: dict[str, Any]) -> tuple[View, ...]:
    """nerfstudio's camera path: camera to world as 16 numbers row by row, vertical fields of view in degrees."""
    kind = fields.get("camera_type", "perspective")
    if kind != "perspective":
        raise UsageError(f"{path} asks for {kind} pictures.", ["rung draws perspective ones"], ["--cameras orbit"])
    found = []
    try:
        width, height = int(fields["render_width"]), int(fields["render_height"])
        for number, frame in enumerate(fields["camera_path"]):
            focal = 0.5 * height / math.tan(0.5 * math.radians(float(frame["fov"])))
            if not (0 < width < 1 << 16 and 0 < height < 1 << 16 and 0 < focal < math.inf):
                raise ValueError(f"{width} x {height} with a focal length of {focal:g}")
            pose = transforms.pose(f"{path.name}, camera {number}", np.reshape(frame["camera_to_world"], (4, 4)))
            found.append(View(f"{number:05d}", "", width, height, focal, focal, width / 2, height / 2, pose))
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise BadFile(f"{path} is no camera path as nerfstudio writes it: {error}", [], ["export it again"]) from error
    return tuple(found)


def frame(views: Sequence[View], cloud: Cloud) -> Frame:
    """Around what and how far away a scene is looked at.

    With cameras: what they focus on, their mean upright, their median distance. Else the middle of
    the splats, from twice as far as nine tenths of them lie, and up is -y, as COLMAP's first camera has it.
    """
    if not views:
        means = cloud.means if len(cloud.means) else np.zeros((1, 3), np.float32)
        middle = np.median(means, axis=0).astype(np.float64)
        far = float(np.quantile(np.linalg.norm(means - middle, axis=1), 0.9))
        return Frame(middle, np.array([0.0, -1.0, 0.0]), 2 * far or 1.0)
    center = focus(views)
    distance = float(np.median(np.linalg.norm(places(views) - center, axis=1)))
    if distance < 1e-6:
        distance = frame((), cloud).distance
    up = -np.mean([pose_of(view)[1, :3] for view in views], axis=0)
    length = float(np.linalg.norm(up))
    return Frame(center, up / length if length > 1e-3 else np.array([0.0, -1.0, 0.0]), distance)


def looking(position: np.ndarray, at: np.ndarray, up: np.ndarray) -> tuple[float, ...]:
    """The pose of a camera [3] that looks at a point [3], upright."""
    ahead = (at - position) / np.linalg.norm(at - position)
    right = np.cross(ahead, up)
    right /= np.linalg.norm(right)
    turn = np.stack([right, np.cross(ahead, right), ahead])
    return tuple(np.concatenate([turn, -(turn @ position)[:, None]], axis=1).reshape(-1).tolist())


def aside(up: np.ndarray) -> np.ndarray:
    """A direction [3] across another, both of length 1."""
    side = np.cross(up, [1.0, 0, 0] if abs(up[0]) < 0.9 else [0, 0, 1.0])
    result: np.ndarray = side / np.linalg.norm(side)
    return result


def orbit(views: Sequence[View], cloud: Cloud, frames: int = FRAMES) -> tuple[View, ...]:
    """So many views evenly around the scene, a little from above; the picture is that of the first camera."""
    center, up, distance = frame(views, cloud)
    if views:
        lens = replace(views[0], cx=views[0].width / 2, cy=views[0].height / 2)
    else:
        focal = 0.5 * _SIZE[1] / math.tan(0.5 * _FIELD)
        lens = View("", "", *_SIZE, focal, focal, _SIZE[0] / 2, _SIZE[1] / 2, ())
    side = aside(up)
    other = np.cross(side, up)
    found = []
    for number in range(frames):
        angle = 2 * math.pi * number / frames
        level = math.cos(angle) * side + math.sin(angle) * other
        position = center + distance * (math.cos(_ELEVATION) * level + math.sin(_ELEVATION) * up)
        name = f"{number:05d}"
        found.append(replace(lens, name=name, image="", mask="", split="", pose=looking(position, center, up)))
    return tuple(found)
