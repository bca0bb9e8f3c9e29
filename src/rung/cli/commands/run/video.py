"""``rung video MODEL "PROMPT"``: a video from text, with any pipeline of diffusers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rung.cli import making, options


def video(
    model: making.Model,
    prompt: making.Prompt = None,
    out: Annotated[
        Path, typer.Option("--out", help="File to write: x.mp4, x.webp or x.gif; x.png for one frame.")
    ] = Path("video.mp4"),
    frames: Annotated[int | None, typer.Option("--frames", min=1, help="Number of frames.", show_default=False)] = None,
    size: making.Size = None,
    steps: making.Steps = None,
    guidance: making.Guidance = None,
    seed: making.Seed = 0,
    scheduler: making.Scheduler = None,
    negative: making.Negative = None,
    fps: Annotated[float, typer.Option("--fps", min=0.1, max=240.0, help="Frames a second.")] = 8.0,
    batch: making.Batch = None,
    format: options.Format = None,
    device: options.Device = None,
    software: options.Software = None,
    memory: options.Memory = None,
    plan: making.Plan = False,
    offline: options.Offline = False,
    revision: options.Revision = None,
    quiet: making.Quiet = False,
    json: options.Json = False,
) -> None:
    """Make a video from text: what encodes, denoises and decodes is in memory one after the other."""
    settings = {
        "frames": 1 if frames is None and out.suffix.lower() == ".png" else frames,
        "size": making.pixels(size),
        "steps": steps,
        "guidance": guidance,
        "seed": seed,
        "scheduler": scheduler,
        "negative": negative,
    }
    making.make(
        model, prompt, batch, settings, out, fps, command="video", device=device, software=software, memory=memory,
        format=format, plan=plan, offline=offline, revision=revision, quiet=quiet, json=json,
    )  # fmt: skip
