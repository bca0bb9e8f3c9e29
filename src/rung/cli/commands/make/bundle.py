"""``rung bundle MODEL OUT.pyz``: one file with a model and the program that serves it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rung.cli import options
from rung.core.errors import UsageError
from rung.core.text import quoted, size

if TYPE_CHECKING:
    from rung.bundle.write import Written


def bundle(
    model: Annotated[str, typer.Argument(help="A GGUF file, demo, a starter, or a hub name: ORG/REPO:Q4_K_M.")],
    target: Annotated[Path, typer.Argument(metavar="OUT", help="The file to write: smollm2.pyz.")],
    context: options.Context = None,
    system: Annotated[
        str | None,
        typer.Option(
            "--system", help="System prompt that it starts with; what it computes travels too.", show_default=False
        ),
    ] = None,
    no_warm_up: Annotated[
        bool, typer.Option("--no-warm-up", help="Do not run the model here: kernels are compiled where it starts.")
    ] = False,
    with_python: Annotated[
        bool, typer.Option("--with-python", help="Put this Python in too: it runs where there is none. Linux only.")
    ] = False,
    any_python: Annotated[
        bool,
        typer.Option("--any-python", help="It runs with each Python from 3.11 to 3.14: pip fetches their packages."),
    ] = False,
    accept_terms: Annotated[
        bool, typer.Option("--accept-terms", help="Accept the terms of the model; its notice goes into the bundle.")
    ] = False,
    offline: options.Offline = False,
    revision: options.Revision = None,
    json: options.Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing but errors.")] = False,
    yes: options.Yes = False,
) -> None:
    """Put a model, rung and the chat page into one file that Python runs.

    python OUT serves the model and opens its page; python OUT run chats. Nothing else is installed there.
    """
    from rung.bundle.model import bundled_model
    from rung.bundle.write import Options, check_system, check_terms, write_bundle
    from rung.cli import fetching
    from rung.cli.views.output import bar, note, print_json
    from rung.conversion.resumable_writer import check_new
    from rung.models.lookup import find_card

    if any_python and offline:
        raise UsageError(
            "--any-python has pip fetch packages, and --offline forbids it.",
            [],
            ["the same command without --offline", "the same command without --any-python"],
            code="options-exclude-each-other",
        )

    def show(text: str) -> None:
        if not (quiet or json):
            note(text)

    check_new(target)
    name, _ = fetching.model_to_run(model, yes, offline, quiet or json)
    with bar(quiet or json) as progress:
        card = find_card(
            name,
            offline=offline,
            revision=revision,
            progress=progress.update,
            on_note=show,
        )
        chosen = bundled_model(card, model)
        check_terms(chosen, accept_terms)
        check_system(card, system)
        chosen_options = Options(context, system, with_python, any_python, not no_warm_up)
        written = write_bundle(chosen, target, chosen_options, progress.update, show)
    if json:
        print_json(as_json(written))
    elif not quiet:
        typer.echo(words(written))


def words(written: Written) -> str:
    """Return two lines: the bundle and its size, and how it is started."""
    own = size(written.bytes - written.model_bytes)
    path = str(written.path)
    command_path = path if "/" in path else f"./{path}"
    command = quoted(command_path) if written.with_python else f"python {quoted(path)}"
    return f"{path}: {size(written.bytes)}, {own} of them the program\n{command}"


def as_json(written: Written) -> dict[str, Any]:
    """Return the document of ``--json``."""
    return {
        "path": str(written.path),
        "bytes": written.bytes,
        "model_bytes": written.model_bytes,
        "unpacked_bytes": written.unpacked_bytes,
    }
