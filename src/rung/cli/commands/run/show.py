"""``rung show NAME``: what a model is, and where its file lies."""

from __future__ import annotations

from typing import Annotated

import typer

from rung.cli import options


def show(
    name: Annotated[str, typer.Argument(help="A starter, a model of rung list, a GGUF file or a folder.")],
    json: options.Json = False,
) -> None:
    """Show what a model is: architecture, weights, formats, license, template, and where its file lies."""
    from rung.cli.views.models import about_lines
    from rung.cli.views.output import note, print_json
    from rung.core.errors import ModelNotFound
    from rung.core.text import quoted
    from rung.models.lookup import check_name, find_here, find_missing_starter
    from rung.models.store.listing import about_starter, open_about
    from rung.models.store.starters import card_of

    path = find_here(name, on_note=note)
    starter = find_missing_starter(name)
    if starter is not None:
        about = about_starter(starter, card_of(starter))
    elif path is None:
        check_name(name)
        raise ModelNotFound(f"{name} is not on this machine.", [], [f"rung pull {quoted(name)}", "rung list"])
    else:
        about = open_about(name, path)
    if json:
        print_json(about.to_json())
        return
    for line in about_lines(about):
        print(line)
