"""Pictures of a trained scene, without gradients, and as files: a PNG for each camera, or a video."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import numpy as np
import numpy.typing as npt
import torch

from rung.core.errors import UsageError
from rung.core.files import writing
from rung.core.text import quoted
from rung.kernels.webgpu import tensor_device
from rung.measure import pictures
from rung.models.card import View
from rung.ops.rasterize import NEAR, Splats
from rung.splats.cloud import Cloud, Floats
from rung.splats.poses import in_picture
from rung.splats.rasterize import rasterization
from rung.splats.scenes.video import SUFFIXES
from rung.splats.trained import Trained

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


def stems(names: Sequence[str]) -> list[PurePosixPath]:
    """For each photograph a path without a suffix of its own, all different, which cannot lead out of a folder.

    The photograph's subfolders and stem; with its suffix where stems alone would be the same, with a number where names
    are the same.
    """
    paths = [_inside(name) for name in names]
    for found in ([path.with_suffix("") for path in paths], paths):
        if len(set(found)) == len(found):
            return found
    taken = dict[PurePosixPath, None]()
    for path in paths:
        stem, number = path, 1
        while stem in taken:
            number += 1
            stem = path.with_name(f"{path.name}-{number}")
        taken[stem] = None
    return list(taken)


def _inside(name: str) -> PurePosixPath:
    parts = [part for part in PurePosixPath(name.replace("\\", "/")).parts if part not in ("..", "/")]
    return PurePosixPath(*parts or ["photograph"])


VIDEOS = (".mp4", ".gif")
#: Splats by which the range of depths is found, and the shares of them before and behind it.
_LOOKED_AT, _NEAR, _FAR = 20_000, 0.02, 0.98


def draw_all(
    run: Trained,
    views: Sequence[View],
    out: Path,
    background: Color,
    depth: bool,
    fps: float,
    on_done: Callable[[int], None],
    device: str = "cpu",
) -> int:
    """Draws every view, to ``out/STEM.png`` (``naming.stems``) or as the frames of ``out``, a video; returns how many.

    ``device`` is one of torch, or of WebGPU. With ``depth`` pictures are gray: white is the nearest, black the
    farthest or nothing. Raises ``UsageError`` for names that a folder or a video cannot have, for views of several
    sizes in a video, ``SoftwareMissing`` without ffmpeg or pillow, ``DiskFull``.
    """
    painter = Painter(run.cloud, device, run.antialiased)
    settings = {"splats": run.path.name, "background": list(background), "depth": depth}
    if out.suffix.lower() in VIDEOS:
        pictures.check_destination(out, len(views))
        sizes = sorted({(view.width, view.height) for view in views})
        if len(sizes) > 1:
            raise UsageError(
                f"{out.name} cannot have frames of several sizes.",
                [", ".join(f"{width} x {height}" for width, height in sizes[:5])],
                [f"--size {sizes[0][0]}x{sizes[0][1]}"],
            )
        pictures.write(out, _drawn(painter, run.cloud, views, background, depth, on_done), fps, settings)
        return len(views)
    pictures.check_destination(out.absolute().parent / "x.png", 1)
    if out.is_file() or (out.suffix.lower() in (*pictures.VIDEOS, *SUFFIXES) and not out.is_dir()):
        raise UsageError(
            f"{out} is no folder for pictures.", [], [f"--out {quoted(out.with_suffix(''))}", "--out x.mp4, or x.gif"]
        )
    drawn = _drawn(painter, run.cloud, views, background, depth, on_done)
    for stem, picture in zip(stems([view.name for view in views]), drawn, strict=True):
        path = out / f"{stem}.png"
        with writing(out):
            path.parent.mkdir(parents=True, exist_ok=True)
        pictures.write(path, [picture], fps, settings)
    return len(views)


def _drawn(
    painter: Painter,
    cloud: Cloud,
    views: Sequence[View],
    background: Color,
    depth: bool,
    on_done: Callable[[int], None],
) -> Iterator[Bytes]:
    near, far = _range(cloud, views) if depth else (0.0, 0.0)
    for number, view in enumerate(views, 1):
        colors, depths = painter.paint(view, background)
        yield eight_bits(_gray(depths, near, far) if depth else colors)
        on_done(number)


def _gray(depths: np.ndarray, near: float, far: float) -> np.ndarray:
    """[H, W, 3]; inverse depths, of which the eye sees as much nearby as it does far away."""
    inverse = 1 / np.maximum(depths, 1e-9)
    shade = np.where(depths > 0, (inverse - 1 / far) / max(1 / near - 1 / far, 1e-9), 0)
    return np.repeat(shade[..., None], 3, axis=-1)


def _range(cloud: Cloud, views: Sequence[View]) -> tuple[float, float]:
    """The nearest and the farthest depth of almost all splats in the pictures."""
    means = cloud.means[:: len(cloud.means) // _LOOKED_AT + 1].astype(np.float64)
    near, far = np.inf, 0.0
    for view in views:
        inside, depths = in_picture(view, means)
        shown = depths[inside & (depths > NEAR)]
        if len(shown):
            near, far = min(near, np.quantile(shown, _NEAR)), max(far, np.quantile(shown, _FAR))
    return (float(near), float(far)) if far else (1.0, 1.0)
