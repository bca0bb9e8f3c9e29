"""Pictures of a trained scene, without gradients: in color, and how far away things are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from rung.core.errors import UsageError
from rung.kernels.webgpu import tensor_device
from rung.models.card import View
from rung.ops.rasterize import Splats
from rung.splats.cloud import Cloud, Floats
from rung.splats.rasterize import rasterization

Bytes = npt.NDArray[np.uint8]
#: Red, green, blue in 0 to 1, as splats have them: nothing converts to or from sRGB.
Color = Sequence[float]


class Painter:
    """Draws views of one cloud on a device: torch's, or one of WebGPU by its id.

    ``degree`` limits the harmonics (0: the same color from all sides).
    """

    def __init__(
        self, cloud: Cloud, device: str | torch.device = "cpu", antialiased: bool = False, degree: int | None = None
    ) -> None:
        self._degree = cloud.degree if degree is None else min(degree, cloud.degree)
        parts = (cloud.means, cloud.quats, cloud.scales, cloud.opacities, cloud.harmonics)
        self._device = str(device)
        target = tensor_device(self._device)
        self._splats = Splats(*(torch.from_numpy(np.ascontiguousarray(part)).to(target) for part in parts))
        self._mode = "antialiased" if antialiased else "classic"

    def paint(self, view: View, background: Color = (0.0, 0.0, 0.0)) -> tuple[Floats, Floats]:
        """Colors [H, W, 3], in 0 to 1 where the splats are, and depths [H, W] (weighted means, 0 where nothing is)."""
        pose, intrinsics = torch.eye(4), torch.eye(3)
        pose[:3] = torch.tensor(view.pose).reshape(3, 4)
        intrinsics[0, 0], intrinsics[1, 1], intrinsics[0, 2], intrinsics[1, 2] = view.fx, view.fy, view.cx, view.cy
        splats, target = self._splats, self._splats.means.device
        with torch.no_grad():
            picture, alpha, _ = rasterization(
                splats.means,
                splats.quats,
                splats.scales,
                splats.opacities,
                splats.colors,
                pose[None].to(target),
                intrinsics[None],
                view.width,
                view.height,
                sh_degree=self._degree,
                render_mode="RGB+ED",
                rasterize_mode=self._mode,
                device=self._device,
            )
            colors = picture[0, ..., :3] + (1 - alpha[0]) * torch.tensor(background, device=target)
        return colors.cpu().numpy(), picture[0, ..., 3].cpu().numpy()


def draw(
    cloud: Cloud,
    view: View,
    background: Color = (0.0, 0.0, 0.0),
    *,
    antialiased: bool = False,
    degree: int | None = None,
    device: str | torch.device = "cpu",
) -> Bytes:
    """One picture of a cloud, uint8 [H, W, 3]; of many views a ``Painter`` is quicker."""
    return eight_bits(Painter(cloud, device, antialiased, degree).paint(view, background)[0])


def eight_bits(colors: np.ndarray) -> Bytes:
    """Colors as files hold them: 0 to 1 becomes 0 to 255, rounded; what lies beyond is cut off."""
    result: Bytes = np.rint(np.clip(colors, 0, 1) * 255).astype(np.uint8)
    return result


def color(words: str) -> tuple[float, float, float]:
    """A background by name (black, white) or as R,G,B in 0 to 1; raises ``UsageError``."""
    named = {"black": (0.0, 0.0, 0.0), "white": (1.0, 1.0, 1.0)}
    if words in named:
        return named[words]
    try:
        red, green, blue = (float(word) for word in words.split(","))
    except ValueError:
        red = green = blue = -1.0
    if not all(0 <= value <= 1 for value in (red, green, blue)):
        raise UsageError(
            f"{words!r} is no background.",
            ["black, white, or R,G,B with values from 0 to 1"],
            ["--background white", "--background 0.2,0.2,0.2"],
            code="name-unknown",
        )
    return red, green, blue
