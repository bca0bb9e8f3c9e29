"""``rung check MODEL...``: will it run, where, in which format, with how much memory, how fast; from headers alone."""

from __future__ import annotations

import json as encoder
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rung.cli import check_scene, options
from rung.cli.output import columns, note, print_json
from rung.core.errors import RungError, UsageError

if TYPE_CHECKING:
    from rung.planning.answer import Answer, Choice, Pass, Unanswered

_Models = Annotated[
    list[str],
    typer.Argument(
        help="GGUF files, folders, pipelines, config.json files, hub names, demo, or scenes of photographs.",
        show_default=False,
    ),
]
_Devices = Annotated[
    list[str] | None,
    typer.Option(
        "--device",
        help="cpu, cuda:0, a card of the catalogue (p2200), 3090+3060 or 2x3090 as one budget; repeat it for more.",
        show_default=False,
    ),
]
_Formats = Annotated[
    list[str] | None,
    typer.Option("--format", help="Only this format, or mixture like q4_k_m; repeat it.", show_default=False),
]
_Software = Annotated[
    str | None,
    typer.Option("--software", help="The build on a catalogue card: 'torch 1.10+cu102'.", show_default=False),
]
_Fits = Annotated[bool, typer.Option("--fits", help="Every card of the catalogue, and the smallest that runs it.")]
_Batch = Annotated[int, typer.Option("--batch", help="Sequences at once.")]
_Prompt = Annotated[
    int | None,
    typer.Option("--prompt-tokens", help="The prompt that speed is predicted for and after; 512.", show_default=False),
]
_Training = Annotated[str | None, typer.Option("--training", help="lora or full.", show_default=False)]
_Optimizer = Annotated[
    str | None,
    typer.Option(
        "--optimizer",
        help="Of training: adamw, adamw8bit, lion, adafactor, momentum or sgd; adamw.",
        show_default=False,
    ),
]
_Rank = Annotated[int | None, typer.Option("--rank", help="Of the adapters; 16.", show_default=False)]
_Sequence = Annotated[
    int | None, typer.Option("--sequence", help="Tokens of a training sequence; 1024.", show_default=False)
]
_Trace = Annotated[
    bool,
    typer.Option(
        "--trace",
        help="Build the modules without weights (torch, transformers or diffusers) and count a forward pass: "
        "for models that rung has no description of, and the activations of any.",
    ),
]
_Html = Annotated[Path | None, typer.Option("--html", help="Also write a page to this file.", show_default=False)]
_Context = Annotated[
    int | None, typer.Option("--context", help="Tokens that prompt and answer may have together.", show_default=False)
]


def check(
    models: _Models,
    device: _Devices = None,
    format: _Formats = None,
    software: _Software = None,
    memory: options.Memory = None,
    context: _Context = None,
    batch: _Batch = 1,
    prompt_tokens: _Prompt = None,
    fits: _Fits = False,
    training: _Training = None,
    optimizer: _Optimizer = None,
    rank: _Rank = None,
    sequence: _Sequence = None,
    trace: _Trace = False,
    html: _Html = None,
    offline: options.Offline = False,
    revision: options.Revision = None,
    json: options.Json = False,
) -> None:
    """Say whether models will run, where, in which format, with how much memory and how fast, without their weights.

    Exit code 0: something would run; 1: nothing would; 2: the question is wrong, or that of one of the models.
    """
    from rung.cli.check_html import page, write
    from rung.cli.common import tell_taken
    from rung.engine.groups import asked_about
    from rung.planning.answer import Question, Unanswered
    from rung.planning.request import parse_memory

    if fits and device:
        raise UsageError("--fits asks the whole catalogue; --device names devices: one or the other.")
    question = Question(
        context=context,
        batch=batch,
        formats=tuple(format or ()),
        memory=parse_memory(memory),
        training=training,
        optimizer=optimizer,
        rank=rank,
        sequence=sequence,
        prompt_tokens=prompt_tokens,
    )
    groups = asked_about(tuple(device or ()), software, fits)
    answers: list[Answer | Unanswered] = []
    answer: Answer | Unanswered
    for number, model in enumerate(models):
        try:
            answer = _asker(model)(model, groups, question, trace=trace, offline=offline, revision=revision)
        except RungError as error:
            if len(models) == 1:
                error.exit_code = 2  # 1 means that nothing runs, and that was not found out
                raise
            answer = Unanswered(model, error.cause, error.facts, error.ways_out)
        answers.append(answer)
        if json:
            _print_object(answer, alone=len(models) == 1)
            continue
        if number:
            print(flush=True)
        if isinstance(answer, Unanswered):
            note(f"{model}: {answer}")
        else:
            show(answer, fits)
    tell_taken(device or ())
    if len(device or ()) > len(groups):
        note("A device is named more than once and shown once; 2xNAME asks about two of a kind.")
    if html:
        write(html, page(answers))
    if code := _exit_code(answers):
        raise typer.Exit(code)


def _asker(model: str) -> Callable[..., Answer]:
    """What answers for it; what models need is not imported for a scene."""
    if check_scene.is_scene(model):
        return check_scene.check
    from rung.engine.checking import answer_for

    return answer_for


def _exit_code(answers: Sequence[Answer | Unanswered]) -> int:
    found = [answer.ok for answer in answers]
    return 2 if None in found else 0 if any(found) else 1


def _print_object(answer: Answer | Unanswered, alone: bool) -> None:
    """One document, or with several models one object a line."""
    if alone:
        print_json(answer.to_json())
    else:
        print(encoder.dumps(answer.to_json(), ensure_ascii=False), flush=True)


def show(answer: Answer, fits: bool = False) -> None:
    """The answer as a table, the best choice and its command last."""
    from rung.core.text import printable

    lines = [f"{answer.model} · {answer.about}"]
    for one in answer.passes:
        lines += _pass_lines(one)
    shown = _per_device(answer) if fits else answer.choices
    if check_scene.is_answer(answer):
        lines += check_scene.table(shown)
    else:
        lines += _table(shown)
    print(printable("\n".join([*lines, *_conclusion(answer, fits)])))


def _table(shown: Sequence[Choice]) -> list[str]:
    """One line a choice; no columns of speeds where nothing has one, as of training."""
    headings = ("format", "device", "memory", "free", "", "tokens/s", "prompt/s", "error", "")
    rows = [_row(choice) for choice in shown]
    kept = [at for at, name in enumerate(headings) if not name.endswith("/s") or any(row[at] for row in rows)]
    return columns([headings[at] for at in kept], [[row[at] for at in kept] for row in rows]) if rows else []


def _row(choice: Choice) -> tuple[str, ...]:
    from rung.core.text import size

    error = choice.to_json()["error_db"]
    return (
        choice.format,
        choice.device,
        size(choice.memory.total),
        size(choice.free),
        choice.level,
        _rate(choice.speed.decode_tokens_per_second),
        _rate(choice.speed.prefill_tokens_per_second),
        "none" if error is None else f"{error:.0f} dB",
        choice.verdict.reason,
    )


def _pass_lines(one: Pass) -> list[str]:
    """What a traced pass takes, and which operations take most of it."""
    from rung.core.text import size

    dear = ", ".join(f"{found['name']} {_operations(found['flops'])}" for found in one.operations[:3] if found["flops"])
    return [
        f"{one.component}: one pass is {one.calls:,} operations, {_operations(one.flops)}"
        + (f" ({dear})" if dear else ""),
        f"  {size(one.bytes)} read and written, at most {size(one.activations)} of activations at once",
    ]


def _operations(count: int) -> str:
    """``1.2 TFLOP``."""
    for unit, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}FLOP"
    return f"{count} FLOP"


def _per_device(answer: Answer) -> list[Choice]:
    """The best choice of every device that runs it, smallest memory first."""
    found = [answer.choices[index] for index in answer.best_by_device.values() if index is not None]
    return sorted(found, key=lambda choice: (choice.level == "slow", choice.free))


def _conclusion(answer: Answer, fits: bool) -> list[str]:
    from rung.core.text import size

    lines = []
    if fits:
        able = _per_device(answer)
        lines.append(f"{len(able)} of {len(answer.best_by_device)} cards of the catalogue run it.")
        if able:
            lines.append(f"→ the smallest: {able[0].device}, {able[0].format}, {size(able[0].memory.total)}")
        return lines if able else lines + _help(answer)
    for device, index in answer.best_by_device.items():
        if index is None:
            lines.append(f"→ {device}: nothing runs")
            continue
        best = answer.choices[index]
        lines.append(f"→ {device}: {best.format}" + (f"   {best.command}" if best.command else ""))
    way = next((choice.in_the_way for choice in answer.choices if choice.in_the_way), ())
    if way:
        held = ", ".join(f"{p['name']} ({p['pid']}) {size(p['bytes'])}" for p in way)
        lines.append(f"It would fit on the idle device; in the way now: {held}")
    return lines + _help(answer)


def _help(answer: Answer) -> list[str]:
    """The smallest changes with which something would run."""
    if not answer.relaxations:
        return []
    said = [help.change + (f"   {help.command}" if help.command else "") for help in answer.relaxations]
    return ["What would help", *(f"  {number}  {one}" for number, one in enumerate(said, 1))]


def _rate(rate: float | None) -> str:
    if rate is None:
        return ""
    return f"{rate:.1f}" if rate < 100 else f"{rate:,.0f}"
