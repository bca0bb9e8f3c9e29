"""``rung cache clear``: what prompts left in the folders of ``--prefix-cache``, taken away."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


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
