"""Projection, harmonics and compositing in plain torch: what the specification and the rungs of GPUs share."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rung.ops.rasterize import BLUR, EXTENT, LEAST_ALPHA, LEAST_LEFT, MARGIN, MOST_ALPHA, Camera, Splats


class Flat(NamedTuple):
    """Splats in the plane of the picture, in pixels; ``conics`` [N, 3] are the entries xx, xy, yy of the inverse
    covariance, ``radii`` [N, 2] int32 are 0 for a splat that is not in the picture."""

    means: Tensor
    conics: Tensor
    opacities: Tensor
    colors: Tensor
    depths: Tensor
    radii: Tensor


def rotations(quats: Tensor) -> Tensor:
    """[N, 4] as (w, x, y, z) of any length -> [N, 3, 3]."""
    w, x, y, z = torch.nn.functional.normalize(quats, dim=-1).unbind(-1)
    rows = (
        *(1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        *(2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        *(2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    return torch.stack(rows, dim=-1).reshape(*quats.shape[:-1], 3, 3)


def basis(degree: int, directions: Tensor) -> Tensor:
    """Real spherical harmonics of unit vectors [N, 3] -> [N, (degree + 1)^2], signs as in 3D Gaussian Splatting.

    Source: Sloan, Efficient Spherical Harmonic Evaluation (JCGT 2013).
    """
    x, y, z = directions.unbind(-1)
    terms = [torch.full_like(x, 0.28209479177387814)]
    if degree > 0:
        terms += [-0.4886025119029199 * y, 0.4886025119029199 * z, -0.4886025119029199 * x]
    xx, yy, zz = x * x, y * y, z * z
    if degree > 1:
        terms += [1.0925484305920792 * x * y, -1.0925484305920792 * y * z, 0.31539156525252005 * (2 * zz - xx - yy)]
        terms += [-1.0925484305920792 * x * z, 0.5462742152960396 * (xx - yy)]
    if degree > 2:
        terms += [-0.5900435899266435 * y * (3 * xx - yy), 2.890611442640554 * x * y * z]
        terms += [-0.4570457994644658 * y * (4 * zz - xx - yy), 0.3731763325901154 * z * (2 * zz - 3 * xx - 3 * yy)]
        terms += [-0.4570457994644658 * x * (4 * zz - xx - yy), 1.445305721320277 * z * (xx - yy)]
        terms += [-0.5900435899266435 * x * (xx - 3 * yy)]
    return torch.stack(terms, dim=-1)


def view_colors(splats: Splats, pose: Tensor, degree: int | None) -> Tensor:
    """[N, 3]: the harmonics seen from the camera plus 0.5, not below 0; plain colors as they are."""
    if degree is None:
        return splats.colors
    position = -pose[:3, :3].T @ pose[:3, 3]
    directions = torch.nn.functional.normalize(splats.means - position, dim=-1)
    values = basis(degree, directions)
    return ((values[:, :, None] * splats.colors[:, : values.shape[1]]).sum(1) + 0.5).clamp_min(0)


def _slopes(x: Tensor, y: Tensor, z: Tensor, camera: Camera) -> Tensor:
    """The projection's derivative [N, 2, 3], held at what lies a little beyond the edge."""
    fx, fy, cx, cy = camera.fx, camera.fy, camera.cx, camera.cy
    wide, high = MARGIN * 0.5 * camera.width / fx, MARGIN * 0.5 * camera.height / fy
    u = (x / z).clamp(-cx / fx - wide, (camera.width - cx) / fx + wide)
    v = (y / z).clamp(-cy / fy - high, (camera.height - cy) / fy + high)
    none = torch.zeros_like(z)
    return torch.stack([fx / z, none, -fx * u / z, none, fy / z, -fy * v / z], dim=-1).reshape(-1, 2, 3)


def project(splats: Splats, pose: Tensor, camera: Camera, screen: Tensor | None = None) -> Flat:
    """Splats of the world on the plane of the picture (Zwicker et al., EWA Splatting, 2002)."""
    rotation = pose[:3, :3]
    points = splats.means @ rotation.T + pose[:3, 3]
    z = points[:, 2]
    ahead = (z > camera.near) & (z < camera.far)
    x, y, z = (torch.where(ahead, each, torch.ones_like(each)) for each in points.unbind(-1))
    means = torch.stack([camera.fx * x / z + camera.cx, camera.fy * y / z + camera.cy], dim=-1)
    axes = _slopes(x, y, z, camera) @ rotation @ (rotations(splats.quats) * splats.scales[:, None, :])
    covariance = axes @ axes.mT
    xx, xy, yy = covariance[:, 0, 0], covariance[:, 0, 1], covariance[:, 1, 1]
    opacities, area = splats.opacities, (xx + BLUR) * (yy + BLUR) - xy * xy
    if camera.antialiased:
        share = ((xx * yy - xy * xy) / area).clamp_min(0)
        opacities = opacities * torch.where(share > 0, share.clamp_min(1e-30).sqrt(), torch.zeros_like(share))
    conics = torch.stack([yy + BLUR, -xy, xx + BLUR], dim=-1) / area[:, None]
    with torch.no_grad():
        radii = (EXTENT * torch.stack([xx + BLUR, yy + BLUR], dim=-1).sqrt()).ceil()
        size = torch.tensor([camera.width, camera.height], dtype=means.dtype, device=means.device)
        inside = ((means + radii > 0) & (means - radii < size)).all(-1) & ahead & (area > 0)
    if screen is not None:
        means = means + screen[:, :2]
    radii = (radii * inside[:, None]).int()
    return Flat(means, conics, opacities, view_colors(splats, pose, camera.degree), points[:, 2], radii)


def absolute_of(screen: Tensor | None) -> Tensor | None:
    """The columns [N, 2] of ``screen`` that absolute values of gradients go to, where it has them."""
    return None if screen is None or screen.shape[1] == 2 else screen[:, 2:]


class _Absolute(torch.autograd.Function):
    """Offsets [..., P, n, 2] as they are; what they get, without its sign, is told to ``absolute`` [..., n, 2]."""

    @staticmethod
    def forward(ctx: Any, offsets: Tensor, absolute: Tensor) -> Tensor:
        return offsets.view_as(offsets)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        return gradient, gradient.abs().sum(-3)


def composite(flat: Flat, chosen: Tensor, pixels: Tensor, absolute: Tensor | None = None) -> Tensor:
    """[..., P, 5]: color, depth and alpha of pixels whose centers are ``pixels`` [..., P, 2], of the splats ``chosen``
    (int64 [..., n], by depth). ``absolute`` is that of ``absolute_of``."""
    offsets = pixels[..., :, None, :] - flat.means[chosen][..., None, :, :]
    if absolute is not None:
        offsets = _Absolute.apply(offsets, absolute[chosen])
    dx, dy = offsets.unbind(-1)
    xx, xy, yy = flat.conics[chosen][..., None, :, :].unbind(-1)
    power = 0.5 * (xx * dx * dx + yy * dy * dy) + xy * dx * dy
    alpha = (flat.opacities[chosen][..., None, :] * torch.exp(-power)).clamp_max(MOST_ALPHA)
    alpha = torch.where((power >= 0) & (alpha >= LEAST_ALPHA), alpha, torch.zeros_like(alpha))
    left = torch.cumprod(1 - alpha, dim=-1)
    before = torch.cat([torch.ones_like(left[..., :1]), left[..., :-1]], dim=-1)
    weights = torch.where(left > LEAST_LEFT, alpha * before, torch.zeros_like(alpha))
    channels = torch.cat([flat.colors[chosen], flat.depths[chosen][..., None]], dim=-1)
    return torch.cat([weights @ channels, weights.sum(-1, keepdim=True)], dim=-1)
