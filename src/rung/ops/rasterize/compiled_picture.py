"""A picture of splats by compiled kernels, and its way back, in arrays: what ``numba.tile`` is without torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from rung.kernels.cpu.named_words import NamedWords
from rung.kernels.cpu.splat import projection, tiles
from rung.kernels.cpu.splat.shape import CAMERA
from rung.kernels.cpu.thread_pool import process_threads
from rung.kernels.isa.splats import RECORD, STATE
from rung.ops.rasterize import MARGIN, TILE, Camera

Floats = npt.NDArray[np.float32]
#: All that a picture and its way back run.
KERNELS = (
    *(projection.project, projection.project_back),
    *(tiles.count_tiles, tiles.list_tiles, tiles.composite, tiles.blame),
)
_LANES = np.arange(TILE, dtype=np.float32)
_LINE = 64


def _camera(pose: npt.NDArray[Any], camera: Camera) -> npt.NDArray[np.float64]:
    """The float64 that ``rung.kernels.cpu.splat.shape`` describes."""
    fx, fy, cx, cy = camera.fx, camera.fy, camera.cx, camera.cy
    wide, high = MARGIN * 0.5 * camera.width / fx, MARGIN * 0.5 * camera.height / fy
    limits = (-cx / fx - wide, (camera.width - cx) / fx + wide, -cy / fy - high, (camera.height - cy) / fy + high)
    view = pose[:3].astype(np.float64).reshape(-1).tolist()
    numbers = np.array([*view, fx, fy, cx, cy, *limits, camera.near, camera.far])
    assert numbers.size == CAMERA
    return numbers


def by_size(values: Floats) -> npt.NDArray[np.int64]:
    """The order of numbers, of equal ones that in which they stand.

    NumPy sorts integers of 16 bits in linear time: two times that takes a third of the time of a million floats.
    """
    bits = values.view(np.int32)
    keys = (bits ^ (bits >> 31 & 0x7FFFFFFF)).view(np.uint32) ^ np.uint32(1 << 31)  # in the order of the numbers
    order = np.argsort(keys.astype(np.uint16), kind="stable")
    found: npt.NDArray[np.int64] = order[np.argsort((keys >> 16).astype(np.uint16)[order], kind="stable")]
    return found


def _aligned(*shape: int) -> Floats:
    """Return an array that is not filled, at the beginning of a line of the cache."""
    count = math.prod(shape)
    raw = np.empty(count + _LINE // 4, np.float32)
    start = -raw.ctypes.data % _LINE // 4
    return raw[start : start + count].reshape(shape)


class CompiledPicture:
    """One picture: what the way forward found and the way back needs.

    ``states`` [tiles down, tiles across, 16, 6, 16] are what ``rung.kernels.isa.splats`` says of each row of each tile,
    ``radii`` int32 [N, 2] those of the contract.
    """

    def __init__(self, splats: Mapping[str, Floats], pose: npt.NDArray[Any], camera: Camera) -> None:
        """Draw splats, arrays without gaps by the names of ``Splats``."""
        self.camera, self.count, self._threads = camera, len(splats["means"]), process_threads()
        self.across, self.down = -(-camera.width // TILE), -(-camera.height // TILE)
        self._project, self._tiles = NamedWords(projection.WORDS), NamedWords(tiles.WORDS)
        self.records = np.empty((self.count, len(RECORD)), np.float32)
        self.radii = np.empty((self.count, 2), np.int32)
        self.counts = np.empty(self.count, np.int64)
        spans = np.empty((self.count, 4), np.int32)
        self._project.set(
            count=self.count,
            harmonics=0 if camera.degree is None else splats["colors"].shape[1],
            degree=camera.degree or 0,
            antialiased=int(camera.antialiased),
            width=camera.width,
            height=camera.height,
            across=self.across,
            down=self.down,
            camera=_camera(pose, camera),
            **splats,
            records=self.records,
            radii=self.radii,
            tiles=spans,
            tile_counts=self.counts,
            scratch=np.empty(self._threads * projection.SCRATCH),
        )
        self._project.run(projection.project, self._threads)
        self._list(spans)
        self.states = _aligned(self.down, self.across, TILE, STATE, TILE)
        self._tiles.set(states=self.states, lanes=_LANES)
        self._tiles.run(tiles.composite, self._threads)

    def _list(self, spans: npt.NDArray[np.int32]) -> None:
        """Lists every tile's splats by depth."""
        visible = np.flatnonzero(self.counts)
        order = visible[by_size(self.records[visible, RECORD.index("depth")])]
        self.starts = starts = np.zeros(self.count + 1, np.int64)
        np.cumsum(self.counts, out=starts[1:])
        self.listed = int(starts[-1])
        tile_starts = np.zeros(self.across * self.down + 1, np.int64)
        self._tiles.set(
            width=self.camera.width,
            height=self.camera.height,
            across=self.across,
            down=self.down,
            visible=len(order),
            order=order,
            records=self.records,
            tiles=spans,
            starts=starts,
            tile_starts=tile_starts,
            listed=np.empty(self.listed, np.int64),
            entries=np.empty(self.listed, np.int64),
        )
        self._project.set(starts=starts)
        self._tiles.run(tiles.count_tiles, self._threads)
        np.cumsum(tile_starts, out=tile_starts)
        self._tiles.set(tile_starts=tile_starts.copy())
        self._tiles.run(tiles.list_tiles, self._threads)
        self._tiles.set(tile_starts=tile_starts)

    def means(self) -> Floats:
        """The centers in pixels [N, 2], of splats that are in the picture; zeros for the others."""
        at = [RECORD.index(name) for name in ("x", "y", "pixel_x", "pixel_y")]
        kept = np.where(self.counts[:, None] > 0, self.records[:, at], 0)
        found: Floats = kept[:, :2] + kept[:, 2:]
        return found

    def back(
        self, splats: Mapping[str, Floats], gradients: Any, absolute: bool
    ) -> tuple[dict[str, Floats], Floats, Floats]:
        """Gradients of the splats, of ``screen``, with ``absolute`` of four columns, and of three rows of the pose.

        ``gradients`` f32 [tiles down, tiles across, 16, 5, 16] are those of red, green, blue, depth and alpha of each
        row of each tile.
        """
        gains = np.empty((self.listed, projection.GAINS), np.float32)
        scratch = np.empty(self._threads * tiles.SCRATCH, np.uint8)
        unsigned = np.zeros((self.listed, 2), np.float32) if absolute else 0
        self._tiles.set(gradients=gradients, gains=gains, scratch=scratch, unsigned=unsigned)
        self._tiles.run(tiles.blame, self._threads)
        found = {name: np.zeros_like(array) for name, array in splats.items()}
        screen = np.zeros((self.count, 2), np.float32)
        chunks = np.zeros((-(-self.count // projection.CHUNK), 3, 4))
        self._project.set(
            gains=gains,
            **{f"g_{name}": array for name, array in found.items()},
            g_screen=screen,
            g_camera=chunks,
        )
        self._project.run(projection.project_back, self._threads)
        if absolute:
            screen = np.concatenate([screen, self._by_splat(unsigned)], axis=1)
        return found, screen, chunks.sum(0).astype(np.float32)

    def _by_splat(self, values: Any) -> Floats:
        """Return the sums [N, 2] of what the tiles of each splat add to it."""
        ends = np.concatenate([np.zeros((1, 2)), np.cumsum(values, axis=0, dtype=np.float64)])
        found: Floats = (ends[self.starts[1:]] - ends[self.starts[:-1]]).astype(np.float32)
        return found
