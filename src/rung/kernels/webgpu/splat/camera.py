"""The camera as kernels have it: words that all of them read, and the struct of WGSL that goes with them."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

#: Pixels of a side of a tile.
TILE = 16
#: The struct of a camera in WGSL; ``Words`` fills it.
INFO = """
struct Info {
    view: array<f32, 12>,
    fx: f32, fy: f32, cx: f32, cy: f32,
    low_u: f32, high_u: f32, low_v: f32, high_v: f32,
    near: f32, far: f32,
    eye_x: f32, eye_y: f32, eye_z: f32,
    count: u32, terms: u32, antialiased: u32,
    width: u32, height: u32, across: u32, down: u32,
    posed: u32, unsigned: u32,
}
"""


class Words(NamedTuple):
    """A picture to be drawn: ``view`` is world to camera in rows of four (12); ``limits`` are those of x/z and y/z at
    which the projection's slope is held (low x, high x, low y, high y).

    ``splats`` of them have ``terms`` harmonics (0: colors). On the way back ``posed`` asks for the gradient of the
    view, ``unsigned`` for absolute gradients by the centers.
    """

    view: Sequence[float]
    focal: tuple[float, float]
    center: tuple[float, float]
    limits: Sequence[float]
    planes: tuple[float, float]
    splats: int
    terms: int
    antialiased: bool
    size: tuple[int, int]
    posed: bool = False
    unsigned: bool = False

    @property
    def tiles(self) -> tuple[int, int]:
        """Return the tiles across and down."""
        width, height = self.size
        return -(-width // TILE), -(-height // TILE)

    def packed(self) -> npt.NDArray[np.uint32]:
        """Return the words of ``INFO``."""
        view = np.array(self.view, np.float64).reshape(3, 4)
        eye = -view[:, :3].T @ view[:, 3]
        with np.errstate(over="ignore"):
            numbers = np.array(
                [*self.view, *self.focal, *self.center, *self.limits, *self.planes, *eye], np.float64
            ).astype(np.float32)
        words = [self.splats, self.terms, self.antialiased, *self.size, *self.tiles, self.posed, self.unsigned]
        return np.concatenate([numbers.view(np.uint32), np.array(words, np.uint32)])


#: Bytes of the words.
INFO_BYTES = 4 * (25 + 9)


#: The harmonics of a unit vector d, by number.
_TERMS = (
    "0.28209479177387814",
    "-0.4886025119029199 * d.y",
    "0.4886025119029199 * d.z",
    "-0.4886025119029199 * d.x",
    "1.0925484305920792 * d.x * d.y",
    "-1.0925484305920792 * d.y * d.z",
    "0.31539156525252005 * (2.0 * d.z * d.z - d.x * d.x - d.y * d.y)",
    "-1.0925484305920792 * d.x * d.z",
    "0.5462742152960396 * (d.x * d.x - d.y * d.y)",
    "-0.5900435899266435 * d.y * (3.0 * d.x * d.x - d.y * d.y)",
    "2.890611442640554 * d.x * d.y * d.z",
    "-0.4570457994644658 * d.y * (4.0 * d.z * d.z - d.x * d.x - d.y * d.y)",
    "0.3731763325901154 * d.z * (2.0 * d.z * d.z - 3.0 * d.x * d.x - 3.0 * d.y * d.y)",
    "-0.4570457994644658 * d.x * (4.0 * d.z * d.z - d.x * d.x - d.y * d.y)",
    "1.445305721320277 * d.z * (d.x * d.x - d.y * d.y)",
    "-0.5900435899266435 * d.x * (d.x * d.x - 3.0 * d.y * d.y)",
)
#: Their derivatives by d.
_SLOPES = (
    "vec3<f32>(0.0)",
    "vec3<f32>(0.0, -0.4886025119029199, 0.0)",
    "vec3<f32>(0.0, 0.0, 0.4886025119029199)",
    "vec3<f32>(-0.4886025119029199, 0.0, 0.0)",
    "1.0925484305920792 * vec3<f32>(d.y, d.x, 0.0)",
    "-1.0925484305920792 * vec3<f32>(0.0, d.z, d.y)",
    "0.31539156525252005 * vec3<f32>(-2.0 * d.x, -2.0 * d.y, 4.0 * d.z)",
    "-1.0925484305920792 * vec3<f32>(d.z, 0.0, d.x)",
    "0.5462742152960396 * vec3<f32>(2.0 * d.x, -2.0 * d.y, 0.0)",
    "-0.5900435899266435 * vec3<f32>(6.0 * d.x * d.y, 3.0 * d.x * d.x - 3.0 * d.y * d.y, 0.0)",
    "2.890611442640554 * vec3<f32>(d.y * d.z, d.x * d.z, d.x * d.y)",
    "-0.4570457994644658 * vec3<f32>(-2.0 * d.x * d.y, 4.0 * d.z * d.z - d.x * d.x - 3.0 * d.y * d.y, 8.0 * d.y * d.z)",
    "0.3731763325901154 * vec3<f32>(-6.0 * d.x * d.z, -6.0 * d.y * d.z,"
    " 6.0 * d.z * d.z - 3.0 * d.x * d.x - 3.0 * d.y * d.y)",
    "-0.4570457994644658 * vec3<f32>(4.0 * d.z * d.z - 3.0 * d.x * d.x - d.y * d.y, -2.0 * d.x * d.y, 8.0 * d.x * d.z)",
    "1.445305721320277 * vec3<f32>(2.0 * d.x * d.z, -2.0 * d.y * d.z, d.x * d.x - d.y * d.y)",
    "-0.5900435899266435 * vec3<f32>(3.0 * d.x * d.x - 3.0 * d.y * d.y, -6.0 * d.x * d.y, 0.0)",
)
_READ = "vec3<f32>(colors[first + {0}u], colors[first + {1}u], colors[first + {2}u])"


def _coefficient(term: int) -> str:
    return _READ.format(3 * term, 3 * term + 1, 3 * term + 2)


@functools.cache
def view_color(degree: int | None) -> str:
    """Return ``fn view_color(first, d)``: the color that is seen along the unit vector d, of the harmonics that begin
    at ``colors[first]``; plain colors as they are."""
    if degree is None:
        return f"fn view_color(first: u32, d: vec3<f32>) -> vec3<f32> {{ return {_coefficient(0)}; }}"
    lines = [f"    sum += ({_TERMS[term]}) * {_coefficient(term)};" for term in range((degree + 1) ** 2)]
    body = "\n".join(["    var sum = vec3<f32>(0.5);", *lines, "    return max(sum, vec3<f32>(0.0));"])
    return f"fn view_color(first: u32, d: vec3<f32>) -> vec3<f32> {{\n{body}\n}}"


@functools.cache
def color_back(degree: int | None) -> str:
    """Return ``fn color_back(first, d, given)``: writes ``g_colors`` from the gradient of the color, and returns the
    gradient by d."""
    head = "fn color_back(first: u32, d: vec3<f32>, given: vec3<f32>) -> vec3<f32> {\n    var slope = vec3<f32>(0.0);\n"
    if degree is None:
        return f"{head}{_write(0, 'given')}\n    return slope;\n}}"
    lines = []
    for term in range((degree + 1) ** 2):
        lines.append(_write(term, f"({_TERMS[term]}) * given"))
        if term:
            lines.append(f"    slope += dot({_coefficient(term)}, given) * ({_SLOPES[term]});")
    return head + "\n".join(lines) + "\n    return slope;\n}"


def _write(term: int, value: str) -> str:
    parts = "".join(f" g_colors[first + {3 * term + at}u] = v.{axis};" for at, axis in enumerate("xyz"))
    return f"    {{ let v = {value};{parts} }}"
