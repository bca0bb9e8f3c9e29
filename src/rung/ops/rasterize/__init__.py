"""Gaussian splats to a picture: projection, harmonics, tiles, compositing, and the gradients of all of it.

Contract of every rung's ``impl`` object::

    apply(splats: Splats, pose, camera: Camera, screen=None) -> Picture

A rung of WebGPU is told its ``device`` as well (``where``), and takes tensors of the processor.

- ``Splats``, f32: ``means`` [N, 3] in the world; ``quats`` [N, 4] as (w, x, y, z), of any length above zero; ``scales``
  [N, 3], standard deviations; ``opacities`` [N] in [0, 1]; ``colors`` [N, K, 3], harmonics of a camera's
  ``degree`` (K >= (degree + 1)^2), or [N, 3] where ``degree`` is None.
- ``pose`` [4, 4]: world to camera, axes right, down, forward. ``screen`` [N, 2]: zeros whose gradient is that of the
  projected means in pixels (what growing splats looks at); of [N, 4] the last two columns get the sums over pixels of
  its absolute values (AbsGS, arXiv:2404.10484).
- ``Picture``: ``color`` [H, W, 3], ``alpha`` [H, W], ``depth`` [H, W] (sum of weight x depth), all without background;
  ``radii`` [N, 2] int32 pixels, 0 for a splat that is not in the picture; ``means`` [N, 2] projected, in pixels.
- gradients reach every tensor of ``Splats``, ``pose`` and ``screen``. Nothing that is passed in changes.

The constants below are those of gsplat 1.5.3, so that its trained scenes look the same. A weight is
``alpha_i * prod_{j<i} (1 - alpha_j)`` over splats by depth (ties: by index), ``alpha = min(0.999, opacity *
exp(-power))``; an alpha below 1/255 is skipped, and a pixel takes no splat from the first on that would leave 1e-4
or less of what is behind. A pixel's center is at +0.5.

Of a ``Case``: ``format`` is f32, ``shape`` (splats, height, width), options are ``degree`` and ``antialiased``.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from rung.core.registry import register_ladder
from rung.core.types import YES, Case, Device, Ladder, Rung, Verdict, no
from rung.core.value import FrozenDict
from rung.kernels.webgpu import KIND
from rung.kernels.webgpu.splat import WORKGROUP_BYTES

if TYPE_CHECKING:
    from torch import Tensor

NEAR = 0.01
#: Variance in square pixels added to every splat, so that none falls between pixels.
BLUR = 0.3
#: Standard deviations that a splat reaches: exp(-3.33^2 / 2) is just below 1/255.
EXTENT = 3.33
MOST_ALPHA = 0.999
LEAST_ALPHA = 1 / 255
LEAST_LEFT = 1e-4
TILE = 16
#: Share of the field of view beyond the picture's edge at which the slope of the projection is held.
MARGIN = 0.3


class Camera(NamedTuple):
    """A pinhole camera: size and focal lengths in pixels; planes in the world's units."""

    width: int
    height: int
    fx: float
    fy: float
    cx: float
    cy: float
    degree: int | None = None
    antialiased: bool = False
    near: float = NEAR
    far: float = 1e10


class Splats(NamedTuple):
    """See the contract."""

    means: Tensor
    quats: Tensor
    scales: Tensor
    opacities: Tensor
    colors: Tensor


class Picture(NamedTuple):
    """See the contract."""

    color: Tensor
    alpha: Tensor
    depth: Tensor
    radii: Tensor
    means: Tensor


#: What Triton 3.9 compiles for, tensor cores aside: compute capabilities from this one on, and processors of AMD that
#: begin so. Its makers vouch for fewer; what is wrong there the check of values finds.
TRITON_CUDA, TRITON_AMD = (5, 0), ("gfx906", "gfx908", "gfx90a", "gfx942", "gfx950", "gfx11", "gfx12")


#: What splats are computed in.
EXAMPLE_FORMATS = ("f32",)


def examples(format: str, dtype: str) -> list[tuple[str, Case]]:
    """A scene with harmonics."""
    options = FrozenDict({"degree": 3, "antialiased": False})
    return [("100,000 splats", Case("rasterize", format, dtype, (100_000, 800, 800), options))]


def compiled_there(case: Case, device: Device) -> Verdict:
    """Return whether Triton compiles for the device's architecture; tests compile the kernels for each."""
    if device.kind == "cuda":
        found = re.match(r"sm_(\d+)(\d)", device.arch)
        able = found is not None and (int(found[1]), int(found[2])) >= TRITON_CUDA
    else:
        able = device.arch.startswith(TRITON_AMD)
    return YES if able else no(f"Triton does not compile for {device.arch}")


def drawn_there(case: Case, device: Device) -> Verdict:
    """Return whether a workgroup has as much memory on an adapter as the kernels take; unknown is enough."""
    limits = device.details.get("adapter", {}).get("limits", {})
    has = limits.get("max-compute-workgroup-storage-size", WORKGROUP_BYTES)
    return YES if has >= WORKGROUP_BYTES else no(f"takes {WORKGROUP_BYTES:,} bytes of a workgroup, which has {has:,}")


def where(rung: Rung, device: str) -> dict[str, str]:
    """Return the arguments that tell ``apply`` of a rung where it computes."""
    return {"device": device} if rung.kinds == (KIND,) else {}


LADDER = register_ladder(
    Ladder(
        "rasterize",
        (
            Rung(
                "rasterize",
                "webgpu.tile",
                "rung.ops.rasterize.webgpu_tile:RUNG",
                kinds=(KIND,),
                needs=("package.wgpu",),
                formats=("f32",),
                dtypes=("f32",),
                check="rung.ops.rasterize:drawn_there",
            ),
            Rung(
                "rasterize",
                "numba.tile",
                "rung.ops.rasterize.numba_tile:RUNG",
                kinds=("cpu", KIND),
                needs=("package.numba",),
                formats=("f32",),
                dtypes=("f32",),
            ),
            Rung(
                "rasterize",
                "gsplat.cuda",
                "rung.ops.rasterize.gsplat_cuda:RUNG",
                kinds=("cuda",),
                needs=("package.torch", "package.gsplat"),
                formats=("f32",),
                dtypes=("f32",),
            ),
            Rung(
                "rasterize",
                "triton.tile",
                "rung.ops.rasterize.triton_tile:RUNG",
                kinds=("cuda", "rocm"),
                needs=("package.torch", "package.triton"),
                formats=("f32",),
                dtypes=("f32",),
                check="rung.ops.rasterize:compiled_there",
            ),
            Rung(
                "rasterize",
                "torch.tile",
                "rung.ops.rasterize.torch_tile:RUNG",
                needs=("package.torch",),
                formats=("f32",),
                dtypes=("f32",),
            ),
            Rung("rasterize", "ref", "rung.ops.rasterize.ref:RUNG", needs=("package.torch",), formats=("f32",)),
        ),
    )
)
