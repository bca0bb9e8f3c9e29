"""``rung quantize SRC DST --format F``: a model stored smaller, as another file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rung.cli import options
from rung.core.errors import UsageError

if TYPE_CHECKING:
    from rung.conversion.job import Job
    from rung.conversion.tensor_pieces import Elsewhere
    from rung.conversion.within_budget import Budget, Calibration
    from rung.conversion.writing import Written
    from rung.core.types import Device, Format
    from rung.fleet.work.pieces import Encoders
    from rung.models.card import ModelCard
    from rung.quantization.budget import Choice
    from rung.quantization.divergence import Measured

Source = Annotated[str, typer.Argument(help="A Hugging Face folder, a GGUF file, or a hub name.", metavar="SRC")]
Target = Annotated[str, typer.Argument(help="FILE.gguf, or a folder that is to be made.", metavar="DST")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")]
_Format = Annotated[
    str | None,
    typer.Option("--format", help="A format (rung formats) or a mixture: q4_k_m, q5_k_s.", show_default=False),
]
_Size = Annotated[
    str | None, typer.Option("--size", help="Make the best GGUF file of at most this size: 120MB.", show_default=False)
]
_MaxKl = Annotated[
    float | None,
    typer.Option(
        "--max-kl", help="Make the smallest GGUF file within this KL, in nats a token: 0.02.", show_default=False
    ),
]
_Text = Annotated[
    Path | None,
    typer.Option("--text", help="Round for, and judge by, this text; by default one of all sorts.", show_default=False),
]
_For = Annotated[
    str | None,
    typer.Option(
        "--for",
        help="Choose for this device (rung devices --catalog): with --max-kl the file that is fastest there.",
        show_default=False,
    ),
]
_Plan = Annotated[bool, typer.Option("--plan", help="Choose the formats of --size or --max-kl, and write nothing.")]
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
    typer.Option(
        "--as",
        help="Whose file: rung, gguf, bitsandbytes, gptq or compressed-tensors; default: by DST's name.",
        show_default=False,
    ),
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
    str | None,
    typer.Option(
        "--picture",
        help="Draw the errors by layer into this SVG file; within a budget size against KL, and KL by layer apart.",
        show_default=False,
    ),
]
_Fleet = Annotated[bool, typer.Option("--fleet", help="Have the nodes of this machine's fleet encode.")]


def quantize(
    source: Source,
    target: Target,
    format: _Format = None,
    size: _Size = None,
    max_kl: _MaxKl = None,
    text: _Text = None,
    device: _For = None,
    software: options.Software = None,
    plan: _Plan = False,
    keep: _Keep = None,
    kind: _As = None,
    importance: _Importance = None,
    picture: _Picture = None,
    threads: options.Threads = None,
    offline: options.Offline = False,
    revision: options.Revision = None,
    fleet: _Fleet = False,
    json: options.Json = False,
    quiet: Quiet = False,
) -> None:
    """Store a model in a format, or within a size or a KL, and say what was lost.

    A run that was stopped goes on where it was when the same command is given again.
    """
    from rung.conversion.quantize import kind_of, parse_keep, quantizing, weighed
    from rung.conversion.writing import names_compiled
    from rung.core.files import writing
    from rung.measure.curves import check_curves, curves

    if picture is not None:
        check_curves(Path(picture))
    if fleet and (plan or format is None or text is not None):
        raise _fleet_of_format()
    if plan or format is None or any(each is not None for each in (size, max_kl, text, device, software)):
        where = None if device is None and software is None else one_device(device, software)
        whose = kind_of(Path(target), kind)
        budget = budget_of(format, size, max_kl, plan, importance, whose, where)
        card = opened(source, target, offline, revision, quiet or json)
        within(card, target, budget, text, parse_keep(keep or ()), threads, plan, json, quiet, whose, picture)
        return
    chosen = kind_of(Path(target), kind)
    kept = parse_keep(keep or ())
    with over_fleet(quiet or json) if fleet else nullcontext() as nodes:
        card = opened(source, target, offline, revision, quiet or json)
        job = quantizing(card, chosen, format, kept)
        job = job if importance is None else weighed(job, Path(importance))
        if nodes is not None:
            nodes.compiled = names_compiled(job)
        written, seconds = done(job, target, threads, quiet or json, nodes)
    report(job, written, seconds, target, json, quiet, by_role=True)
    if picture is not None:
        from rung.cli.views.quantize import errors_by_layer

        outside = "layer (-1: outside of layers)"
        with writing(Path(picture)):
            curves(Path(picture), errors_by_layer(written), f"{card.name} as {format}", outside, "SQNR, dB")


def opened(source: str, target: str, offline: bool, revision: str | None, quiet: bool) -> Any:
    """The card of the source. Raises ``UsageError`` where the target is there already or is the source."""
    from rung.cli.views.output import bar, note
    from rung.conversion.resumable_writer import check_new
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
            on_note=lambda text: None if quiet else note(text),
        )
    if there in {Path(card.path).resolve(), *(Path(path).resolve() for path in card.files)}:
        raise UsageError(f"{target} is the source itself", (), ["give the result another name"], code="output-is-input")
    return card


@contextmanager
def over_fleet(quiet: bool) -> Iterator[Encoders]:
    """Connect to the fleet of this machine and have encoders begin there; say what each node did at the end. Raises
    ``RungError``."""
    from rung.cli.views.output import note
    from rung.fleet import ray_node

    ray_node.require()
    with ray_node.connected():
        from rung.fleet.work.pieces import Encoders

        nodes = Encoders(lambda text: None if quiet else note(text))
        try:
            yield nodes
        finally:
            nodes.end()
        if not quiet:
            note("pieces by node: " + ", ".join(f"{name} {count:,}" for name, count in sorted(nodes.counts.items())))


def _fleet_of_format() -> UsageError:
    return UsageError(
        "A fleet encodes for --format alone: what --size, --max-kl and --text choose is judged on one machine.",
        (),
        ["leave out --fleet"],
        code="options-exclude-each-other",
    )


def done(
    job: Job, target: str, threads: int | None, quiet: bool, elsewhere: Elsewhere | None = None
) -> tuple[list[Written], float]:
    """Does the job with a progress bar, or has it done ``elsewhere``; returns what was written, and in how many
    seconds."""
    import time

    from rung.cli.views.output import bar, note
    from rung.conversion.writing import write
    from rung.engine import planning

    def on_note(text: str) -> None:
        if not quiet:
            note(text)

    for text in job.notes:
        on_note(text)
    began = time.monotonic()
    try:
        with bar(quiet) as progress:
            written = write(job, Path(target), planning.compute_threads(threads), progress.update, on_note, elsewhere)
    except KeyboardInterrupt:
        on_note(f"the same command goes on from here; what is done is kept in {target}.part")
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


def _check_budget_options(format: str | None, size: str | None, max_kl: float | None, chooses: bool, kind: str) -> None:
    """Raise ``UsageError`` where neither a format nor a budget is there, or both; ``chooses``: a format leaves nothing
    to choose."""
    from rung.conversion.quantize import PACKED_FOLDERS

    budgets = [name for name, value in (("--size", size), ("--max-kl", max_kl)) if value is not None]
    if format is not None and budgets:
        names = " and ".join(budgets)
        ways = [f"leave out {name}" for name in ("--format", names)]
        raise UsageError(f"--format goes without {names}.", ["a size or a KL lets rung choose the formats"], ways)
    if format is not None or budgets:
        return
    if kind in PACKED_FOLDERS:
        ways = ["--format q4_0", "--format q8_0"]
        raise UsageError(f"Say the format of the weights in a folder of {kind}.", (), ways)
    ways = ["--size 120MB", "--max-kl 0.02", *([] if chooses else ["--format q4_k_m"])]
    number = "two" if chooses else "three"
    raise UsageError(f"Say how small or how good the file must be, by one of {number} options.", (), ways)


def budget_of(
    format: str | None, size: str | None, max_kl: float | None, plan: bool, importance: str | None, kind: str,
    device: Device | None,
) -> Budget:  # fmt: skip
    """Return the budget. Raises ``UsageError`` for options that are missing, that exclude each other, or make no
    sense."""
    from rung.conversion.quantize import PACKED_FOLDERS
    from rung.conversion.within_budget import Budget
    from rung.core.text import parse_size

    _check_budget_options(format, size, max_kl, plan or device is not None, kind)
    if kind != "gguf" and (format is None or kind not in PACKED_FOLDERS):
        raise UsageError(
            "Within a size or a KL rung writes GGUF files, and with --text those and folders of gptq and"
            " compressed-tensors.",
            (),
            ["a DST that ends in .gguf"],
            code="format-does-not-suit",
        )
    if importance is not None:
        raise UsageError("--importance goes with --format alone: a text says more.", (), ["leave out --importance"])
    if plan and format is not None:
        raise UsageError("--plan shows the choice of --size or --max-kl.", (), ["rung plan MODEL --format q4_k_m"])
    if max_kl is not None and not 0 < max_kl < float("inf"):
        raise UsageError(f"--max-kl {max_kl:g} is no KL.", (), ["--max-kl 0.02"], code="value-out-of-range")
    if device is not None and format is not None:
        raise UsageError(
            "--for chooses within --size or --max-kl.",
            (),
            ["--max-kl 0.02 --for p2200", "rung check MODEL --device p2200   # how fast a format is there"],
        )
    try:
        return Budget(None if size is None else parse_size(size), max_kl, format, device)
    except ValueError as error:
        raise UsageError(f"--size {size}: {error}", (), ["--size 120MB"], code="value-out-of-range") from error


def one_device(name: str | None, software: str | None) -> Device:
    """Return the device of a name. Raises ``UnknownDevice``, and ``UsageError`` without a name or for several."""
    from rung.core.errors import UsageError
    from rung.hardware.select import select_groups

    if name is None:
        raise UsageError("--software is that of the card of --for.", (), ["--max-kl 0.02 --for p2200"])
    groups = select_groups((name,), software)
    if len(groups) != 1 or len(groups[0]) != 1:
        raise UsageError(f"--for {name}: a mixture is chosen for one device.", (), ["--for p2200", "rung devices"])
    return groups[0][0]


def within(
    card: ModelCard, target: str, budget: Budget, text: Path | None, keep: dict[str, Format], threads: int | None,
    plan: bool, json: bool, quiet: bool, kind: str = "gguf", picture: str | None = None,
) -> None:  # fmt: skip
    """Choose and write, and judge what was written; with ``plan`` choose only. A ``picture`` is drawn of either."""
    from rung.cli.views.output import bar, note, print_json
    from rung.cli.views.quantize import as_json, measured_lines, planned_line, speed_lines
    from rung.conversion.within_budget import Calibration, budgeted
    from rung.engine import planning
    from rung.kernels.cpu import target as level

    planning.need_software(what="judging a model by a text")
    count = planning.compute_threads(threads)
    level.configure()
    with bar(quiet or json, counted=True) as progress:
        found = Calibration(card, text, count, progress.update)
        job, choice = budgeted(found, budget, keep, kind)
    expected = {"expected_kl": None if choice is None else choice.divergence, **chosen(job, budget), "text": found.name}
    if plan:
        if json:
            print_json(expected)
        else:
            print(planned_line(expected), *speed_lines(expected), sep="\n")
        draw(picture, found, choice, None, [])
        return
    written, seconds, measured = _judged(job, found, target, threads, quiet or json)
    draw(picture, found, choice, measured.divergence, written)
    if json:
        print_json(as_json(job, written, seconds, target) | expected | {"measured": measured.to_json()})
        return
    report(job, written, seconds, target, json, quiet, by_role=True)
    if not quiet:
        print(*measured_lines(expected["expected_kl"], measured), *speed_lines(expected), sep="\n")
    if budget.max_kl is not None and measured.divergence > budget.max_kl:
        note(f"the KL is above --max-kl {budget.max_kl:g} on the part of the text that nothing was chosen by")


def _judged(
    job: Job, found: Calibration, target: str, threads: int | None, quiet: bool
) -> tuple[list[Written], float, Measured]:
    """Write the result of a job, and judge it before it has its name; return also the seconds of writing."""
    from rung.conversion.within_budget import record, without_verdict
    from rung.models import open_card
    from rung.quantization.divergence import Reference

    unjudged = without_verdict(Path(target))
    written, seconds = done(job, str(unjudged), threads, quiet)
    measured = Reference(found.card, found.held_out).compare(open_card(unjudged), kinds=found.kinds)
    if job.single:
        record(job, unjudged, measured)
    unjudged.rename(target)
    return written, seconds, measured


def draw(
    picture: str | None, found: Calibration, choice: Choice | None, measured: float | None, written: list[Written]
) -> None:
    """Draw size against KL, and in a second file (``-layers.svg``) the KL of each layer, as expected and as measured.

    Draw the errors by layer of a named format, for which nothing is chosen.
    """
    from rung.cli.views.quantize import errors_by_layer
    from rung.conversion.within_budget import layers, point, sizes
    from rung.core.files import writing
    from rung.measure.curves import curves

    if picture is None:
        return
    path, name, outside = Path(picture), found.card.name, "layer (-1: outside of layers)"
    with writing(path):
        if choice is None:
            curves(path, errors_by_layer(written), name, outside, "SQNR, dB")
            return
        points = sizes(found) | {"chosen, expected": [point(choice.bytes, choice.divergence)]}
        if measured is not None:
            points["chosen, measured"] = [point(choice.bytes, measured)]
        curves(path, points, f"{name}, rounded for {found.name} text", "MB of weights", "log10 of the KL")
        by_layer = layers(found, choice)
        curves(path.with_name(f"{path.stem}-layers.svg"), by_layer, f"{name}, a layer alone", outside, "KL")


def chosen(job: Job, budget: Budget) -> dict[str, Any]:
    """Return how many tensors have each format, the bytes of the file, and tokens a second on the budget's device."""
    from collections import Counter

    formats = {step.tensor.role: step.format for step in job.steps if len(step.tensor.shape) > 1}
    found: dict[str, Any] = {
        "formats": dict(Counter(each.name for each in formats.values())),
        "file_bytes": job.file_bytes,
    }
    if budget.device is not None:
        from rung.quantization.budget import TokenTimes

        rate = TokenTimes(job.card, budget.device).tokens_per_second(formats)
        found |= {"device": budget.device.name, "tokens_per_second": rate}
    return found
