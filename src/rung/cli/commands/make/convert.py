"""``rung convert SRC DST``: the same weights as another kind of file."""

from __future__ import annotations

import shutil
from glob import escape
from pathlib import Path
from typing import Annotated

import typer

from rung.cli import options
from rung.cli.commands.make.quantize import Quiet, Source, Target, done, opened, report

_Float = Annotated[
    str | None,
    typer.Option(
        "--format", help="Write weights in f32, f16 or bf16; default: as the source has them.", show_default=False
    ),
]


def convert(
    source: Source,
    target: Target,
    format: _Float = None,
    threads: options.Threads = None,
    offline: options.Offline = False,
    revision: options.Revision = None,
    json: options.Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a GGUF file of a folder, a folder of a GGUF file, or either of a checkpoint of PyTorch.

    Checkpoints of PyTorch (.ckpt, .pt, .bin) are read in a child process, and nothing but weights is built from them.
    """
    from rung.cli.views.output import note
    from rung.conversion.convert import check_float, converting
    from rung.conversion.pickles import pickles_of

    if format is not None:
        check_float(format, source)
    gguf = Path(target).suffix.lower() == ".gguf"
    if not pickles_of(Path(source)):
        job = converting(opened(source, target, offline, revision, quiet or json), gguf, format)
        report(job, *done(job, target, threads, quiet or json), target, json, quiet)
        return
    folder = _unpickled(source, target, keep=not gguf and format is None, quiet=quiet or json, json=json)
    if folder is None:
        return
    try:
        job = converting(opened(str(folder), target, True, None, True), gguf, format)
        report(job, *done(job, target, threads, quiet or json), target, json, quiet)
    except BaseException:
        if not quiet:
            note(f"what was read of {source} is kept in {folder}, for the same command")
        raise
    for leftover in folder.parent.glob(
        f"{escape(Path(target).name)}.unpickled-*"
    ):  # those of runs that were stopped, too
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def _unpickled(source: str, target: str, keep: bool, quiet: bool, json: bool) -> Path | None:
    """The folder that a checkpoint becomes on the way; None where it is the target itself (``keep``)."""
    from rung.cli.views.output import console, note, print_json
    from rung.conversion.pickles import state, unpickled
    from rung.conversion.resumable_writer import check_new
    from rung.core.text import count, size

    target_folder = Path(target)
    check_new(target_folder)
    if not keep:
        target_folder = target_folder.with_name(f"{target_folder.name}.unpickled-{state(Path(source))[:12]}")
    if not keep and target_folder.exists():
        return target_folder  # an earlier run has come so far: it has its name only when it is whole
    try:
        folder = unpickled(Path(source), target_folder)
    except KeyboardInterrupt:
        part = target_folder.with_name(f"{target_folder.name}.part")
        if part.exists() and not quiet:
            note(f"the same command goes on; what has been read is kept in {part}")
        raise
    if keep and json:
        print_json({"target": target, **folder})
    elif keep and not quiet:
        console().print(f"{target}: {size(folder['bytes'])}, {count(folder['tensors'], 'tensor')}")
    return None if keep else target_folder
