"""The camera as kernels have it: words that all of them read, and the struct of WGSL that goes with them."""

from __future__ import annotations

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
