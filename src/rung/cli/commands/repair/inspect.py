"""``rung inspect PATH``: which GPU code a file holds, and what of it runs on a device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rung.cli import options
from rung.cli.views.output import console, print_json
from rung.core.errors import RungError, UsageError
from rung.core.text import count, did_you_mean

if TYPE_CHECKING:
    from rung.binaries.answer import Answer
    from rung.binaries.images import Library

_What = Annotated[
    str,
    typer.Argument(
        metavar="PATH|PACKAGE",
        help="A library, kernel file, wheel, llamafile or folder, or the name of an installed package: torch.",
    ),
]
_Device = Annotated[
    str | None,
    typer.Option(
        "--device", help="Say what runs there: cuda:0, cpu, or a card of the catalog (p2200).", show_default=False
    ),
]
_All = Annotated[bool, typer.Option("--all", help="Also list libraries without device code.")]


def inspect(what: _What, device: _Device = None, all_: _All = False, json: options.Json = False) -> None:
    """Say which GPU code and CPU instructions a library, wheel, folder or installed package holds.

    Exit code 0: read; 1: with --device, nothing of some library runs there; 2: the question is wrong, or it cannot be
    read.
    """
    from rung.binaries.answer import Answer
    from rung.hardware.select import select_device

    try:
        judged = select_device(device) if device else None
        name, libraries, remarks = _read(what)
    except RungError as error:
        error.exit_code = 2  # 1 means that something does not run, and that was not found out
        raise
    answer = Answer(name, libraries, remarks, judged)
    if json:
        print_json(answer.to_json())
    else:
        _show(answer, all_)
    if not answer.ok:
        raise typer.Exit(1)


def _read(what: str) -> tuple[str, tuple[Library, ...], tuple[str, ...]]:
    """Return the name to show of a package, file or folder, its libraries, and what is wrong with the whole."""
    if not what.strip():
        raise UsageError(
            "The name of what is to be read is empty.", ways_out=["rung inspect .   # this folder"], code="input-empty"
        )
    remarks: list[str] = []
    path = Path(what)
    if "\0" not in what and path.exists():
        from rung.binaries import places

        return path.name or path.resolve().name, tuple(places.libraries(path, remarks)), tuple(remarks)
    from rung.binaries import places  # reading about packages costs 30 ms to import

    packages = places.installed()
    name = places.normal(what)
    if name not in packages:
        near = did_you_mean(name, packages) if path.name == what else ""  # no package is called a/path
        raise UsageError(
            f"{what} is neither a file nor a package that is installed here.{near}",
            ["packages are those of the Python that rung runs in; another environment can be named by its folder"],
            ["rung inspect /path/to/venv", "rung inspect FILE.whl"],
            code="path-unknown",
        )
    names = places.related(name, packages)
    found = tuple(places.installed_libraries(names, packages, remarks))
    others = f" with {count(len(names) - 1, 'package')} around it" if len(names) > 1 else ""
    return f"{name} {packages[name].version}{others}", found, tuple(remarks)


def _show(answer: Answer, everything: bool) -> None:
    from rung.cli.views import inspect as views

    out = console()
    for line in views.heading(answer):
        out.print(line)
    shown = [index for index, library in enumerate(answer.libraries) if everything or views.matters(answer, index)]
    if len(answer.libraries) == 1:
        for line in views.in_full(answer, 0):
            out.print(line)
    elif shown:
        out.print(views.listing(answer, shown))
    for line in views.conclusion(answer):
        out.print(line)
