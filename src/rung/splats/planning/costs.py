"""Bytes and seconds of one step of training Gaussian splats, by splats, tiles that they touch, and pixels.

Bytes are counted from the arrays of the rung that draws and of the loss, seconds on CPUs measured by
``benchmarks/splats.py``; on GPUs they follow from bandwidth and peaks.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from rung.core.types import Device, MemoryUse
from rung.planning.memory import RUNTIME_CPU, RUNTIME_GPU

#: What a splat has beside its harmonics: center, rotation, scales, opacity.
SHAPE = 11
#: Colors [3] of a splat that are held where harmonics have no gradient: as drawn, and what is told of them, twice.
_COLORS = 3
_TILE = 16
#: How often the splats of a trained scene cover a pixel, counted as far as they are listed.
LAYERS = 60.0
#: Bytes that plain torch moves for each pixel of the loss: colors, differences and the maps of SSIM, forth and back.
_LOSS = 330
#: Bytes of a process that trains on the processor beside those of every process with torch and Numba: autograd, what
#: decodes pictures, kernels of splats, and holes of the heap.
_TRAINING = 45 << 20
#: How far the truth may lie above what is counted.
_BOUND = 0.05
#: Floating-point operations for each pixel of a tile and splat on it, forth and back, and the share of the peak that
#: they reach; bytes that a step moves for each trained number; seconds that launching its kernels takes.
_OPERATIONS, _SHARE, _MOVED, _LAUNCHES = 90, 0.15, 60, 4e-3
#: Bandwidth and operations per second where the catalog is silent.
_BANDWIDTH, _PEAK = 5e10, 1e12
#: Seconds of the optimizer on one core for each trained number.
_STEPPING = 3e-9


class Costs(NamedTuple):
    """Bytes that a rung holds in a step: for each splat, splat on a tile, and pixel with its loss, and besides."""

    splat: float
    listed: float
    pixel: float
    besides: int


COSTS = {
    "numba.tile": Costs(520, 56, 260, 20 << 20),  # with a compiled loss
    "gsplat.cuda": Costs(600, 60, 120 + _LOSS, 64 << 20),
    "triton.tile": Costs(640, 100, 170 + _LOSS, 64 << 20),
    "webgpu.tile": Costs(150, 70, 48, 16 << 20),  # the loss is computed on the processor
    "torch.tile": Costs(500, 40, 120 + _LOSS, 450 << 20),  # a group of tiles at a time
    "ref": Costs(500, 40, 120 + _LOSS, 450 << 20),
}
#: Bytes of a splat and of a pixel that cross the bus in a step of a rung of WebGPU, beside the splat's numbers there
#: and back: where it is in the picture, gradients of the center; the picture and its gradient.
CROSSING = (24, 40)
#: Bytes a second over the bus (PCIe 3.0 x16 has 12e9 to 13e9), and cores of the processor that holds the optimizer.
_BUS, _HOST_CORES = 8e9, 4
#: Bytes that sorting moves for each splat on a tile.
_SORTED = 100
#: Bytes of a splat that a step, with a checkpoint beside it, holds less where harmonics have no gradient of their own.
_LEAN = 60
#: Seconds on one core for each splat, splat on a tile, and pixel with its loss, on compiled tiles.
_SECONDS = (1.1e-6, 0.9e-6, 2.5e-7)
#: Times as long that torch's own tiles take on a CPU.
_PLAIN = 60


class Load(NamedTuple):
    """Hold what a step is about: numbers of splats and of pixels (width x height), and the degree of harmonics."""

    splats: int
    pixels: int
    degree: int

    @property
    def harmonics(self) -> int:
        """Coefficients of a splat, of three colors."""
        return 3 * (self.degree + 1) ** 2

    @property
    def listed(self) -> float:
        """How many tiles the splats of a trained scene touch, each splat counted on each.

        Splats that cover the picture ``LAYERS`` times reach r pixels with splats * pi * r^2 = layers * pixels; each
        touches the tiles of a square of 2 r and those on its edge.
        """
        reach = math.sqrt(LAYERS * self.pixels / (math.pi * max(self.splats, 1)))
        return self.splats * (2 * reach / _TILE + 1) ** 2


class Kept(NamedTuple):
    """How training keeps harmonics: both of Adam's means of them as ``state`` (f32, 8bit), themselves as ``harmonics``
    (f32, f16). With means in 8 bits they have no gradient of their own."""

    state: str = "f32"
    harmonics: str = "f32"

    def bytes(self, harmonics: int) -> tuple[int, int, int]:
        """Return the bytes of a splat with so many harmonics: what is learned, gradients, and Adam's means."""
        if self.state == "f32":
            numbers = SHAPE + harmonics
            return 4 * numbers, 4 * numbers, 8 * numbers
        each = 2 if self.harmonics == "f16" else 4
        # colors and their gradients, twice; a magnitude for each mean
        return 4 * SHAPE + each * harmonics, 4 * (SHAPE + 3 * _COLORS), 8 * SHAPE + 2 * (harmonics + 4)


def memory_use(device: Device, rung: str, load: Load, cache: int, kept: Kept = Kept()) -> MemoryUse:  # noqa: B008
    """Bytes of training on a device: with ``cache`` bytes of pictures there, a step, and a checkpoint being written."""
    costs = COSTS.get(rung, COSTS["ref"])
    learned, gradients, means = kept.bytes(load.harmonics)
    each = costs.splat - (_LEAN if kept.state != "f32" else 0)
    step = each * load.splats + costs.listed * load.listed + costs.pixel * load.pixels + costs.besides
    measured = int(device.details.get("runtime_bytes") or 0)
    runtime = (measured or RUNTIME_CPU) + _TRAINING if device.kind == "cpu" else measured or RUNTIME_GPU
    if device.kind == "webgpu":
        return _through_webgpu(device, load, round(step), (learned, gradients, means), kept)
    known = MemoryUse(
        weights=learned * load.splats,
        kv_cache=0,
        activations=round(step),
        workspace=cache,
        runtime=runtime,
        gradients=gradients * load.splats,
        optimizer=means * load.splats,
    )
    return MemoryUse(**{**vars(known), "bound": round(_BOUND * (known.total - cache))})


def _through_webgpu(device: Device, load: Load, step: int, counts: tuple[int, int, int], kept: Kept) -> MemoryUse:
    """Bytes on a GPU through WebGPU: copies of splats and gradients; what ``counts`` counts lies in the host's memory,
    which counts where it is the same."""
    copies = 4 * load.splats * _numbers(load, kept)
    shared = bool(device.details.get("shared_memory"))
    learned, gradients, means = counts if shared else (0, 0, 0)
    known = MemoryUse(
        weights=learned * load.splats + copies,
        kv_cache=0,
        activations=step,
        workspace=0,
        runtime=RUNTIME_CPU + _TRAINING if shared else RUNTIME_GPU,
        gradients=gradients * load.splats + copies,
        optimizer=means * load.splats,
    )
    return MemoryUse(**{**vars(known), "bound": round(_BOUND * known.total)})


def _numbers(load: Load, kept: Kept) -> int:
    """Numbers of a splat that a rung draws: with means in 8 bits it is given colors."""
    return SHAPE + (load.harmonics if kept.state == "f32" else _COLORS)


def crossing_bytes(load: Load, kept: Kept = Kept()) -> int:  # noqa: B008
    """Bytes that cross the bus in a step of a rung of WebGPU, there and back."""
    by_splat, by_pixel = CROSSING
    return (8 * _numbers(load, kept) + by_splat) * load.splats + by_pixel * load.pixels


def step_seconds(device: Device, rung: str, load: Load) -> float:
    """Predicted seconds of one step."""
    numbers = load.splats * (SHAPE + load.harmonics)
    if device.kind == "cpu":
        drawn = sum(each * count for each, count in zip(_SECONDS, (load.splats, load.listed, load.pixels), strict=True))
        slower = 1 if rung == "numba.tile" else _PLAIN
        return (drawn * slower + _STEPPING * numbers) / max(int(device.details.get("cores", 1)), 1)
    bandwidth, peak = device.bandwidth or _BANDWIDTH, device.peaks.get("f32") or _PEAK
    within = load.listed * _TILE * _TILE
    drawn = within * _OPERATIONS / (peak * _SHARE)
    if rung in ("torch.tile", "ref"):  # every operation reads and writes its values
        drawn = within * _OPERATIONS * 4 / bandwidth
    if device.kind == "webgpu":
        stepping = (_STEPPING * numbers + _SECONDS[2] * load.pixels) / _HOST_CORES
        return drawn + _SORTED * load.listed / bandwidth + crossing_bytes(load) / _BUS + stepping + _LAUNCHES
    return drawn + (_MOVED * numbers + _LOSS * load.pixels) / bandwidth + _LAUNCHES
