"""``rung rm NAME``: a pulled model removed."""

from __future__ import annotations

from typing import Annotated

import typer


def rm(
    name: Annotated[str, typer.Argument(help="A model that rung pulled, as rung list names it.")],
) -> None:
    """Remove a pulled model. What other programs hold stays theirs, and a model in use stays."""
    from rung.core import locks
    from rung.core.errors import ModelNotFound, UsageError
    from rung.core.text import close, quoted, size
    from rung.models.store import elsewhere, folder

    found = folder.find(name)
    if found is None:
        other = elsewhere.find(name)
        if other is not None:
            ways = {
                "ollama": f"ollama rm {quoted(other.name)}",
                "hub cache": "hf cache ls   # then: hf cache rm",
            }
            way = ways.get(other.program, f"remove it in {other.program}")
            raise UsageError(f"{other.name} belongs to {other.program}; rung removes only what it pulled.", [], [way])
        names = [one.name for one in folder.manifests()[0]]
        near = close(name, names)
        raise ModelNotFound(
            f"There is no pulled model {name!r}.",
            [f"pulled: {', '.join(names)}" if names else "none is pulled"],
            [f"rung rm {one}" for one in near] or ["rung list"],
        )
    release = locks.try_lock(folder.name_lock(found.name))
    if release is None:
        raise UsageError(
            f"Another process fetches {found.name} at this moment.", [], [f"rung rm {found.name}"], code="in-use"
        )
    try:
        freed = folder.remove(found)
    finally:
        release()
    typer.echo(
        f"{found.name} is removed{f', {size(found.size)} are free' if freed else '; another name has its files'}."
    )
