"""How far ``numba.tile`` in float32 is from ``ref`` in float64, and projection and harmonics from gsplat's.

    python benchmarks/splat_accuracy.py [--scenes 50]

Random scenes with splats behind the camera, on borders of tiles, opaque, tiny, huge and flat; every second one is drawn
antialiased. Prints the largest difference of a pixel (color and alpha) and how many are beyond 1e-5, and that of
a gradient as a share of the tensor's largest. Pixels where a skip, a stop or an order is on its threshold are not left
out. gsplat's own functions in torch, in float64, are asked where gsplat is installed; differences are relative.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util

import torch
from torch import Tensor

from rung.ops.rasterize import LADDER, Camera, Splats
from rung.ops.rasterize.projecting import basis, project
from rung.ops.rasterize.self_check import gradients, splats
from rung.splats import rasterization  # noqa: F401  configures the kernels' cache as a program would

CAMERA = Camera(61, 45, 55.0, 57.0, 29.3, 23.1, 3)
SPLATS, BAR = 150, 1e-5


def wild(seed: int) -> Splats:
    """The splats of a scene, a few of each kind."""
    drawn, generator = splats(SPLATS, 3, seed), torch.Generator().manual_seed(seed)
    means, scales, opacities = drawn.means.clone(), drawn.scales * 3, drawn.opacities.clone()
    means[:5, 2] *= -1
    means[5:10, 2] = torch.rand(5, generator=generator) * 0.1
    border = (torch.tensor([16.0, 32.0]) - torch.tensor([CAMERA.cx, CAMERA.cy])) / torch.tensor([CAMERA.fx, CAMERA.fy])
    means[10:15, :2] = border * means[10:15, 2:]
    opacities[15:30] = 1 - 0.02 * torch.rand(15, generator=generator)
    scales[30:35] *= 1e-3
    scales[35:38] *= 40
    scales[38:44, 1:] *= 1e-2
    return drawn._replace(means=means, scales=scales, opacities=opacities)


def doubles(scene: Splats) -> Splats:
    """In float64."""
    return Splats(*(tensor.double() for tensor in scene))


def rung(scenes: int) -> None:
    """Prints how far the rung is from ``ref``."""
    pixels, beyond, worst, slope = 0, 0, 0.0, 0.0
    for seed in range(scenes):
        scene, camera = wild(seed), CAMERA._replace(antialiased=seed % 2 == 1)
        got, here = gradients(LADDER.rung("numba.tile").load(), scene, camera)
        want, there = gradients(LADDER.rung("ref").load(), doubles(scene), camera)
        error = torch.cat([got.color - want.color, (got.alpha - want.alpha)[..., None]], -1).detach().abs().amax(-1)
        pixels, beyond = pixels + error.numel(), beyond + int((error > BAR).sum())
        worst = max(worst, float(error.max()))
        slope = max(slope, *(float((a - b).abs().max() / b.abs().max()) for a, b in zip(here, there, strict=True)))
    print(f"{scenes} scenes, {pixels:,} pixels: {beyond} beyond {BAR:g}, largest difference {worst:.1e};", end=" ")
    print(f"gradients within {slope:.1e} of the tensor's largest (bar 1e-4)")


def relative(got: Tensor, want: Tensor) -> float:
    """The largest difference as a share of the value, or of a thousandth of the largest where that is less."""
    return float(((got - want).abs() / want.abs().clamp_min(1e-3 * float(want.abs().max()))).max())


def gsplat() -> None:
    """Prints how far projection and harmonics are from gsplat's."""
    theirs = importlib.import_module("gsplat.cuda._torch_impl")
    size = torch.tensor([[CAMERA.fx, 0, CAMERA.cx], [0, CAMERA.fy, CAMERA.cy], [0, 0, 1]], dtype=torch.double)
    pose, projected = torch.eye(4, dtype=torch.double), 0.0
    for seed in range(10):
        scene = doubles(wild(seed))
        covariances, _ = theirs._quat_scale_to_covar_preci(scene.quats, scene.scales, compute_preci=False, triu=False)
        radii, means, depths, conics, _ = theirs._fully_fused_projection(
            scene.means, covariances, pose[None], size[None], CAMERA.width, CAMERA.height
        )
        flat = project(scene, pose, CAMERA)
        visible = (radii[0] > 0).all(-1)
        assert torch.equal(flat.radii, radii[0])
        pairs = ((flat.means, means[0]), (flat.depths, depths[0]), (flat.conics, conics[0]))
        projected = max(projected, *(relative(got[visible], want[visible]) for got, want in pairs))
    directions = torch.nn.functional.normalize(torch.randn(1000, 3, dtype=torch.double), dim=-1)
    coefficients = torch.randn(1000, 16, 3, dtype=torch.double)
    colors = (basis(3, directions)[:, :, None] * coefficients).sum(1)
    harmonics = relative(colors, theirs._spherical_harmonics(3, directions, coefficients))
    print(f"against gsplat: projection within {projected:.1e}, harmonics {harmonics:.1e} (bar 1e-5), radii equal")


def main() -> None:
    """Prints a line for each comparison."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scenes", type=int, default=50)
    rung(parser.parse_args().scenes)
    if importlib.util.find_spec("gsplat"):
        gsplat()


if __name__ == "__main__":
    main()
