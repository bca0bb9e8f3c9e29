"""``rung compare MODEL --format A --format B``: what each format costs and saves, side by side."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from rung.cli import making, options
from rung.cli.views.compare_html import cell
from rung.cli.views.output import columns, print_json
from rung.core.errors import UsageError

_Formats = Annotated[
    list[str],
    typer.Option(
        "--format", help="Compare this format (rung formats lists them); repeat it for more.", show_default=False
    ),
]
_Against = Annotated[
    str | None,
    typer.Option(
        "--against",
        help="Format of the reference; by default the model as it is stored, of a pipeline f32.",
        show_default=False,
    ),
]
_Picture = Annotated[
    Path | None,
    typer.Option(
        "--picture", help="Draw the error by layer to x.svg; of a pipeline, frames to x.png.", show_default=False
    ),
]

_Fleet = Annotated[bool, typer.Option("--fleet", help="Have the nodes of this machine's fleet measure, a format each.")]
_Seed = Annotated[int | None, typer.Option("--seed", min=0, help="Seed of a pipeline's noise; 0.", show_default=False)]


def compare(
    model: Annotated[str, typer.Argument(help="A GGUF file, a folder, a pipeline of diffusers, demo, or a hub name.")],
    format: _Formats,
    against: _Against = None,
    text: Annotated[
        Path | None, typer.Option("--text", help="Text file that a language model reads.", show_default=False)
    ] = None,
    context: Annotated[
        int | None,
        typer.Option("--context", min=8, help="Number of tokens that it reads at a time; 512.", show_default=False),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", help="Prompt of a pipeline; a cat.", show_default=False)
    ] = None,
    frames: Annotated[
        int | None, typer.Option("--frames", min=1, help="Number of frames of a pipeline.", show_default=False)
    ] = None,
    size: making.Size = None,
    steps: making.Steps = None,
    seed: _Seed = None,
    picture: _Picture = None,
    device: options.Device = None,
    software: options.Software = None,
    memory: options.Memory = None,
    threads: options.Threads = None,
    offline: options.Offline = False,
    fleet: _Fleet = False,
    html: options.Html = None,
    json: options.Json = False,
) -> None:
    """Compare formats of a model: how far results are from a reference, memory and speed.

    Language models: KL divergence, perplexity, agreement on a text, error by layer. Pipelines: PSNR and SSIM of the
    frames from the same noise.
    """
    from rung.cli import comparing
    from rung.cli.common import quiet_bitsandbytes, simulated
    from rung.engine import planning

    is_pipeline = comparing.is_pipeline(model, offline)
    planning.need_software(planning.ALL if is_pipeline else planning.LEAN)
    quiet_bitsandbytes()
    folder = making.opened(model, offline, None, quiet=True) if is_pipeline else None
    reads = {"--text": text, "--context": context, "--threads": threads}
    shows = {"--prompt": prompt, "--frames": frames, "--size": size, "--steps": steps, "--seed": seed}
    if folder is not None:
        _refuse({**reads, "--fleet": fleet or None}, f"for language models, and {model} is a pipeline")
    else:
        _refuse(shows, f"for pipelines, and {model} is a language model")
    if fleet and (software is not None or (device or "").startswith("sim:")):
        _refuse({"--device": device, "--software": software}, "of a simulated card, and --fleet measures nodes")
    with simulated(device, software) as chosen:
        if folder is not None:
            settings = {
                "prompt": "a cat" if prompt is None else prompt, "frames": frames, "size": making.pixels(size),
                "steps": steps, "seed": seed or 0,
            }  # fmt: skip
            rows = comparing.pipelines(folder, format, against or "f32", settings, chosen, memory, picture)
        else:
            load = {"device": chosen, "memory": memory, "threads": threads, "offline": offline}
            rows = comparing.language(model, format, against or "stored", text, context or 512, load, picture, fleet)
    if html:
        from rung.cli.views import compare_html, page
        from rung.hardware import detect

        used = [each for each in detect.devices() if chosen in (None, each.id)]
        page.write(html, compare_html.page(model, rows, used))
    if json:
        print_json([{name: _as_json(value) for name, value in row.items()} for row in rows])
        return
    print(*columns(tuple(rows[0]), [[cell(value) for value in row.values()] for row in rows]), sep="\n")


def _refuse(options: dict[str, Any], why: str) -> None:
    """Raises ``UsageError`` for options that would change nothing."""
    names = [name for name, value in options.items() if value is not None]
    if names:
        raise UsageError(f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} {why}.", (), ["leave it out"])


def _as_json(value: Any) -> Any:
    """JSON has no infinity: null where nothing is lost or nothing is known."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
