"""``rung splat render``: pictures or a video of a trained scene."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rung.cli import making, options


def render(
    source: Annotated[
        Path, typer.Argument(metavar="FILE|DIR", help="A file of splats, or the folder of a run.", show_default=False)
    ],
    out: Annotated[
        Path, typer.Option("--out", help="A folder for PNGs, or x.mp4 or x.gif for a video.", show_default=False)
    ],
    cameras: Annotated[
        str,
        typer.Option(
            "--cameras",
            help="test or train (those of the run), orbit, or a file: transforms.json, a COLMAP folder, a camera path "
            "of nerfstudio.",
        ),
    ] = "orbit",
    size: making.Size = None,
    background: Annotated[
        str | None,
        typer.Option(
            "--background", help="Background: black, white or R,G,B (0 to 1); default: the run's.", show_default=False
        ),
    ] = None,
    depth: Annotated[bool, typer.Option("--depth", help="How far away things are: the nearer, the brighter.")] = False,
    frames: Annotated[int, typer.Option("--frames", min=1, max=100_000, help="Views of an orbit.")] = 120,
    fps: Annotated[float, typer.Option("--fps", min=0.1, max=240.0, help="Frames a second of a video.")] = 24.0,
    device: options.Device = None,
    software: options.Software = None,
    quiet: making.Quiet = False,
) -> None:
    """Draw a trained scene: one PNG for each camera, or a video."""
    import functools

    from rung.cli.commands.run.splat.device import on_device
    from rung.cli.views.output import bar
    from rung.core.text import count
    from rung.splats.cameras import chosen
    from rung.splats.render import color, draw_all
    from rung.splats.trained import trained

    run = trained(source)
    views = chosen(cameras, run.views, run.cloud, making.pixels(size), frames)
    ground = color(background or run.background)
    with on_device(device, software) as target, bar(quiet, counted=True) as shown:
        show = functools.partial(shown.update, "drawing", total=len(views))
        number = draw_all(run, views, out, ground, depth, fps, show, target)
    if not quiet:
        print(f"{out} · {count(number, 'picture')}")
