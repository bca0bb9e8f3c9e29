"""Gaussian splats on the processor: compiled tiles of 16 x 16 pixels, 16 at a time, with analytic gradients.

Projection and gradients of splats are float64, tiles float32. The same inputs give the same bits, whatever the
number of threads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rung.kernels.cpu.compiled import Kernel
from rung.kernels.cpu.splat import projection, tiles
from rung.kernels.cpu.splat.shape import CAMERA
from rung.kernels.cpu.thread_pool import run
from rung.kernels.isa.splats import OUTPUTS, RECORD, STATE
from rung.ops.rasterize import MARGIN, TILE, Camera, Picture, Splats

#: All that a picture and its way back run.
KERNELS = (
    *(projection.project, projection.project_back),
    *(tiles.count_tiles, tiles.list_tiles, tiles.composite, tiles.blame),
)
_LANES = np.arange(TILE, dtype=np.float32)


class _Words:
    """The words of a kernel by name; holds on to the arrays whose addresses they are."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names, self._arrays = names, dict[str, Any]()
        self.words = [0] * len(names)

    def set(self, **values: Any) -> None:
        """Sets words to numbers, or to the addresses of arrays and tensors."""
        for name, value in values.items():
            self._arrays[name] = value
            address = value.data_ptr() if isinstance(value, Tensor) else getattr(value, "ctypes", None)
            number = value if address is None else address if isinstance(address, int) else address.data
            self.words[self._names.index(name)] = int(number)

    def run(self, kernel: Kernel) -> None:
        """Runs a kernel on all threads of torch."""
        run(kernel.address, self.words, torch.get_num_threads())


def _camera(pose: Tensor, camera: Camera) -> np.ndarray:
    """The float64 that ``rung.kernels.cpu.splat.shape`` describes."""
    fx, fy, cx, cy = camera.fx, camera.fy, camera.cx, camera.cy
    wide, high = MARGIN * 0.5 * camera.width / fx, MARGIN * 0.5 * camera.height / fy
    limits = (-cx / fx - wide, (camera.width - cx) / fx + wide, -cy / fy - high, (camera.height - cy) / fy + high)
    view = pose.detach()[:3].double().reshape(-1).tolist()
    numbers = np.array([*view, fx, fy, cx, cy, *limits, camera.near, camera.far])
    assert numbers.size == CAMERA
    return numbers


def by_size(values: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
    """The order of numbers, of equal ones that in which they stand.

    NumPy sorts integers of 16 bits in linear time: two times that takes a third of the time of a million floats.
    """
    bits = values.view(np.int32)
    keys = (bits ^ (bits >> 31 & 0x7FFFFFFF)).view(np.uint32) ^ np.uint32(1 << 31)  # in the order of the numbers
    order = np.argsort(keys.astype(np.uint16), kind="stable")
    found: npt.NDArray[np.int64] = order[np.argsort((keys >> 16).astype(np.uint16)[order], kind="stable")]
    return found


class _Pass:
    """One picture: what the way forward found and the way back needs."""

    def __init__(self, splats: Splats, pose: Tensor, camera: Camera) -> None:
        self.camera, self.count = camera, len(splats.means)
        self.across, self.down = -(-camera.width // TILE), -(-camera.height // TILE)
        self.project, self.tiles = _Words(projection.WORDS), _Words(tiles.WORDS)
        degree, threads = camera.degree, torch.get_num_threads()
        self.records = np.empty((self.count, len(RECORD)), np.float32)
        self.radii = torch.empty(self.count, 2, dtype=torch.int32)
        self.counts = np.empty(self.count, np.int64)
        spans = np.empty((self.count, 4), np.int32)
        self.project.set(
            count=self.count,
            harmonics=0 if degree is None else splats.colors.shape[1],
            degree=degree or 0,
            antialiased=int(camera.antialiased),
            width=camera.width,
            height=camera.height,
            across=self.across,
            down=self.down,
            camera=_camera(pose, camera),
            **splats._asdict(),
            records=self.records,
            radii=self.radii,
            tiles=spans,
            tile_counts=self.counts,
            scratch=np.empty(threads * projection.SCRATCH),
        )
        self.project.run(projection.project)
        self._list(spans)
        self.states = torch.empty(self.down, self.across, TILE, STATE, TILE)
        self.tiles.set(states=self.states, lanes=_LANES)
        self.tiles.run(tiles.composite)

    def _list(self, spans: np.ndarray) -> None:
        """Lists every tile's splats by depth."""
        visible = np.flatnonzero(self.counts)
        order = visible[by_size(self.records[visible, RECORD.index("depth")])]
        self.starts = starts = np.zeros(self.count + 1, np.int64)
        np.cumsum(self.counts, out=starts[1:])
        self.listed = int(starts[-1])
        tile_starts = np.zeros(self.across * self.down + 1, np.int64)
        self.tiles.set(
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
        self.project.set(starts=starts)
        self.tiles.run(tiles.count_tiles)
        np.cumsum(tile_starts, out=tile_starts)
        self.tiles.set(tile_starts=tile_starts.copy())
        self.tiles.run(tiles.list_tiles)
        self.tiles.set(tile_starts=tile_starts)

    def outputs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Color [H, W, 3], alpha [H, W] and depth [H, W]."""
        height, width = self.camera.height, self.camera.width
        planes = self.states.permute(3, 0, 2, 1, 4).reshape(STATE, TILE * self.down, TILE * self.across)
        planes = planes[:, :height, :width]
        return planes[1:4].permute(1, 2, 0).contiguous(), 1 - planes[0].abs(), planes[4].contiguous()

    def means(self) -> Tensor:
        """The centers in pixels [N, 2], of splats that are in the picture; zeros for the others."""
        at = [RECORD.index(name) for name in ("x", "y", "pixel_x", "pixel_y")]
        kept = np.where(self.counts[:, None] > 0, self.records[:, at], 0)
        return torch.from_numpy(kept[:, :2] + kept[:, 2:])

    def back(self, splats: Splats, color: Tensor, alpha: Tensor, depth: Tensor, absolute: bool) -> tuple[Tensor, ...]:
        """Gradients of the splats, of ``screen``, with ``absolute`` of four columns, and of three rows of the pose."""
        height, width = self.camera.height, self.camera.width
        gradients = torch.zeros(OUTPUTS, TILE * self.down, TILE * self.across)
        gradients[:3, :height, :width] = color.permute(2, 0, 1)
        gradients[3, :height, :width], gradients[4, :height, :width] = depth, alpha
        gradients = gradients.reshape(OUTPUTS, self.down, TILE, self.across, TILE).permute(1, 3, 2, 0, 4).contiguous()
        gains = np.empty((self.listed, projection.GAINS), np.float32)
        scratch = np.empty(torch.get_num_threads() * tiles.SCRATCH, np.uint8)
        unsigned = np.zeros((self.listed, 2), np.float32) if absolute else 0
        self.tiles.set(gradients=gradients, gains=gains, scratch=scratch, unsigned=unsigned)
        self.tiles.run(tiles.blame)
        splat_gradients = Splats(*(torch.zeros_like(tensor) for tensor in splats))
        screen = torch.zeros(self.count, 2)
        chunks = np.zeros((-(-self.count // projection.CHUNK), 3, 4))
        self.project.set(
            gains=gains,
            **{f"g_{name}": tensor for name, tensor in splat_gradients._asdict().items()},
            g_screen=screen,
            g_camera=chunks,
        )
        self.project.run(projection.project_back)
        if absolute:
            screen = torch.cat([screen, self._by_splat(unsigned)], dim=1)
        return (*splat_gradients, screen, torch.from_numpy(chunks.sum(0)).float())

    def _by_splat(self, values: Any) -> Tensor:
        """Sums [N, 2] of what the tiles of each splat told."""
        ends = np.concatenate([np.zeros((1, 2)), np.cumsum(values, axis=0, dtype=np.float64)])
        return torch.from_numpy(ends[self.starts[1:]] - ends[self.starts[:-1]]).float()


class _Rasterize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, camera: Camera, pose: Tensor, screen: Tensor | None, *tensors: Tensor) -> tuple[Tensor, ...]:
        splats = Splats(*(tensor.detach().contiguous() for tensor in tensors))
        forward_pass = _Pass(splats, pose, camera)
        ctx.forward_pass, ctx.columns = forward_pass, 0 if screen is None else screen.shape[1]
        ctx.save_for_backward(*splats)
        means = forward_pass.means()
        ctx.mark_non_differentiable(forward_pass.radii, means)
        return (*forward_pass.outputs(), forward_pass.radii, means)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, color: Tensor, alpha: Tensor, depth: Tensor, *unused: Tensor) -> tuple[Any, ...]:
        *splats, screen, view = ctx.forward_pass.back(Splats(*ctx.saved_tensors), color, alpha, depth, ctx.columns == 4)
        pose = torch.cat([view, torch.zeros(1, 4)])
        return (None, pose, screen if ctx.columns else None, *splats)


class Tiles:
    """See ``rung.ops.rasterize``."""

    def apply(self, splats: Splats, pose: Tensor, camera: Camera, screen: Tensor | None = None) -> Picture:
        """The picture of the splats."""
        color, alpha, depth, radii, means = _Rasterize.apply(camera, pose, screen, *splats)
        return Picture(color, alpha, depth, radii, means)


RUNG = Tiles()
