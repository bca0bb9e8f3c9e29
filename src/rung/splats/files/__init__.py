"""Files of trained scenes, by suffix. Everything they hold is hostile until it is checked."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

from rung.core.errors import BadFile, UsageError
from rung.splats.cloud import Cloud
from rung.splats.files import ply, splat

#: Modules with ``read(path)`` and ``encode(cloud)``, by suffix.
FORMATS = {".ply": ply, ".splat": splat}


def _format(path: Path) -> ModuleType:
    if path.suffix not in FORMATS:
        raise UsageError(
            f"{path.name} is no file of splats that rung knows by its name.",
            [f"suffixes: {', '.join(FORMATS)}"],
            [f"give it the name {path.stem}.ply"],
        )
    return FORMATS[path.suffix]


def read(path: str | os.PathLike[str]) -> Cloud:
    """The splats of a ``.ply`` or ``.splat`` file; raises ``UsageError`` for others, ``BadFile`` with what is wrong."""
    place = Path(path)
    try:
        cloud: Cloud = _format(place).read(place)
        return cloud
    except OSError as error:
        raise BadFile(f"{place} cannot be read: {error.strerror}.", [], ["check the name"]) from error


def write(path: str | os.PathLike[str], cloud: Cloud) -> None:
    """Writes a ``.ply`` or ``.splat`` file whole or not at all: under another name first.

    ``.splat`` keeps no harmonics. Raises ``UsageError`` for other suffixes, and ``OSError``.
    """
    place = Path(path)
    data = _format(place).encode(cloud)
    unfinished = place.with_name(place.name + ".part")
    try:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(place)
    finally:
        unfinished.unlink(missing_ok=True)
