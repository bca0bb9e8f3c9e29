"""The folders that prefixes are kept in: how they are named, checked, remembered and cleared."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from rung.core.errors import UsageError
from rung.core.settings import CACHE
from rung.core.text import parse_size
from rung.engine.scheduling.prefix_files import list_files

#: Bytes of a folder whose size is not named.
_USUAL_BYTES = 4 << 30
#: The file in ``RUNG_CACHE`` that names the folders that were used.
_LIST = "prefix-caches"


def open_folder(text: str, option: str = "--prefix-cache") -> tuple[Path, int]:
    """Return the folder of ``DIR`` or ``DIR:SIZE``, which is made if need be, and the most bytes for it.

    Raises ``UsageError`` for a size that is none and for a folder that cannot be written.
    """
    name, _, size = text.rpartition(":")
    folder, most = Path(text), _USUAL_BYTES
    if name and size[:1].isdecimal():
        try:
            folder, most = Path(name), parse_size(size)
        except ValueError as error:
            raise UsageError(
                f"{option} {text}: {error}.", ["it is DIR or DIR:SIZE"], [f"{option} {name}:4GB"]
            ) from error
    folder = folder.expanduser().absolute()
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        writable = os.access(folder, os.R_OK | os.W_OK | os.X_OK)
        reason = "" if writable else "permission denied"
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise UsageError(
            f"{folder} cannot hold the files of {option}: {reason}.",
            [],
            [f"{option} ./{option.strip('-')}"],
            code="output-unwritable",
        )
    if option == "--prefix-cache":
        _remember(folder)
    return folder, most


def _remember(folder: Path) -> None:
    """Add a folder to the list; where the list cannot be written ``rung cache clear DIR`` is left."""
    names = [str(each) for each in known_folders()]
    with contextlib.suppress(OSError):
        if str(folder) not in names:
            CACHE.read().mkdir(parents=True, exist_ok=True)
            (CACHE.read() / _LIST).write_text("\n".join([*names, str(folder)]) + "\n")


def known_folders() -> list[Path]:
    """Return the folders that were used on this machine and are there still."""
    try:
        lines = (CACHE.read() / _LIST).read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    return [path for path in map(Path, lines) if path.is_dir()]


def clear_folder(folder: Path) -> tuple[int, int]:
    """Take the files of prefixes away; return how many there were, and their bytes."""
    files = size = 0
    for each in list_files(folder):
        with contextlib.suppress(OSError):  # another process took it away
            taken = each.path.stat().st_size
            each.path.unlink()
            files, size = files + 1, size + taken
    return files, size
