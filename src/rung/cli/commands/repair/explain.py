"""``rung explain``: what an error message is about, how sure that is, why, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rung.cli import options
from rung.cli.input.log import (
    NO_LOG,
    WAYS,
    Answer,
    Noted,
    Row,
    answer_in_json,
    answer_rows,
    environment_in,
    log_of,
)
from rung.cli.views.output import console, print_json
from rung.core.errors import UsageError

if TYPE_CHECKING:
    from rung.core.types import Device
    from rung.diagnosis.explain import Explanation
    from rung.models.networks.values import Outline

_UNKNOWN = 3

_What = Annotated[
    str | None,
    typer.Argument(
        metavar="[LOG|-|CAUSE|'THE LINE']",
        help="A log file, - for stdin, a cause's label, or the line itself.",
        show_default=False,
    ),
]
_Device = Annotated[
    str | None, typer.Option("--device", help="Card that it happened on, by name: p2200.", show_default=False)
]
_Model = Annotated[
    str | None,
    typer.Option(
        "--model", help="Model that it happened with, where the log does not name it: gemma-2b.", show_default=False
    ),
]
_Environment = Annotated[
    Path | None,
    typer.Option(
        "--environment", help="Take the machine from a JSON file: gpu, driver, cuda, torch, os ...", show_default=False
    ),
]
_NoEnvironment = Annotated[
    bool, typer.Option("--no-environment", help="Do not take this machine for the one it happened on.")
]
_Rows = Annotated[
    Path | None,
    typer.Option(
        "--jsonl", help='Many logs: a row {"id", "log", "environment"} a line; - is stdin.', show_default=False
    ),
]
_Fleet = Annotated[bool, typer.Option("--fleet", help="Have the nodes of this machine's fleet answer the rows.")]
_List = Annotated[bool, typer.Option("--list", help="List all causes.")]
_All = Annotated[bool, typer.Option("--all", help="Show every fix, all evidence, and how sure it is in percent.")]
_Redact = Annotated[bool, typer.Option("--redact", help="Print the log without names, tokens and addresses instead.")]


def explain(
    what: _What = None,
    device: _Device = None,
    software: options.Software = None,
    model: _Model = None,
    environment: _Environment = None,
    no_environment: _NoEnvironment = False,
    jsonl: _Rows = None,
    fleet: _Fleet = False,
    list_: _List = False,
    redact: _Redact = False,
    all_: _All = False,
    html: options.Html = None,
    json: options.Json = False,
) -> None:
    """Explain an error message: its cause on this device, how sure that is, and what to do first.

    Exits 0 with a cause, 3 when it does not know, 2 for a wrong question.
    """
    facts = {
        "--all": all_,
        "--html": html,
        "--device": device,
        "--software": software,
        "--model": model,
        "--environment": environment,
        "--no-environment": no_environment,
    }
    if fleet and jsonl is None:
        raise _fleet_of_rows()
    if list_:
        _alone("--list", facts | {"--jsonl": jsonl, "--redact": redact, "a log": what})
        _list(json)
        return
    if jsonl is not None:
        _alone("--jsonl", facts | {"--no-environment": False, "--redact": redact, "a log": what})
        with _over_fleet() if fleet else nullcontext() as answered:
            answer_rows(jsonl, answered)
        return
    if redact:
        _alone("--redact", facts | {"--json": json})
        _redacted(log_of(what))
        return
    if what is not None and _is_cause(what):
        _alone("The page of a cause", facts | {"--no-environment": False})
        _page(what, json)
        return
    where, card = _machine_and_card(device, software, environment, no_environment)
    found, empty = _explained(log_of(what), where, card, model)
    if html is not None:
        from rung.cli.views import page
        from rung.cli.views.explain import explanation_page

        page.write(html, explanation_page(found, [] if card is None else [card]))
    _print(found, empty, everything=all_, json=json)
    if found.cause is None:
        raise typer.Exit(_UNKNOWN)


def _explained(
    log: Iterator[bytes], where: Mapping[str, Any], card: Device | None, model: str | None
) -> tuple[Explanation, bool]:
    """The explanation of a log, and whether there was nothing in it."""
    from rung.diagnosis.explain import explain_log

    noted, outline = Noted(log), _outline(model, card)
    return explain_log(noted, where, device=card, outline=outline), noted.empty


def _print(found: Explanation, empty: bool, *, everything: bool, json: bool) -> None:
    from rung.cli.views.explain import show

    if json:
        print_json(found.to_json())
    elif empty:
        print("\n".join([NO_LOG, "What to do", *(f"  {number}  {way}" for number, way in enumerate(WAYS, 1))]))
    else:
        show(found, console(), everything=everything)


def _alone(name: str, others: Mapping[str, object]) -> None:
    """Raises ``UsageError`` for what would have no effect beside an option."""
    if conflicting := [other for other, value in others.items() if value]:
        raise UsageError(
            f"{name} takes no notice of {' and '.join(conflicting)}: leave it out.", code="option-without-effect"
        )


def _fleet_of_rows() -> UsageError:
    return UsageError(
        "A fleet explains rows: one log is explained here.",
        (),
        ["rung explain --jsonl FILE --fleet", "leave out --fleet"],
        code="option-without-effect",
    )


@contextmanager
def _over_fleet() -> Iterator[Callable[[Iterator[Row]], Iterator[Answer]]]:
    """Connect to the fleet of this machine for answers of rows; say how many each node gave. Raises ``RungError``."""
    import json

    from rung.cli.views.output import note
    from rung.fleet import ray_node

    ray_node.require()
    with ray_node.connected():
        from rung.fleet.work.pieces import Rows

        nodes = Rows(answer_in_json, note)
        try:
            yield lambda rows: map(json.loads, nodes(rows))
        finally:  # also where some rows had no answer but an error
            note("rows by node: " + ", ".join(f"{name} {count:,}" for name, count in sorted(nodes.counts.items())))


def _machine_and_card(
    device: str | None, software: str | None, file: Path | None, none: bool
) -> tuple[Mapping[str, Any], Device | None]:
    """Return the facts of the machine where it happened, this one unless another is named, and its device to plan
    for."""
    if software is not None and device is None:
        raise UsageError("--software is of a card of the catalog: name it with --device.", code="option-without-effect")
    if sum((device is not None, file is not None, none)) > 1:
        raise UsageError(
            "--device, --environment and --no-environment exclude each other.", code="options-exclude-each-other"
        )
    if none:
        return {}, None
    from rung.diagnosis import machine

    if file is not None:
        found = environment_in(file)
        return found, machine.card_named(str(found.get("gpu") or ""))
    if device is None:
        return machine.this_machine(), machine.best_device()
    return _card(device, software), machine.card_named(device, software)


def _outline(model: str | None, card: Device | None) -> Outline | None:
    """The outline of the model that ``--model`` names; no hub is asked."""
    if model is None:
        return None
    if card is None:
        raise UsageError(
            "--model is checked against a card: name it with --device.",
            (),
            ["rung explain FILE --device p2200"],
            code="option-without-effect",
        )
    from rung.cli.views.output import note
    from rung.models.lookup import find_outline

    return find_outline(model, offline=True, on_note=note)


def _card(name: str, software: str | None) -> Mapping[str, Any]:
    """Return the facts of a card by a name of the catalog or as people write it: ``8x H100 80GB``, ``RTX 20xx``. An
    unknown name is noted, and is no error."""
    from rung.cli.views.output import note
    from rung.core.errors import UnknownDevice
    from rung.diagnosis import machine
    from rung.diagnosis.gpus import gpu_of

    if name.lower() == "cpu":
        return {"gpu": "none"}
    try:
        return machine.catalog_card(name, software)
    except UnknownDevice as error:
        if software is not None or not name.strip():
            raise
        if gpu_of(name) is None:
            note(f"{error.cause} Nothing is taken for known of it.")
        return {"gpu": name}


def _redacted(chunks: Iterator[bytes]) -> None:
    from rung.diagnosis.logs.log import lines, plain
    from rung.diagnosis.logs.redact import redacted

    for line in redacted(plain(line) for _, line in lines(chunks)):
        print(line)


def _list(json: bool) -> None:
    from rung.cli.views.output import table
    from rung.diagnosis.fixes.fixing import causes

    if json:
        print_json([cause.to_json() for cause in causes().values()])
        return
    rows = table("cause", "what is the matter")
    for cause in causes().values():
        rows.add_row(cause.label, cause.sentence)
    console().print(rows)


def _is_cause(what: str) -> bool:
    from rung.diagnosis.fixes.fixing import causes

    return what in causes() and not Path(what).exists()


def _page(what: str, json: bool) -> None:
    """The page of a cause."""
    from rung.diagnosis.fixes.fixing import causes
    from rung.diagnosis.pages import page

    cause = causes()[what]
    if json:
        print_json(cause.to_json())
    else:
        print(page(cause), end="")
