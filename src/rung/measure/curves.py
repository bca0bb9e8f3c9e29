"""Curves as a file: SVG for any browser, or PNG.

A file is written under another name beside its own and then renamed: what is there is whole.
"""

from __future__ import annotations

import html
import math
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from rung.core.errors import UsageError
from rung.core.files import writing, written_whole
from rung.core.text import quoted

#: Colors that are told apart with every kind of sight (Okabe and Ito, 2008).
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
#: Dashes and gaps in pixels, for the curves after the last color.
_DASHES = ((), (6, 3), (2, 3))
_WIDE, _HIGH, _LEFT, _TOP, _BELOW, _RIGHT = 720, 360, 64, 36, 44, 120
#: A curve of more points has no dots.
_MOST_DOTS = 200
Point = tuple[float, float]


class _Canvas(Protocol):
    """A picture of ``_WIDE`` by ``_HIGH`` pixels that is drawn on."""

    def rule(self, begin: Point, end: Point) -> None:
        """Draw a line of the grid."""

    def curve(self, points: Sequence[Point], color: str, dashes: Sequence[int]) -> None:
        """Draw a line through points."""

    def dot(self, at: Point, color: str) -> None:
        """Draw a point."""

    def text(self, at: Point, words: str, anchor: str, color: str = "#000000", upright: bool = False) -> None:
        """Write words whose ``start``, ``middle`` or ``end`` lies at a point; ``upright`` ones run upwards."""

    def save(self, path: Path) -> None:
        """Write the file."""


class _Svg:
    def __init__(self) -> None:
        self._parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDE} {_HIGH}" font-family="sans-serif" '
            'font-size="12">',
            f'<rect width="{_WIDE}" height="{_HIGH}" fill="white"/>',
        ]

    def rule(self, begin: Point, end: Point) -> None:
        (x1, y1), (x2, y2) = begin, end
        self._parts.append(f'<line x1="{x1:.1f}" x2="{x2:.1f}" y1="{y1:.1f}" y2="{y2:.1f}" stroke="#ddd"/>')

    def curve(self, points: Sequence[Point], color: str, dashes: Sequence[int]) -> None:
        line, dash = " ".join(f"{x:.1f},{y:.1f}" for x, y in points), " ".join(map(str, dashes))
        drawn = f'fill="none" stroke="{color}" stroke-width="1.5" stroke-dasharray="{dash}"'
        self._parts.append(f'<polyline points="{line}" {drawn}/>')

    def dot(self, at: Point, color: str) -> None:
        self._parts.append(f'<circle cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="2" fill="{color}"/>')

    def text(self, at: Point, words: str, anchor: str, color: str = "#000000", upright: bool = False) -> None:
        turn = f' transform="rotate(-90 {at[0]:.1f} {at[1]:.1f})"' if upright else ""
        position = f'x="{at[0]:.1f}" y="{at[1]:.1f}" text-anchor="{anchor}" fill="{color}"{turn}'
        self._parts.append(f"<text {position}>{html.escape(words)}</text>")

    def save(self, path: Path) -> None:
        path.write_text("\n".join([*self._parts, "</svg>\n"]), encoding="utf-8")


class _Png:
    def __init__(self) -> None:
        from PIL import Image, ImageDraw

        self._image = Image.new("RGB", (_WIDE, _HIGH), "white")
        self._draw = ImageDraw.Draw(self._image)

    def rule(self, begin: Point, end: Point) -> None:
        self._draw.line([begin, end], fill="#dddddd")

    def curve(self, points: Sequence[Point], color: str, dashes: Sequence[int]) -> None:
        self._draw.line(list(points), fill=color, width=2)  # pillow draws no dashes

    def dot(self, at: Point, color: str) -> None:
        self._draw.ellipse((at[0] - 2, at[1] - 2, at[0] + 2, at[1] + 2), fill=color)

    def text(self, at: Point, words: str, anchor: str, color: str = "#000000", upright: bool = False) -> None:
        from PIL import Image, ImageDraw

        wide, high = math.ceil(self._draw.textlength(words)), 12
        before = {"start": 0.0, "middle": wide / 2, "end": float(wide)}[anchor]
        if not upright:
            self._draw.text((at[0] - before, at[1] - high), words, fill=color)
            return
        line = Image.new("RGB", (wide, high + 2), "white")
        ImageDraw.Draw(line).text((0, 0), words, fill=color)
        self._image.paste(line.rotate(90, expand=True), (round(at[0]) - high, round(at[1] - before)))

    def save(self, path: Path) -> None:
        self._image.save(path, format="PNG")


def check_curves(path: Path) -> None:
    """Raises ``UsageError`` when ``curves`` could not draw an SVG there."""
    if path.suffix.lower() != ".svg":
        raise UsageError(f"{path.name} is no SVG.", (), [f"--picture {quoted(path.with_suffix('.svg'))}"])
    if not path.absolute().parent.is_dir():
        raise UsageError(
            f"There is no folder {path.parent}.", (), [f"mkdir -p {quoted(path.parent)}"], code="path-unknown"
        )
    if path.is_dir():
        raise UsageError(
            f"{path} cannot be written: it is a folder.", (), ["name another place"], code="output-unwritable"
        )
    with writing(path), tempfile.TemporaryFile(dir=path.absolute().parent):
        pass


def curves(path: Path, series: Mapping[str, Sequence[Point]], title: str, x: str, y: str) -> None:
    """Draw a curve of points (x, y) for each label, as PNG where the path ends so, else as SVG.

    Points that are not finite are left out, and labels without points. Raises ``OSError`` where nothing can be written.
    """
    points = {label: [p for p in pairs if all(map(math.isfinite, p))] for label, pairs in series.items()}
    every = [point for pairs in points.values() for point in pairs] or [(0.0, 0.0)]
    (low_x, high_x), (low_y, high_y) = (_span([point[axis] for point in every]) for axis in (0, 1))

    def position_of(point: Point) -> Point:
        across = _LEFT + (point[0] - low_x) / (high_x - low_x) * (_WIDE - _LEFT - _RIGHT)
        return across, _HIGH - _BELOW - (point[1] - low_y) / (high_y - low_y) * (_HIGH - _TOP - _BELOW)

    canvas: _Canvas = _Png() if path.suffix.lower() == ".png" else _Svg()
    canvas.text((_LEFT, 20), title, "start")
    canvas.text(((_LEFT + _WIDE - _RIGHT) / 2, _HIGH - 8), x, "middle")
    canvas.text((14, (_TOP + _HIGH - _BELOW) / 2), y, "middle", upright=True)
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        value_x, value_y = low_x + share * (high_x - low_x), low_y + share * (high_y - low_y)
        across, down = position_of((value_x, value_y))
        canvas.rule((_LEFT, down), (_WIDE - _RIGHT, down))
        canvas.text((_LEFT - 6, down + 4), f"{value_y:.4g}", "end")
        canvas.text((across, _HIGH - _BELOW + 16), f"{value_x:.4g}", "middle")
    for number, (label, pairs) in enumerate((label, pairs) for label, pairs in points.items() if pairs):
        color, dashes = _COLORS[number % len(_COLORS)], _DASHES[number // len(_COLORS) % len(_DASHES)]
        found = [position_of(point) for point in pairs]
        canvas.curve(found, color, dashes)
        for at in found if len(found) <= _MOST_DOTS else ():
            canvas.dot(at, color)
        canvas.text((_WIDE - _RIGHT + 10, _TOP + 16 * number), label, "start", color)
    with written_whole(path) as temporary:
        canvas.save(temporary)


def _span(values: Sequence[float]) -> tuple[float, float]:
    low, high = min(values), max(values)
    return (low, high) if high > low else (low - 0.5, high + 0.5)
