"""One HTML page that holds splats and draws them in any browser with WebGL 2, without a network.

What is packed, deflated and in base64: centers as float32; logarithms of scales, rotations, opacities and colors as 16
bits between the lowest and the highest value; harmonics above the first as 8 bits, square roots of their share of the
largest of their degree.
"""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import numpy as np

from rung.models.card import View
from rung.splats.cameras import frame, orbit
from rung.splats.cloud import Cloud, Floats

#: Bounds beyond which no picture changes: logarithms of scales, and colors before harmonics are added.
_SMALLEST, _LARGEST, _COLOR = -40.0, 20.0, 8.0
_WIDE = 65535


def page(
    cloud: Cloud,
    cameras: Sequence[View] = (),
    *,
    background: Sequence[float] = (0.0, 0.0, 0.0),
    antialiased: bool = False,
    title: str = "splats",
) -> bytes:
    """The page; ``page.html#camera=I`` shows camera I at its size, and ``dataset.ready`` of its root element becomes
    "true" after the first sorted frame."""
    packed, facts = _packed(cloud)
    center, up, _ = frame(cameras, cloud)
    start = cameras[0] if cameras else orbit((), cloud, 1)[0]
    facts |= {
        "cameras": [_camera(view) for view in cameras],
        "start": _camera(start),
        "center": center.tolist(),
        "up": up.tolist(),
        "background": list(background),
        "antialiased": antialiased,
    }
    here = files("rung.splats.viewers")
    script = "".join((here / name).read_text("utf-8") for name in ("drawing.js", "controls.js"))
    red, green, blue = (round(255 * value) for value in background)
    parts = {
        "TITLE": html.escape(title),
        "BACKGROUND": f"rgb({red} {green} {blue})",
        "SCENE": json.dumps(facts).replace("<", "\\u003c"),
        "SPLATS": base64.b64encode(packed).decode("ascii"),
        "VIEWER": script,
    }
    text = (here / "page.html").read_text("utf-8")
    return re.sub("__([A-Z]+)__", lambda found: parts[found[1]], text).encode()


def _camera(view: View) -> dict[str, Any]:
    names = ("name", "width", "height", "fx", "fy", "cx", "cy")
    return {name: getattr(view, name) for name in names} | {"pose": list(view.pose)}


def _packed(cloud: Cloud) -> tuple[bytes, dict[str, Any]]:
    """The deflated bytes, and what a reader must know of them."""
    count, terms = len(cloud.means), cloud.harmonics.shape[1] - 1
    colors = np.clip(cloud.tints, -_COLOR, _COLOR)
    scales = np.clip(cloud.log_scales, _SMALLEST, _LARGEST)
    columns = np.concatenate([scales, cloud.units, cloud.opacities[:, None], colors], axis=1, dtype=np.float64).T
    low, high = (f(columns, axis=1, initial=0.0) for f in (np.min, np.max))
    step = np.maximum(high - low, 1e-9) / _WIDE
    words = np.rint((columns - low[:, None]) / step[:, None]).astype("<u2")
    roots, largest = _roots(cloud.harmonics[:, 1:])
    data = [np.ascontiguousarray(cloud.means.T, "<f4"), words, roots]
    facts = {
        "count": count,
        "terms": terms,
        "columns": np.stack([low, step], axis=1).tolist(),
        "largest": largest,
    }
    return zlib.compress(b"".join(part.tobytes() for part in data), 6), facts


def _roots(harmonics: Floats) -> tuple[np.ndarray, list[float]]:
    """int8 [terms, 3, N] whose signed squares, over 127^2, are shares of the largest value of each degree."""
    roots, largest = [], []
    for first, end in ((0, 3), (3, 8), (8, 15)):
        part = harmonics[:, first:end]
        most = float(np.abs(part).max(initial=0.0)) or 1.0
        largest.append(most)
        roots.append(np.rint(127 * np.sign(part) * np.sqrt(np.abs(part) / most)).astype(np.int8))
    return np.ascontiguousarray(np.concatenate(roots, axis=1).transpose(1, 2, 0)), largest
