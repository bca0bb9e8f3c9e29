"""Blobs of the store, the files of a model: written whole or not at all, whatever they are fetched from."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from rung.core.errors import DiskFull
from rung.core.files import FULL
from rung.models.store import folder

#: Called with a label, the bytes that are here and the bytes in all.
Progress = Callable[[str, int, int], None]


def disk_full(fact: str) -> DiskFull:
    """Return the error for a disk that cannot hold a model."""
    ways = ["rung list   # what takes room there; rung rm NAME removes one", "RUNG_MODELS=/a/larger/disk"]
    return DiskFull(f"No room for it in {folder.root()}.", [fact, "nothing that is there was changed"], ways)


@contextlib.contextmanager
def writing_store() -> Iterator[None]:
    """Raise ``DiskFull`` and ``RungError`` for what the system says against writing the store in the block."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise disk_full(error.strerror or str(error)) from error
        raise folder.cannot_write(error) from error


def keep_blob(source: Path, blob: str) -> None:
    """Give a folder of finished files its name among the blobs, in one step; what lies there already is replaced."""
    target = folder.root() / "blobs" / blob
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():  # a model whose files someone removed or changed
        shutil.rmtree(target)
    try:
        os.replace(source, target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
