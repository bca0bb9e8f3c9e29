"""``rung cache list``: the folders of ``--prefix-cache`` that were used here, and what they have."""

from __future__ import annotations

import typer


def list() -> None:
    """List the folders of --prefix-cache that were used on this machine."""
    from rung.core.text import count, size
    from rung.engine.scheduling.prefix_files import known_folders, list_files

    folders = known_folders()
    for folder in folders:
        sizes = [each.path.stat().st_size for each in list_files(folder)]
        typer.echo(f"{folder}: {count(len(sizes), 'file')}, {size(sum(sizes))}")
    if not folders:
        typer.echo("There is none: rung run smollm2 --prefix-cache ~/.cache/rung-prefixes makes one.")
