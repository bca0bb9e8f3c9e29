"""``rung splat sfm IMAGES --out SCENE``: where photographs were taken."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rung.cli import options
from rung.cli.views.output import note, print_json


def sfm(
    images: Annotated[
        Path, typer.Argument(help="A folder or zip file of photographs, or a video.", show_default=False)
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder of the scene: images and sparse/0.", show_default=False)],
    max_images: Annotated[
        int | None,
        typer.Option("--max-images", min=3, help="Take at most so many, spread evenly.", show_default=False),
    ] = None,
    threads: options.Threads = None,
    json: options.Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say only what went wrong.")] = False,
) -> None:
    """Find the cameras of photographs, so that splats can be trained on them: SIFT, matching and mapping on the CPU.

    Nothing is downloaded. Of a video the sharpest frames are taken.
    """
    from rung.core.text import count
    from rung.engine import planning
    from rung.splats.scenes.sfm import reconstruct

    notify = (lambda text: None) if quiet else note
    found = reconstruct(images, out, max_images=max_images, threads=planning.compute_threads(threads), note=notify)
    if json:
        print_json({"scene": str(out), **found._asdict()})
    elif not quiet:
        print(f"{out}: {count(found.photographs, 'photograph')} placed, {count(found.points, 'point')}")
