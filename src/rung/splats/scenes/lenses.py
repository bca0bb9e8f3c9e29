"""Hold what a lens bends, taken back: the pinhole camera that a photograph of a bent one can fill, and its picture.

A point at (x, y, 1) of the camera falls on ``fx x' + cx``, ``fy y' + cy``. OpenCV's model (docs.opencv.org, calib3d):
x' = x (1 + k1 r2 + k2 r2^2 + k3 r2^3 + k4 r2^4) + 2 p1 x y + p2 (r2 + 2 x^2), and y' likewise; k4 is Brown's, as
nerfstudio and RealityCapture have it. Its fisheye model: the angle t from the axis becomes
t (1 + k1 t^2 + k2 t^4 + k3 t^6 + k4 t^8).
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import numpy.typing as npt

from rung.core.errors import BadFile
from rung.models.card import View

Doubles = npt.NDArray[np.float64]
Bytes = npt.NDArray[np.uint8]

#: How far the focal length may change so that the picture is filled: half keeps most of a fisheye's field of view, and
#: a lens that needs more than four times is none.
_ZOOM = (0.5, 4.0)
#: Points on every side of the picture that must fall on the photograph, and on the ray to each of them.
_SIDE, _RAY = 65, 32


def bent(view: View, x: Doubles, y: Doubles) -> tuple[Doubles, Doubles]:
    """Where rays (x, y, 1) fall on the photograph of ``view``, in pixels from its corner."""
    r2 = x * x + y * y
    if view.lens == "opencv":
        k1, k2, p1, p2, k3, k4 = (*view.bend, 0.0, 0.0)[:6]
        radial = 1 + r2 * (k1 + r2 * (k2 + r2 * (k3 + r2 * k4)))
        across = x * radial + 2 * p1 * x * y + p2 * (r2 + 2 * x * x)
        down = y * radial + p1 * (r2 + 2 * y * y) + 2 * p2 * x * y
    elif view.lens == "fisheye":
        k1, k2, k3, k4 = view.bend
        r = np.sqrt(r2)
        t = np.arctan(r)
        t2 = t * t
        turned = t * (1 + t2 * (k1 + t2 * (k2 + t2 * (k3 + t2 * k4))))
        ratio = np.divide(turned, r, out=np.ones_like(r), where=r > 1e-12)
        across, down = x * ratio, y * ratio
    else:
        across, down = x, y
    return view.fx * across + view.cx, view.fy * down + view.cy


def _fits(view: View, zoom: float) -> bool:
    """Return whether every point on the border of the straight picture falls on the photograph, and further out than
    all points between it and the middle (a polynomial may turn back)."""
    along = np.linspace(0, 1, _SIDE)
    u = np.concatenate([along, along, np.zeros(_SIDE), np.ones(_SIDE)]) * view.width
    v = np.concatenate([np.zeros(_SIDE), np.ones(_SIDE), along, along]) * view.height
    steps = np.linspace(0, 1, _RAY)[:, None]
    x, y = (u - view.cx) / (zoom * view.fx) * steps, (v - view.cy) / (zoom * view.fy) * steps
    across, down = bent(view, x, y)
    out = np.hypot((across - view.cx) / view.fx, (down - view.cy) / view.fy)
    near = 1e-6 * max(view.width, view.height)
    inside = (across >= -near) & (across <= view.width + near) & (down >= -near) & (down <= view.height + near)
    return bool(inside.all() and (np.diff(out, axis=0) >= 0).all())


@functools.lru_cache
def _zoom(camera: View) -> float:
    """The least factor of the focal length with which the picture is filled; inf where there is none."""
    low, high = _ZOOM
    if _fits(camera, low):
        return low
    if not _fits(camera, high):
        return math.inf
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if _fits(camera, middle) else (middle, high)
    return high


def straight(view: View) -> View:
    """The pinhole camera of the same size and principal point whose picture the photograph fills, with the shortest
    focal length, but never less than half. Raises ``BadFile`` for a lens that has none."""
    if view.lens == "pinhole":
        return view
    # Scenes have thousands of views and few cameras.
    zoom = _zoom(dataclasses.replace(view, name="", image="", mask="", split="", pose=()))
    if zoom == math.inf:
        numbers = ", ".join(f"{value:g}" for value in view.bend)
        raise BadFile(
            f"{view.name}: the {view.lens} lens with {numbers} has no picture without distortion.",
            [f"focal lengths {view.fx:g} and {view.fy:g}, {view.width} x {view.height}"],
            ["calibrate the camera again", "undistort the images once: colmap image_undistorter"],
        )
    return dataclasses.replace(view, fx=view.fx * zoom, fy=view.fy * zoom, lens="pinhole", bend=())


def places(view: View, target: View) -> tuple[Doubles, Doubles]:
    """Where the pixels of ``target`` lie on the photograph of ``view``: [H, W] each, in pixels from its corner."""
    x = (np.arange(target.width) + 0.5 - target.cx) / target.fx
    y = (np.arange(target.height) + 0.5 - target.cy) / target.fy
    return bent(view, *(np.ascontiguousarray(part) for part in np.broadcast_arrays(x[None, :], y[:, None])))


def unbent(picture: Bytes, view: View, target: View) -> Bytes:
    """The photograph of ``view``, [H, W] or [H, W, C], as the pinhole camera ``target`` sees it: between four pixels
    each, those at the border repeated."""
    height, width = picture.shape[:2]
    flat = picture.reshape(height * width, -1)
    found = np.empty((target.height, target.width, flat.shape[1]), np.uint8)
    rows = max(1, 2**18 // target.width)  # so that what is held beside the pictures is a few megabytes
    for start in range(0, target.height, rows):
        part = dataclasses.replace(target, height=min(rows, target.height - start), cy=target.cy - start)
        u, v = (coordinate - 0.5 for coordinate in places(view, part))
        u, v = u.clip(0, width - 1), v.clip(0, height - 1)
        left, top = (
            np.minimum(coordinate.astype(np.int64), side - 2 if side > 1 else 0)
            for coordinate, side in ((u, width), (v, height))
        )
        along, across = (u - left).astype(np.float32)[..., None], (v - top).astype(np.float32)[..., None]
        corner = top * width + left
        right, below = int(width > 1), width * int(height > 1)
        upper = flat[corner] * (1 - along) + flat[corner + right] * along
        lower = flat[corner + below] * (1 - along) + flat[corner + below + right] * along
        found[start : start + part.height] = upper * (1 - across) + lower * across + 0.5
    return found.reshape(target.height, target.width, *picture.shape[2:])
