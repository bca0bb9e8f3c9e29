"""``rung rm NAME``: a pulled model removed."""

from __future__ import annotations

from typing import Annotated

import typer


def rm(
    name: Annotated[str, typer.Argument(help="A model that rung pulled, as rung list names it.")],
) -> None:
    """Remove a pulled model. What other programs hold stays theirs, and a model in use stays."""
    from rung.core.text import size
    from rung.models.store.pull import remove

    found, freed = remove(name)
    typer.echo(
        f"{found.name} is removed{f', {size(found.size)} are free' if freed else '; another name has its files'}."
    )
