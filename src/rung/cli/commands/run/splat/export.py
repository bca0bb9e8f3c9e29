"""``rung splat export``: trained scenes as files for other programs, edited on the way."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated

import typer

from rung.cli import options
from rung.cli.views.output import print_json
from rung.core.errors import UsageError


def export(
    sources: Annotated[
        list[Path], typer.Argument(metavar="SRC...", help="Files of splats, or folders of runs.", show_default=False)
    ],
    out: Annotated[
        Path,
        typer.Argument(
            metavar="OUT",
            help="File to write: .ply, .compressed.ply, .splat, .spz, .sog, or .html, a page that shows it.",
            show_default=False,
        ),
    ],
    crop: Annotated[
        str | None,
        typer.Option("--crop", help="Keep what lies in this box of SRC: x0,y0,z0,x1,y1,z1.", show_default=False),
    ] = None,
    scale: Annotated[float, typer.Option("--scale", help="Scale by this, about the origin.")] = 1.0,
    rotate: Annotated[str, typer.Option("--rotate", help="Then turn by x,y,z degrees, about x first.")] = "0,0,0",
    translate: Annotated[str, typer.Option("--translate", help="Then move by x,y,z.")] = "0,0,0",
    prune_opacity: Annotated[
        float | None,
        typer.Option("--prune-opacity", min=0.0, max=1.0, help="Leave out splats below this.", show_default=False),
    ] = None,
    max_splats: Annotated[
        int | None,
        typer.Option(
            "--max-splats", min=1, help="Keep so many: those of the most opacity times size.", show_default=False
        ),
    ] = None,
    sh_degree: Annotated[
        int | None, typer.Option("--sh-degree", min=0, max=3, help="Harmonics to this degree.", show_default=False)
    ] = None,
    json: options.Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing, and do not measure the loss.")] = False,
) -> None:
    """Write trained scenes for other programs, by OUT's suffix; several are put together.

    The loss is the PSNR of pictures of OUT against those of SRC, cropped and moved, from the run's cameras or around
    it.
    """
    from rung.core.text import count, size
    from rung.splats.edit import Move
    from rung.splats.export import PAGE, Edits, Export, check
    from rung.splats.trained import trained

    if not (math.isfinite(scale) and scale > 0):
        raise UsageError(
            f"--scale {scale:g} is no scale.", ["it is above zero"], ["--scale 0.5"], code="value-out-of-range"
        )
    shift, angles = _three("--translate", translate), _three("--rotate", rotate)
    box = None if crop is None else _numbers("--crop", crop, "-1,-1,-1,1,1,1")
    check(sources, out)
    edits = Edits(box, Move(shift, angles, scale), prune_opacity, max_splats, sh_degree)
    exported = Export([trained(source) for source in sources], edits)
    exported.save(out)
    if quiet and not json:
        return
    loss, views = exported.loss(out)
    number, degree = len(exported.cloud.means), exported.cloud.degree
    if json:
        facts = {"out": str(out), "bytes": out.stat().st_size, "splats": number, "sh_degree": degree}
        print_json(facts | {"source_splats": exported.read, "psnr": loss, "views": views})
        return
    share = "" if number == exported.read else f" of {exported.read:,}"
    print(f"{out}: {count(number, 'splat')}{share}, {size(out.stat().st_size)}")
    sources_phrase = count(views, "camera" if exported.views else "view") + ("" if exported.views else " of an orbit")
    of = ", before the page packs them" if out.suffix.lower() == PAGE else ""
    print(
        f"{loss:.1f} dB PSNR against the source over {sources_phrase}{of}"
        if loss < 100
        else f"no difference over {sources_phrase}{of}"
    )


def _three(option: str, text: str) -> tuple[float, float, float]:
    x, y, z = _numbers(option, text, "0,90,0")
    return x, y, z


def _numbers(option: str, text: str, example: str) -> tuple[float, ...]:
    """As many numbers as the example has. Raises ``UsageError``."""
    try:
        found = tuple(float(word) for word in text.split(","))
    except ValueError:
        found = ()
    if len(found) != example.count(",") + 1 or not all(map(math.isfinite, found)):
        raise UsageError(
            f"{option} {text} is no list of {example.count(',') + 1} numbers.",
            [],
            [f"{option}={example}"],
            code="value-out-of-range",
        )
    return found
