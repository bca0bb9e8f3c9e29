"""``rung splat train SCENE --out DIR``: photographs become splats; stopped or killed, ``--resume`` goes on."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from rung.cli import options

if TYPE_CHECKING:
    from rung.splats.training.run import Progress, ProgressListener, Result


def train(
    context: typer.Context,
    scene: Annotated[
        str, typer.Argument(help="A scene (COLMAP, transforms.json, Blender ...), a video, or demo: a small one.")
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder of the run: splats.ply, metrics.json, checkpoints ...")],
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="Default: the plan's.", show_default=False)
    ] = None,
    time: Annotated[
        str | None, typer.Option("--time", help="Be done after this time: 30m, 90s, 1.5h.", show_default=False)
    ] = None,
    images: Annotated[
        str | None, typer.Option("--images", help="Where the photographs are.", show_default=False)
    ] = None,
    subsample: Annotated[int, typer.Option("--subsample", min=1, help="Take every n-th photograph.")] = 1,
    max_images: Annotated[
        int | None,
        typer.Option("--max-images", min=1, help="Take at most so many, spread evenly.", show_default=False),
    ] = None,
    sfm: Annotated[
        bool, typer.Option("--sfm", help="Find the cameras first, with pycolmap; so it is for a video.")
    ] = False,
    max_splats: Annotated[
        int | None, typer.Option("--max-splats", min=1, help="Default: the plan's.", show_default=False)
    ] = None,
    sh_degree: Annotated[int, typer.Option("--sh-degree", help="Degree of the spherical harmonics, 0 to 3.")] = 3,
    max_resolution: Annotated[
        int | None,
        typer.Option(
            "--max-resolution", min=16, help="Pixels of the longer side; default: the plan's.", show_default=False
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            "--memory",
            help="Budget that training stays within: 4.6GB, or cuda:0=4GB,cpu=8GB. Default: what is free.",
            show_default=False,
        ),
    ] = None,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            help="Numbers of splats: f32, or f32+sh16 with harmonics in 16 bits. Default: f32 where that fits.",
            show_default=False,
        ),
    ] = None,
    device: options.Device = None,
    software: options.Software = None,
    strategy: Annotated[str, typer.Option("--strategy", help="How splats grow: mcmc or classic.")] = "mcmc",
    background: Annotated[
        str, typer.Option("--background", help="Background: black, white, random, or R,G,B from 0 to 1.")
    ] = "black",
    alpha: Annotated[
        str | None,
        typer.Option(
            "--alpha",
            help="How transparent and masked pixels count: masked (not looked at) or transparent (the background). "
            "Default: transparent ones are that, masked ones are masked.",
            show_default=False,
        ),
    ] = None,
    exposure: Annotated[bool, typer.Option("--exposure", help="Learn how each photograph was exposed.")] = False,
    antialiased: Annotated[bool, typer.Option("--antialiased", help="Splats that blur keep their light.")] = False,
    optimize_poses: Annotated[
        bool, typer.Option("--optimize-poses", help="Learn where the cameras of training really stood.")
    ] = False,
    init: Annotated[
        str | None, typer.Option("--init", help="Begin with the splats of this file.", show_default=False)
    ] = None,
    eval_split: Annotated[
        int, typer.Option("--eval-split", min=0, help="Every n-th photograph is a test; 0: none.")
    ] = 8,
    eval_every: Annotated[
        int | None, typer.Option("--eval-every", min=1, help="Steps between tests.", show_default=False)
    ] = None,
    export_every: Annotated[
        int | None, typer.Option("--export-every", min=1, help="Steps between files in exports.", show_default=False)
    ] = None,
    checkpoint_every: Annotated[
        int | None,
        typer.Option("--checkpoint-every", min=1, help="Steps between checkpoints; default: 45 s.", show_default=False),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in DIR.")] = False,
    seed: Annotated[int, typer.Option("--seed", min=0, max=2**32 - 1, help="Seed of everything that is random.")] = 42,
    threads: options.Threads = None,
    view: Annotated[bool, typer.Option("--view", help="Show the training at http://localhost:8080.")] = False,
    json: options.Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say only what went wrong.")] = False,
) -> None:
    """Train Gaussian splats on photographs with known cameras, on the device that is there.

    Ctrl-C saves; the same command with --resume goes on, also after a kill.
    """
    begin = monotonic()
    if not resume:  # a run may have all it needs in its folder
        _there(scene, images)
    from rung.cli.common import simulated
    from rung.splats.training.run import train as run
    from rung.splats.training.settings import Settings, parse_time

    settings = Settings(
        scene=scene if scene == "demo" else os.path.abspath(scene),
        images=_found_again(images),
        subsample=subsample,
        max_images=max_images,
        sfm=sfm,
        steps=steps,
        seconds=None if time is None else parse_time(time),
        max_splats=max_splats,
        sh_degree=sh_degree,
        max_resolution=max_resolution,
        memory=memory,
        format=format,
        device=device,
        strategy=strategy,
        background=background,
        alpha=alpha,
        exposure=exposure,
        antialiased=antialiased,
        optimize_poses=optimize_poses,
        init=_found_again(init),
        eval_split=eval_split,
        eval_every=eval_every,
        export_every=export_every,
        checkpoint_every=checkpoint_every,
        seed=seed,
        threads=threads,
    )
    typed = {"seconds" if name == "time" else name for name in context.params if _is_typed(context, name)}
    with simulated(device, software) as target, _warnings_as_notes(_listener(quiet or json)) as listener:
        done = run(settings, out, resume=resume, typed=typed, listener=listener, device=target, begin=begin, view=view)
    _report(done, out, json, quiet)


def _is_typed(context: typer.Context, name: str) -> bool:
    """Return whether an option is on the command line, also with the value that it has by default."""
    return getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"


def _there(scene: str, images: str | None) -> None:
    """Before anything is imported or probed: raises ``BadFile`` for a scene that is not there."""
    from rung.core.errors import BadFile

    if scene != "demo" and not os.path.exists(scene) and not (images and os.path.exists(images)):
        raise BadFile(
            f"{scene} does not exist.", [], ["check the name", "rung splat train demo --out DIR"], code="path-unknown"
        )


def _found_again(path: str | None) -> str | None:
    """The path from anywhere; as it is where nothing is there: pictures may be in a folder of the scene."""
    return os.path.abspath(path) if path is not None and os.path.exists(path) else path


@contextmanager
def _warnings_as_notes(listener: ProgressListener) -> Iterator[ProgressListener]:
    """Give the warnings of the block to the listener as notes."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *details, **more: listener.note(str(message))
        yield listener


def _listener(quiet: bool) -> ProgressListener:
    """Sentences on stderr, and a line of how the run stands: one that changes on a terminal, else twenty in all."""
    from rung.cli.views.output import note
    from rung.core.text import duration
    from rung.splats.training.run import ProgressListener

    if quiet:
        return ProgressListener()
    live, shown = sys.stderr.isatty(), [-1]

    def note_below(text: str) -> None:
        if live:
            print("\r\x1b[K", file=sys.stderr, end="")
        note(text)

    def progress(now: Progress) -> None:
        part = int(now.done * (1000 if live else 20))
        if part == shown[0]:
            return
        shown[0] = part
        psnr, left = f"PSNR {now.psnr:.2f} dB", f"{duration(now.left)} left"
        line = f"step {now.step:,} · {now.done:.0%} · {psnr} · {now.splats:,} splats · {left}"
        print(
            f"\r\x1b[K{line}" if live else line, file=sys.stderr, end="" if live and now.done < 1 else "\n", flush=True
        )

    return ProgressListener(note_below, progress)


def _report(done: Result, out: Path, json: bool, quiet: bool) -> None:
    """Print what a run came to; exit with 130 when it was stopped."""
    from rung.cli.views.output import print_json

    if json:
        print_json(done.metrics or {"steps": done.steps, "stopped": True})
    elif not quiet:
        print(_ending(done, out))
    if done.stopped:
        sys.exit(130)


def _ending(done: Result, out: Path) -> str:
    if done.stopped:
        return f"stopped after step {done.steps:,}, saved in {out}; the same command with --resume goes on"
    from rung.core.text import count

    found = done.metrics
    splats, steps = count(found["splats"], "splat"), count(found["steps"], "step")
    lines = [f"{found['ply']} · {splats} · {steps}, trained for {found['seconds']:.0f} s"]
    if found["psnr"] is not None:
        quality = f"PSNR {found['psnr']:.2f} dB, SSIM {found['ssim']:.3f}"
        lines.append(f"{count(len(found['images']), 'test picture')}: {quality} · {out / 'test'}")
    page = out / "page.html"
    if page.is_file():
        lines.append(f"{page} · open it in a browser: drag to turn, wheel to come nearer")
    return "\n".join(lines)
