"""Pictures of a trained scene as files: a PNG for each camera, or a video."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath

import numpy as np

from rung.core.errors import UsageError
from rung.core.files import writing
from rung.core.text import quoted
from rung.measure import pictures
from rung.models.card import View
from rung.ops.rasterize import NEAR
from rung.splats.cloud import Cloud
from rung.splats.poses import in_picture
from rung.splats.render import Bytes, Color, Painter, eight_bits
from rung.splats.scenes.video import SUFFIXES
from rung.splats.trained import Trained


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
