"""``rung quantize SRC DST --format F``: a model stored smaller, as another file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rung.cli import options

if TYPE_CHECKING:
    from rung.conversion.job import Job
    from rung.conversion.writing import Written

Source = Annotated[str, typer.Argument(help="A Hugging Face folder, a GGUF file, or a hub name.", metavar="SRC")]
Target = Annotated[str, typer.Argument(help="FILE.gguf, or a folder that is to be made.", metavar="DST")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")]
_Format = Annotated[
    str, typer.Option("--format", help="A format (rung formats) or a mixture: q4_k_m, q5_k_s.", show_default=False)
]
_Keep = Annotated[
    list[str] | None,
    typer.Option(
        "--keep",
        help="PATTERN=FORMAT: another format for these tensors, lm_head=q6_k say; may be given several times.",
        show_default=False,
    ),
]
_As = Annotated[
    str | None,
    typer.Option("--as", help="Whose file: rung, gguf or bitsandbytes; default: by DST's name.", show_default=False),
]
_Importance = Annotated[
    str | None,
    typer.Option(
        "--importance",
        help="Data of llama-imatrix (.gguf or .dat): errors count where inputs are large.",
        show_default=False,
    ),
]
_Picture = Annotated[
    str | None, typer.Option("--picture", help="Draw the errors by layer into this SVG file.", show_default=False)
]


def quantize(
    source: Source,
    target: Target,
    format: _Format,
    keep: _Keep = None,
    kind: _As = None,
    importance: _Importance = None,
    picture: _Picture = None,
    threads: options.Threads = None,
    offline: options.Offline = False,
    revision: options.Revision = None,
    json: options.Json = False,
    quiet: Quiet = False,
) -> None:
    """Store a model in a format, a tensor at a time, and say what each tensor lost.

    A run that was stopped goes on where it was when the same command is given again.
    """
    from rung.conversion.quantize import kind_of, parse_keep, quantizing, weighed
    from rung.core.files import writing
    from rung.measure.curves import check_curves, curves

    if picture is not None:
        check_curves(Path(picture))
    chosen = kind_of(Path(target), kind)
    kept = parse_keep(keep or ())
    card = opened(source, target, offline, revision, quiet or json)
    job = quantizing(card, chosen, format, kept)
    job = job if importance is None else weighed(job, Path(importance))
    written, seconds = done(job, target, threads, quiet or json)
    report(job, written, seconds, target, json, quiet, by_role=True)
    if picture is not None:
        from rung.cli.views.quantize import errors_by_layer

        outside = "layer (-1: outside of layers)"
        with writing(Path(picture)):
            curves(Path(picture), errors_by_layer(written), f"{card.name} as {format}", outside, "SQNR, dB")


def opened(source: str, target: str, offline: bool, revision: str | None, quiet: bool) -> Any:
    """The card of the source. Raises ``UsageError`` where the target is there already or is the source."""
    from rung.cli.views.output import note
    from rung.cli.views.progress import bar
    from rung.conversion.resumable_writer import check_new
    from rung.core.errors import UsageError
    from rung.models.lookup import find_card

    there = Path(target).resolve()
    if there != Path(source).resolve():
        check_new(Path(target))
    with bar(quiet) as progress:
        card = find_card(
            source,
            offline=offline,
            revision=revision,
            progress=progress.update,
            on_note=lambda said: None if quiet else note(said),
        )
    if there in {Path(card.path).resolve(), *(Path(path).resolve() for path in card.files)}:
        raise UsageError(f"{target} is the source itself", (), ["give the result another name"], code="output-is-input")
    return card


def done(job: Job, target: str, threads: int | None, quiet: bool) -> tuple[list[Written], float]:
    """Does the job with a progress bar; returns what was written, and in how many seconds."""
    import time

    from rung.cli.views.output import note
    from rung.cli.views.progress import bar
    from rung.conversion.writing import write
    from rung.engine import process_memory

    def said(text: str) -> None:
        if not quiet:
            note(text)

    for text in job.notes:
        said(text)
    began = time.monotonic()
    try:
        with bar(quiet) as progress:
            written = write(job, Path(target), process_memory.threads(threads), progress.update, said)
    except KeyboardInterrupt:
        said(f"the same command goes on from here; what is done is kept in {target}.part")
        raise
    return written, time.monotonic() - began


def report(
    job: Job, written: list[Written], seconds: float, target: str, json: bool, quiet: bool, by_role: bool = False
) -> None:
    """A line about the whole, with ``by_role`` below a table of what each kind of tensor lost; or all as JSON."""
    from rung.cli.views.output import console, print_json
    from rung.cli.views.quantize import as_json, table_of, whole_line

    if json:
        print_json(as_json(job, written, seconds, target))
        return
    if not quiet:
        out = console()
        if by_role and any(each.cost for each in written):
            out.print(table_of(written))
        out.print(whole_line(job, written, seconds, target))
