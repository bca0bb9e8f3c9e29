"""``rung check MODEL...``: will it run, where, in which format, with how much memory, how fast; from headers alone."""

from __future__ import annotations

import functools
import json as encoder
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rung.cli import check_scene, options
from rung.cli.views.output import note, print_json
from rung.core.errors import RungError, UsageError

if TYPE_CHECKING:
    from rung.hardware.select import Group
    from rung.planning.check_result import Answer, Question, Unanswered

_Models = Annotated[
    list[str] | None,
    typer.Argument(
        help="Names like llama-3.1-8b, GGUF files, folders, pipelines, config.json files, hub names, demo, or scenes "
        "of photographs; none: which models run on a device.",
        show_default=False,
    ),
]
_Devices = Annotated[
    list[str] | None,
    typer.Option(
        "--device",
        help="Device to check: cpu, cuda:0, a card by name (p2200), 3090+3060 or 2x3090 as one budget; repeatable.",
        show_default=False,
    ),
]
_Formats = Annotated[
    list[str] | None,
    typer.Option(
        "--format", help="Check only this format, or mixture like q4_k_m; repeat it for more.", show_default=False
    ),
]
_Software = Annotated[
    str | None,
    typer.Option("--software", help="Build that a catalog card has: 'torch 1.10+cu102'.", show_default=False),
]
_Fits = Annotated[
    bool, typer.Option("--fits", help="Check every card of the catalog, and name the smallest that runs it.")
]
_Batch = Annotated[int, typer.Option("--batch", "--parallel", help="Number of sequences at once.")]
_Prompt = Annotated[
    int | None,
    typer.Option(
        "--prompt-tokens",
        help="Length of the prompt that speeds are predicted for, in tokens; 512.",
        show_default=False,
    ),
]
_Fleet = Annotated[
    str | None,
    typer.Option(
        "--fleet",
        metavar="FILE|live",
        help="Check the nodes of a file ([[nodes]] with device and count), or those of this machine's fleet, together.",
        show_default=False,
    ),
]
_Training = Annotated[
    str | None, typer.Option("--training", help="Check training instead of running: lora or full.", show_default=False)
]
_Optimizer = Annotated[
    str | None,
    typer.Option(
        "--optimizer",
        help="Optimizer of training: adamw, adamw8bit, lion, adafactor, momentum or sgd; adamw.",
        show_default=False,
    ),
]
_Rank = Annotated[int | None, typer.Option("--rank", help="Rank of the adapters; 16.", show_default=False)]
_Sequence = Annotated[
    int | None, typer.Option("--sequence", help="Length of a training sequence in tokens; 1024.", show_default=False)
]
_Trace = Annotated[
    bool,
    typer.Option(
        "--trace",
        help="Build the modules without weights (torch, transformers or diffusers) and count a forward pass: "
        "for models that rung has no description of, and the activations of any.",
    ),
]
_Details = Annotated[
    bool,
    typer.Option(
        "--details", help="Say of every choice what its memory is made of, how sure its speed is, and the command."
    ),
]
_Context = Annotated[
    int | None, typer.Option("--context", help="Tokens that prompt and answer may have together.", show_default=False)
]


def check(
    models: _Models = None,
    device: _Devices = None,
    format: _Formats = None,
    software: _Software = None,
    memory: options.Memory = None,
    context: _Context = None,
    batch: _Batch = 1,
    cache_type: options.CacheType = None,
    prompt_tokens: _Prompt = None,
    fits: _Fits = False,
    fleet: _Fleet = None,
    training: _Training = None,
    optimizer: _Optimizer = None,
    rank: _Rank = None,
    sequence: _Sequence = None,
    trace: _Trace = False,
    details: _Details = False,
    html: options.Html = None,
    offline: options.Offline = False,
    revision: options.Revision = None,
    json: options.Json = False,
) -> None:
    """Say whether models will run, where, in which format, with how much memory and how fast, without their weights.

    Without a model: which of the known ones run on a device, best first.
    Exit code 0: something would run; 1: nothing would; 2: the question is wrong, or that of one of the models.
    """
    from rung.cli import check_models
    from rung.cli.common import tell_beyond, tell_taken
    from rung.hardware.select import select_groups
    from rung.planning.check_result import Question
    from rung.planning.request import parse_memory

    _refuse_options(fits=fits, device=device, json=json, details=details)
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
        cache_type=cache_type,
    )
    if fleet is not None:
        from rung.cli.views.check import fleet as check_fleet

        raise typer.Exit(check_fleet.answer(models, fleet, device, question, json))
    one = {"--fits": fits, "--training": training, "--trace": trace, "--details": details, "--html": html}
    if not models:
        check_models.refuse_options(one)
    groups = select_groups(tuple(device or ()), software, fits)
    tell_taken(device or ())
    tell_beyond(question.memory, groups)
    if not models:
        raise typer.Exit(check_models.answer(groups, question, json))
    if len(device or ()) > len(groups):
        note("A device is named more than once and shown once; 2xNAME asks about two of a kind.")
    asking = functools.partial(_ask, groups=groups, question=question, trace=trace, offline=offline, revision=revision)
    answers: Iterable[Answer | Unanswered] = (asking(model, alone=len(models) == 1) for model in models)
    if html:
        answers = _with_page(html, list(answers))
    shown = [_print(answer, models, number, json, fits, details) for number, answer in enumerate(answers)]
    if code := _exit_code(shown):
        raise typer.Exit(code)


def _refuse_options(*, fits: bool, device: Sequence[str] | None, json: bool, details: bool) -> None:
    """Raise ``UsageError`` for options that contradict each other."""
    if fits and device:
        raise UsageError(
            "--fits asks the whole catalog; --device names devices: one or the other.",
            code="options-exclude-each-other",
        )
    if json and details:
        raise UsageError(
            "--details changes nothing with --json, which has everything.",
            (),
            ["leave --details out"],
            code="option-without-effect",
        )


def _ask(
    model: str, *, alone: bool, groups: Sequence[Group], question: Question, **opening: Any
) -> Answer | Unanswered:
    """Return the answer for one model, or, for one of several, why there is none."""
    from rung.planning.check_result import Unanswered

    try:
        return _asker(model)(model, groups, question, **opening)
    except RungError as error:
        if alone:
            error.exit_code = 2  # 1 means that nothing runs, and that was not found out
            raise
        return Unanswered(model, error.cause, error.facts, error.ways_out, code=error.code)


def _with_page(path: Path, answers: list[Answer | Unanswered]) -> list[Answer | Unanswered]:
    """Write the page; return the answers. Before they are printed, since a reader may close the pipe early."""
    from rung.cli.views import page
    from rung.cli.views.check import as_html

    page.write(path, as_html.page(answers))
    return answers


def _print(
    answer: Answer | Unanswered, models: Sequence[str], number: int, json: bool, fits: bool, details: bool
) -> Answer | Unanswered:
    """Print one answer of several; return it."""
    from rung.cli.views.check.as_text import show
    from rung.planning.check_result import Unanswered

    if json:
        _print_object(answer, alone=len(models) == 1)
        return answer
    if number:
        print(flush=True)
    if isinstance(answer, Unanswered):
        note(f"{models[number]}: {answer}")
    else:
        show(answer, fits, details)
    return answer


def _asker(model: str) -> Callable[..., Answer]:
    """Return the function that answers; a scene does not import the modules that models need."""
    if check_scene.is_scene(model):
        return check_scene.check
    from rung.engine.checking import answer_for

    return functools.partial(answer_for, on_note=note)


def _exit_code(answers: Sequence[Answer | Unanswered]) -> int:
    found = [answer.ok for answer in answers]
    return 2 if None in found else 0 if any(found) else 1


def _print_object(answer: Answer | Unanswered, alone: bool) -> None:
    """One document, or with several models one object a line."""
    if alone:
        print_json(answer.to_json())
    else:
        print(encoder.dumps(answer.to_json(), ensure_ascii=False), flush=True)
