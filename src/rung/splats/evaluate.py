"""How well a trained scene shows photographs: PSNR, SSIM and LPIPS of pictures after a round trip through 8 bits."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from rung.core.errors import BadFile, UsageError
from rung.measure.metrics import ssim
from rung.models.card import View
from rung.splats.cloud import Cloud
from rung.splats.photographs import Photographs, Shot, transparent
from rung.splats.render import Bytes, Color, Painter, color, eight_bits
from rung.splats.scenes import scene
from rung.splats.trained import METRICS, Trained, read_run_file

#: PSNR in dB of pictures that are equal or almost: the mean over pictures stays a number.
_MOST = 100.0
#: The weights that LPIPS as the reference implementation measures it asks torchvision for.
_VGG = "vgg16-397923af.pth"


class Shots(Protocol):
    """Photographs by index."""

    def shot(self, index: int) -> Shot: ...


def evaluate(
    cloud: Cloud,
    views: Sequence[View],
    photographs: Shots,
    indexes: Iterable[int],
    *,
    background: Color = (0.0, 0.0, 0.0),
    transparent: Callable[[View], bool] = lambda view: False,
    antialiased: bool = False,
    device: str | torch.device = "cpu",
    see: Callable[[View, Bytes, Bytes], None] = lambda view, picture, truth: None,
) -> dict[str, Any]:
    """``psnr``, ``ssim`` and ``lpips``, means over ``images``, which hold the three for each ``name``.

    ``views`` and ``photographs`` are of the same order and sizes, ``indexes`` says which are measured. Where a
    photograph has an alpha, it lies on the background where its view is ``transparent``, else what is masked is black
    in both pictures and counts for nothing in PSNR. ``see`` is given every view with the picture and the truth, uint8
    [H, W, 3]. Without the package lpips and torchvision's weights for it, which are not downloaded, ``lpips`` is None;
    all are without images. PSNR in dB, at most 100.
    """
    painter, perceived = Painter(cloud, device, antialiased), _lpips()
    images: list[dict[str, Any]] = []
    for index in indexes:
        view, shot = views[index], photographs.shot(index)
        picture = eight_bits(painter.paint(view, background)[0])
        truth, kept = compared(shot, background, transparent(view))
        if kept is not None:
            picture = np.where(kept[..., None], picture, 0).astype(np.uint8)
        see(view, picture, truth)
        images.append(
            {
                "name": view.name,
                "psnr": psnr(picture, truth, kept),
                "ssim": ssim(picture[None], truth[None]),
                "lpips": perceived(picture, truth) if perceived else None,
            }
        )
    return {name: _mean([image[name] for image in images]) for name in ("psnr", "ssim", "lpips")} | {"images": images}


def evaluate_run(run: Trained, device: str | torch.device = "cpu") -> dict[str, Any]:
    """The metrics of a run, with its test pictures measured again from its splats, its cameras and the photographs.

    What only training knows (steps, seconds, memory, plan, report) is as it left it, None where it was stopped. Raises
    ``UsageError`` for what is no run's folder and without test cameras, ``BadFile`` where photographs have changed.
    """
    tests = [view for view in run.views if view.split == "test"]
    if not tests:
        raise UsageError(
            f"{run.folder} has no test pictures.",
            ["its run kept none for testing" if run.views else "it is not what a run left"],
            ["rung splat train SCENE --out DIR   # keeps every eighth photograph for testing"],
        )
    shots, indexes = _tested(run, tests)
    alpha, known = run.settings.get("alpha"), read_run_file(run.folder / METRICS)
    poses = {view.name: view.pose for view in tests}
    found = evaluate(
        run.cloud,
        [replace(view, pose=poses[view.name]) for view in shots.views],
        shots,
        indexes,
        background=color(run.background),
        transparent=lambda view: transparent(alpha, view),
        antialiased=run.antialiased,
        device=device,
    )
    stated = {name: known.get(name) for name in ("steps", "seconds", "peak_memory_bytes", "plan", "report")}
    facts = {"splats": len(run.cloud.means), "sh_degree": run.cloud.degree}
    return stated | facts | {"width": tests[0].width, "height": tests[0].height, "ply": str(run.path)} | found


def _tested(run: Trained, tests: Sequence[View]) -> tuple[Photographs, list[int]]:
    """The photographs of a run at its size, and the indexes of its tests."""
    own, source = run.folder / "scene", run.settings.get("scene")
    card = scene(own if own.is_dir() else str(source), None if own.is_dir() else run.settings.get("images"))
    size = max(max(view.width, view.height) for view in run.views)
    names = {view.name for view in tests}
    chosen = replace(card, views=tuple(view for view in card.views if view.name in names))
    shots = Photographs(chosen, 0, size)
    indexes = {(view.name, view.width, view.height): index for index, view in enumerate(shots.views)}
    keys = [(view.name, view.width, view.height) for view in tests]
    gone = [f"{name} ({width} x {height})" for name, width, height in keys if (name, width, height) not in indexes]
    if gone:
        raise BadFile(
            f"{card.path} is not as it was in training.",
            [f"test pictures that are not there in their size: {', '.join(gone[:5])}", *shots.notes],
            ["train again", "put the photographs back"],
        )
    return shots, [indexes[each] for each in keys]


def compared(shot: Shot, background: Color, transparent: bool) -> tuple[Bytes, np.ndarray | None]:
    """Return the reference of a picture, uint8 [H, W, 3], and the pixels that count, bool [H, W] (None: all)."""
    if shot.alpha is None:
        return shot.rgb, None
    if not transparent:
        kept = shot.alpha > 127
        return np.where(kept[..., None], shot.rgb, 0).astype(np.uint8), kept
    share = shot.alpha[..., None].astype(np.float32) / 255
    return eight_bits(shot.rgb / np.float32(255) * share + np.asarray(background, np.float32) * (1 - share)), None


def psnr(picture: Bytes, truth: Bytes, kept: np.ndarray | None = None) -> float:
    """PSNR in dB of pictures, at most 100; ``kept`` [H, W] are the pixels that count, the others are black in both."""
    error = (picture.astype(np.float64) - truth.astype(np.float64)) ** 2
    share = 1.0 if kept is None else float(kept.mean())
    mean = float(error.mean()) / share if share else 0.0
    return min(_MOST, 10 * math.log10(255**2 / mean)) if mean else _MOST


def _mean(values: list[float | None]) -> float | None:
    found = [value for value in values if value is not None]
    return sum(found) / len(found) if found else None


def _lpips() -> Callable[[Bytes, Bytes], float] | None:
    """LPIPS with VGG, as papers on splats give it, where package and weights are there."""
    weights = Path(torch.hub.get_dir()) / "checkpoints" / _VGG
    if not weights.is_file() or not all(importlib.util.find_spec(name) for name in ("lpips", "torchvision")):
        return None
    import lpips

    network = lpips.LPIPS(net="vgg", verbose=False)

    def measured(picture: Bytes, truth: Bytes) -> float:
        with torch.no_grad():
            a, b = (torch.from_numpy(each).permute(2, 0, 1)[None] / 127.5 - 1 for each in (picture, truth))
            return float(network(a, b))

    return measured
