"""``rung merge BASE ADAPTER OUT``: a model with a LoRA added to its weights."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rung.cli import options
from rung.cli.commands.make.quantize import Quiet, done, opened, report

_Adapters = Annotated[
    list[str],
    typer.Argument(
        help="Adapters, PEFT folders or GGUF files (DIR:0.5: half of it), and last the result: FILE.gguf, or a folder.",
        metavar="ADAPTER... OUT",
    ),
]


def merge(
    base: Annotated[str, typer.Argument(help="A Hugging Face folder, a GGUF file, demo, or a hub name.")],
    adapters: _Adapters,
    format: options.Format = None,
    threads: options.Threads = None,
    offline: options.Offline = False,
    revision: options.Revision = None,
    json: options.Json = False,
    quiet: Quiet = False,
) -> None:
    """Add adapters to the weights of a model: sums in f32, rounded once, by default to what the base has.

    A run that was stopped goes on where it was when the same command is given again.
    """
    from rung.conversion.checkpoint_layouts import lossless
    from rung.conversion.merge import merging
    from rung.core.errors import UsageError
    from rung.core.text import quoted

    *sources, target = adapters
    if not sources:
        raise UsageError(
            "rung merge needs an adapter and a result.", (), [f"rung merge {quoted(base)} {quoted(target)} OUT"]
        )
    if any(Path(name).resolve() == Path(target).resolve() for name in sources):
        raise UsageError(
            f"{target} is the adapter itself", (), ["give the result another name"], code="output-is-input"
        )
    card = opened(base, target, offline, revision, quiet or json)
    job = merging(card, sources, Path(target), format)
    written, seconds = done(job, target, threads, quiet or json)
    in_blocks = any(not lossless(each.step.format) for each in written)
    report(job, written, seconds, target, json, quiet, by_role=in_blocks)
