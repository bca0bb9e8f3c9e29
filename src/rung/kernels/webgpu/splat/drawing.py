"""A picture of splats on a GPU, as arrays, and its gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from rung.kernels.webgpu.gpu import Gpu
from rung.kernels.webgpu.splat.camera import Words
from rung.kernels.webgpu.splat.lists import Lists, count, lists
from rung.kernels.webgpu.splat.projection import RECORD, SHAPE, project
from rung.kernels.webgpu.splat.projection_back import (
    GROUP,
    PARTS,
    SLOPES,
    UNSIGNED,
    VIEW,
    project_back,
    slopes_bytes,
)
from rung.kernels.webgpu.splat.sorting import grid
from rung.kernels.webgpu.splat.tiles import PIXEL, blame, composite

Floats = npt.NDArray[np.float32]


class Arrays(NamedTuple):
    """N splats, float32: centers [N, 3], rotations [N, 4] (w, x, y, z), scales [N, 3], opacities [N], and colors [N, 3]
    or harmonics [N, terms, 3]."""

    means: Floats
    quats: Floats
    scales: Floats
    opacities: Floats
    colors: Floats


class Picture(NamedTuple):
    """Colors [H, W, 3], depth [H, W] and what is left of the light behind [H, W], float32; centers float32 [N, 2] and
    radii int32 [N, 2] in pixels."""

    color: Floats
    depth: Floats
    left: Floats
    means: Floats
    radii: npt.NDArray[np.int32]


class Slopes(NamedTuple):
    """Gradients: of the splats; of the centers in pixels [N, 2] and the sums of their absolute values over pixels
    [N, 2]; of the first three rows of the view [3, 4], float64. The last two are zeros unless they were asked for."""

    splats: Arrays
    screen: Floats
    unsigned: Floats
    view: npt.NDArray[np.float64]


class Drawing:
    """One picture: what the way forward found on the GPU, and the way back needs there."""

    _lists: Lists | None
    _pixels: Any

    def __init__(self, gpu: Gpu, splats: Arrays, words: Words, degree: int | None) -> None:
        """Draw it. Raises ``OutOfMemory`` where a buffer is larger than the GPU binds."""
        self._gpu, self.words, self._degree = gpu, words, degree
        self._listed, self._lists, self._pixels = 0, None, None
        found = self._project(splats) if words.splats else np.zeros((0, 4), np.int32)
        self.picture = Picture(*self._planes(), found[:, :2].view(np.float32), found[:, 2:])

    def _project(self, splats: Arrays) -> npt.NDArray[np.int32]:
        """Draw splats; return where they are in the picture: centers, as bits of f32, and radii."""
        gpu, words = self._gpu, self.words
        self._info = gpu.upload([words.packed()])
        self._shapes = self._upload(splats[:4])
        self._colors = self._upload(splats[4:])
        self._records = self._gpu.bindable(4 * RECORD * words.splats)
        boxes, spans, counts = (self._gpu.bindable(each * words.splats) for each in (16, 8, 4))
        buffers = [self._info, self._shapes, self._colors, self._records, boxes, spans, counts]
        kernel = gpu.bind(project(words, self._degree), buffers, *grid(-(-words.splats // 256), gpu.limits.groups))
        self._counted, counting = count(gpu, words.splats, counts)
        gpu.run([kernel, *counting])
        found = gpu.read(boxes, 0, 16 * words.splats).view(np.int32).reshape(-1, 4)
        self._listed = self._last(self._counted.starts)
        if self._listed:
            self._composite(spans, counts)
        return found

    def _upload(self, parts: Sequence[Floats]) -> Any:
        buffer, at = self._gpu.bindable(sum(part.nbytes for part in parts)), 0
        for part in parts:
            self._gpu.write(buffer, at, part)
            at += part.nbytes
        return buffer

    def _last(self, sums: Any) -> int:
        return int(self._gpu.read(sums, 4 * self.words.splats, 4).view(np.uint32)[0])

    def _composite(self, spans: Any, counts: Any) -> None:
        """List the splats of each tile, and lay them over each other."""
        gpu, words, (across, down) = self._gpu, self.words, self.words.tiles
        sizes = words.splats, self._last(self._counted.ranks), self._listed
        found, kernels = lists(gpu, sizes, across, across * down, (spans, counts, self._records), self._counted)
        self._lists, self._pixels = found, self._gpu.bindable(4 * PIXEL * words.size[0] * words.size[1])
        buffers = [self._info, self._records, found.splats, found.starts, self._pixels]
        kernels.append(gpu.bind(composite(words, self._listed), buffers, *grid(across * down, gpu.limits.groups)))
        gpu.run(kernels)

    def _planes(self) -> tuple[Floats, Floats, Floats]:
        """Return colors, depth and what is left of the light; nothing but that where no splat is in the picture."""
        width, height = self.words.size
        pixels = width * height
        planes = np.zeros(5 * pixels, np.float32)
        planes[4 * pixels :] = 1
        if self._pixels is not None:
            planes = self._gpu.read(self._pixels, 0, 20 * pixels).view(np.float32)
        color, depth, left = np.split(planes, [3 * pixels, 4 * pixels])
        return color.reshape(height, width, 3), depth.reshape(height, width), left.reshape(height, width)

    def back(self, color: Floats, depth: Floats, alpha: Floats, *, posed: bool, unsigned: bool) -> Slopes:
        """Return the gradients from those of colors [H, W, 3], depth and alpha [H, W]. Raises ``OutOfMemory``."""
        words = self.words._replace(posed=posed, unsigned=unsigned)
        count, terms = words.splats, max(words.terms, 1)
        slopes, colors = np.zeros(slopes_bytes(count) // 4, np.float32), np.zeros(3 * count * terms, np.float32)
        if self._lists is not None:
            self._back(words, self._lists, self._upload((color, depth, alpha)), slopes, colors)
        means, quats, scales, opacities, screen, absolute, views = np.split(
            slopes, np.cumsum([3 * count, 4 * count, 3 * count, count, 2 * count, 2 * count])
        )
        arrays = Arrays(
            means.reshape(-1, 3),
            quats.reshape(-1, 4),
            scales.reshape(-1, 3),
            opacities,
            colors.reshape(count, 3) if words.terms == 0 else colors.reshape(count, terms, 3),
        )
        view = views.reshape(-1, VIEW).sum(axis=0, dtype=np.float64).reshape(3, 4)
        return Slopes(arrays, screen.reshape(-1, 2), absolute.reshape(-1, 2), view)

    def _back(self, words: Words, found: Lists, gradients: Any, slopes: Floats, colors: Floats) -> None:
        """Fill in what is asked of ``g_shapes`` and ``g_colors`` of ``projection_back``."""
        gpu, count, (across, down) = self._gpu, words.splats, words.tiles
        info = gpu.upload([words.packed()])
        parts = gpu.bindable(4 * (PARTS + UNSIGNED * words.unsigned) * self._listed)
        grads, shades = gpu.bindable(slopes.nbytes), gpu.bindable(colors.nbytes)
        buffers = [info, self._records, found.places, found.splats, found.starts, self._pixels, gradients, parts]
        first = gpu.bind(blame(words, self._listed), buffers, *grid(across * down, gpu.limits.groups))
        buffers = [info, self._shapes, self._colors, self._records, self._counted.starts, parts, grads, shades]
        kernel = project_back(words, self._degree, self._listed)
        gpu.run([first, gpu.bind(kernel, buffers, *grid(-(-count // GROUP), gpu.limits.groups))])
        ends = {(SHAPE + 2) * count, SLOPES * count if words.unsigned else 0, slopes.size if words.posed else 0}
        begins = {0, (SHAPE + 2) * count if words.unsigned else 0, SLOPES * count if words.posed else 0}
        for begin, end in zip(sorted(begins), sorted(ends - {0}), strict=True):
            slopes[begin:end] = gpu.read(grads, 4 * begin, 4 * (end - begin)).view(np.float32)
        colors[:] = gpu.read(shades, 0, colors.nbytes).view(np.float32)
