"""``rung image MODEL "PROMPT"``: a picture from text, with any pipeline of diffusers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rung.cli import making, options


def image(
    model: making.Model,
    prompt: making.Prompt = None,
    out: Annotated[
        Path, typer.Option("--out", help="File to write: x.png, with the settings in it, or x.webp.")
    ] = Path("image.png"),
    size: making.Size = None,
    steps: making.Steps = None,
    guidance: making.Guidance = None,
    seed: making.Seed = 0,
    scheduler: making.Scheduler = None,
    negative: making.Negative = None,
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
    """Make a picture from text: what encodes, denoises and decodes is in memory one after the other."""
    settings = {
        "frames": 1,
        "size": making.pixels(size),
        "steps": steps,
        "guidance": guidance,
        "seed": seed,
        "scheduler": scheduler,
        "negative": negative,
    }
    making.make(
        model, prompt, batch, settings, out, 1.0, command="image", device=device, software=software, memory=memory,
        format=format, plan=plan, offline=offline, revision=revision, quiet=quiet, json=json,
    )  # fmt: skip
