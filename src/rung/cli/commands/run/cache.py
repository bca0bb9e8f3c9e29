"""List and clear the folders in which keys and values of earlier prompts are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def list_folders() -> None:
    """List the folders of --prefix-cache that were used on this machine."""
    from rung.core.text import count, size
    from rung.engine.scheduling.prefix_files import known_folders, list_files

    folders = known_folders()
    for folder in folders:
        sizes = [each.path.stat().st_size for each in list_files(folder)]
        typer.echo(f"{folder}: {count(len(sizes), 'file')}, {size(sum(sizes))}")
    if not folders:
        typer.echo("There is none: rung run smollm2 --prefix-cache ~/.cache/rung-prefixes makes one.")


def clear(
    folder: Annotated[
        Path | None,
        typer.Argument(metavar="DIR", help="A folder; by default all that were used here.", show_default=False),
    ] = None,
) -> None:
    """Take away what earlier prompts left in the folders of --prefix-cache, and nothing else that lies there."""
    from rung.core.errors import UsageError
    from rung.core.text import count, size
    from rung.engine.scheduling.prefix_files import clear_folder, known_folders

    if folder is not None and not folder.is_dir():
        raise UsageError(f"{folder} is no folder.", [], ["rung cache list"], code="file-unreadable")
    files = freed = 0
    for each in known_folders() if folder is None else [folder]:
        found = clear_folder(each)
        files, freed = files + found[0], freed + found[1]
    typer.echo(f"{count(files, 'file')} removed, {size(freed)} are free.")


#: The commands of the group by name, in the order of its help.
COMMANDS = {"list": list_folders, "clear": clear}
