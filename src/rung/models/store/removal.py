"""Removing a pulled model by name."""

from __future__ import annotations

from rung.core import locks
from rung.core.errors import ModelNotFound, UsageError
from rung.core.text import close, quoted
from rung.models.store import elsewhere, folder
from rung.models.store.folder import Manifest


def remove(name: str) -> tuple[Manifest, bool]:
    """Remove a model that rung pulled; return its manifest, and whether its files went too.

    Raises ``ModelNotFound``, ``UsageError`` for a model of another program and one that is being fetched, and what
    ``folder.remove`` raises.
    """
    found = folder.find(name)
    if found is None:
        raise _unknown(name)
    release = locks.try_lock(folder.name_lock(found.name))
    if release is None:
        raise UsageError(
            f"Another process fetches {found.name} at this moment.", [], [f"rung rm {found.name}"], code="in-use"
        )
    try:
        return found, folder.remove(found)
    finally:
        release()


def _unknown(name: str) -> UsageError | ModelNotFound:
    other = elsewhere.find(name)
    if other is not None:
        ways = {"ollama": f"ollama rm {quoted(other.name)}", "hub cache": "hf cache ls   # then: hf cache rm"}
        way = ways.get(other.program, f"remove it in {other.program}")
        return UsageError(f"{other.name} belongs to {other.program}; rung removes only what it pulled.", [], [way])
    names = [one.name for one in folder.manifests()[0]]
    near = close(name, names)
    return ModelNotFound(
        f"There is no pulled model {name!r}.",
        [f"pulled: {', '.join(names)}" if names else "none is pulled"],
        [f"rung rm {one}" for one in near] or ["rung list"],
    )
