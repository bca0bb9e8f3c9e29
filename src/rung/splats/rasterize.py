"""Pictures of Gaussian splats on any device: gsplat's function by name and arguments, on the ladder of rasterize."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from rung.core.errors import UsageError
from rung.nn.quantized import binding
from rung.ops.rasterize import BLUR, NEAR, TILE, Camera, Picture, Splats

_MODES = ("RGB", "D", "ED", "RGB+D", "RGB+ED")
#: Like packed, tile_size, sparse_grad and channel_chunk: says how gsplat shall compute, what comes out is the same.
_WAYS = {"segmented"}
#: Of what is packed, which this never is; gsplat's strategies ask whether the names are there.
_IDS = ("batch_ids", "camera_ids", "gaussian_ids")
#: What gsplat's other arguments must be: anything else asks for other pictures.
_PLAIN = {
    "radius_clip": 0.0,
    "eps2d": BLUR,
    "distributed": False,
    "camera_model": "pinhole",
    "covars": None,
    "with_ut": False,
    "with_eval3d": False,
    "radial_coeffs": None,
    "tangential_coeffs": None,
    "thin_prism_coeffs": None,
    "ftheta_coeffs": None,
    "viewmats_rs": None,
}


def rasterization(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    colors: Tensor,
    viewmats: Tensor,
    Ks: Tensor,  # noqa: N803  gsplat's name
    width: int,
    height: int,
    near_plane: float = NEAR,
    far_plane: float = 1e10,
    radius_clip: float = 0.0,
    eps2d: float = BLUR,
    sh_degree: int | None = None,
    packed: bool = True,
    tile_size: int = TILE,
    backgrounds: Tensor | None = None,
    render_mode: str = "RGB",
    sparse_grad: bool = False,
    absgrad: bool = False,
    rasterize_mode: str = "classic",
    channel_chunk: int = 32,
    device: str | None = None,
    **others: Any,
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Pictures of N splats by C cameras; arguments, results and constants are those of ``gsplat.rasterization`` 1.5.3.

    ``means`` [N, 3], ``quats`` [N, 4] (w, x, y, z), ``scales`` [N, 3], ``opacities`` [N], ``colors`` [N, D] or
    [C, N, D], with ``sh_degree`` [N, K, 3]; ``viewmats`` [C, 4, 4] world to camera, ``Ks`` [C, 3, 3], ``backgrounds``
    [C, D]. Returns colors [C, H, W, D] (depth last where ``render_mode`` asks for it: D the sum of weight x depth, ED
    divided by alpha), alphas [C, H, W, 1], and a dictionary with ``means2d`` [C, N, 2] (after ``backward`` its ``grad``
    is theirs, and with ``absgrad`` the sum over pixels of its absolute values is its ``absgrad``), ``radii`` [C, N, 2],
    ``width``, ``height`` and ``n_cameras``; it is never packed, so ``gaussian_ids`` and the like are None.

    rung's own is ``device``: ``webgpu:0`` draws tensors of the processor there; by default they are drawn where they
    are.

    Of gsplat's other arguments those that choose a way of computing change nothing; those that ask for other pictures
    (distortion, fisheye, rolling shutter, covariances, another blur) raise ``UsageError``, as do shapes that do not
    fit, and ``absgrad`` of more than three colors.
    """
    unsupported = {"radius_clip": radius_clip, "eps2d": eps2d, **others}
    _refuse(unsupported, render_mode, rasterize_mode)
    _fit(means, quats, scales, opacities, colors, viewmats, Ks, sh_degree, absgrad)
    pictures, alphas, screens, radii = [], [], [], []
    for index, (view, intrinsics) in enumerate(zip(viewmats, Ks, strict=True)):
        fx, fy, cx, cy = (float(intrinsics[at]) for at in ((0, 0), (1, 1), (0, 2), (1, 2)))
        camera = Camera(
            width, height, fx, fy, cx, cy, sh_degree, rasterize_mode == "antialiased", near_plane, far_plane
        )
        wide, learns = 4 if absgrad else 2, torch.is_grad_enabled()
        screen = torch.zeros(len(means), wide, device=means.device, requires_grad=learns)
        own = colors[index] if sh_degree is None and colors.dim() == 3 else colors
        passes = list(_passes(Splats(means, quats, scales, opacities, own), view, camera, screen, device))
        with torch.no_grad():
            screen[:, :2] = passes[0].means  # whoever asks for the gradient asks for the place as well
        ground = None if backgrounds is None else backgrounds[index]
        pictures.append(_channels(passes, own, ground, render_mode))
        alphas.append(passes[0].alpha[..., None])
        screens.append(screen)
        radii.append(passes[0].radii)
    meta = {"means2d": _joined(screens), "radii": torch.stack(radii), "width": width, "height": height}
    meta |= {"n_cameras": len(Ks), "tile_size": TILE, **dict.fromkeys(_IDS)}
    return torch.stack(pictures), torch.stack(alphas), meta


def _joined(screens: list[Tensor]) -> Tensor:
    """[C, N, 2] whose gradient is that of the parts: theirs is handed on when it is known, and as ``absgrad`` what
    parts of four columns have in the last two."""
    joined = torch.stack([screen.detach()[:, :2] for screen in screens]).requires_grad_(screens[0].requires_grad)

    def hand_on(index: int, gradient: Tensor) -> None:
        for name, part in zip(("grad", "absgrad"), gradient.split(2, dim=1), strict=False):
            if getattr(joined, name, None) is None:
                setattr(joined, name, torch.zeros_like(joined))
            getattr(joined, name)[index] += part

    for index, screen in enumerate(screens):
        if screen.requires_grad:
            screen.register_hook(lambda gradient, index=index: hand_on(index, gradient))
    return joined


def _passes(splats: Splats, view: Tensor, camera: Camera, screen: Tensor, device: str | None) -> Iterator[Picture]:
    """Pictures of three channels each, as many as the colors have."""
    draw = binding.rasterizer(device or splats.means.device, camera.degree, camera.antialiased)
    if camera.degree is not None:
        yield draw(splats, view, camera, screen)
        return
    for first in range(0, splats.colors.shape[-1], 3):
        part = splats.colors[:, first : first + 3]
        part = torch.nn.functional.pad(part, (0, 3 - part.shape[1]))
        yield draw(splats._replace(colors=part.contiguous()), view, camera, screen)


def _channels(pictures: list[Picture], colors: Tensor, ground: Tensor | None, mode: str) -> Tensor:
    """[H, W, D], with the depth last or alone."""
    alpha, depth = pictures[0].alpha[..., None], pictures[0].depth[..., None]
    if "ED" in mode:
        depth = depth / alpha.clamp_min(1e-10)
    if mode in ("D", "ED"):
        return depth
    count = 3 if colors.dim() == 3 else colors.shape[-1]
    color = torch.cat([picture.color for picture in pictures], dim=-1)[..., :count]
    if ground is not None:
        color = color + (1 - alpha) * ground
    return color if mode == "RGB" else torch.cat([color, depth], dim=-1)


def _refuse(others: dict[str, Any], mode: str, style: str) -> None:
    for name, value in others.items():
        if name == "rolling_shutter" and "GLOBAL" in str(value).upper():
            continue
        if name not in _WAYS and (name not in _PLAIN or value != _PLAIN[name]):
            raise UsageError(
                f"rasterization does not take {name}={value!r}.",
                [f"arguments that change the picture: {', '.join(_PLAIN)}; rung draws with their defaults"],
                ["leave it out, or undistort the pictures once before training"],
            )
    if mode not in _MODES or style not in ("classic", "antialiased"):
        raise UsageError(
            f"rasterization has no render_mode {mode!r} with rasterize_mode {style!r}.",
            [f"render_mode is one of {', '.join(_MODES)}; rasterize_mode classic or antialiased"],
            ['render_mode="RGB", rasterize_mode="classic"'],
        )


def _fit(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    colors: Tensor,
    views: Tensor,
    intrinsics: Tensor,
    degree: int | None,
    absgrad: bool,
) -> None:
    count, cameras = len(means), len(views)
    expected: dict[str, tuple[Tensor, tuple[int, ...]]]
    expected = {"means": (means, (count, 3)), "quats": (quats, (count, 4)), "scales": (scales, (count, 3))}
    expected |= {
        "opacities": (opacities, (count,)),
        "viewmats": (views, (cameras, 4, 4)),
        "Ks": (intrinsics, (cameras, 3, 3)),
    }
    wrong = [
        f"{name} is {tuple(tensor.shape)} and should be {size}"
        for name, (tensor, size) in expected.items()
        if tensor.shape != size
    ]
    if degree is not None and (not 0 <= degree <= 3 or colors.dim() != 3 or colors.shape[1] < (degree + 1) ** 2):
        wrong.append(
            f"colors are {tuple(colors.shape)}; sh_degree {degree} wants (N, at least (degree + 1)^2, 3), degree 0 to 3"
        )
    if degree is None and (colors.dim() not in (2, 3) or colors.shape[-2] != count):
        wrong.append(f"colors are {tuple(colors.shape)} and should be ({count}, D) or ({cameras}, {count}, D)")
    if absgrad and degree is None and colors.shape[-1] > 3:
        wrong.append(f"colors are {tuple(colors.shape)}; absgrad is computed for up to three")
    if wrong:
        raise UsageError(
            "These splats do not fit together.", wrong, ["one row for each splat, one matrix for each camera"]
        )
