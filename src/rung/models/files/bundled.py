"""Where the GGUF model lies in a file: the whole file, or a part of a bundle that ``rung bundle`` wrote.

A bundle is a program with its model: a few lines of text, the model from byte ``ALIGNMENT`` on, and what the program
consists of. One of the lines says where the model is, so that it is mapped from the bundle itself.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rung.core.errors import BadFile
from rung.core.files import state_of

#: Parts of a bundle begin at multiples of this: pages have 64 kB at most where models are mapped.
ALIGNMENT = 2**16
#: Bytes at the beginning of a bundle in which the line must stand.
_HEAD = 4096
_LINE = re.compile(rb"^# rung bundle: GGUF model at (\d{1,15}), (\d{1,15}) bytes, sha256 ([0-9a-f]{64})$", re.MULTILINE)


@dataclass(frozen=True)
class Extent:
    """Bytes [begin, end) of a file; ``sha256`` is their hash in hex where the file says it."""

    begin: int
    end: int
    sha256: str = ""


def model_line(size: int, sha256: str) -> str:
    """Return the line that says where a model of ``size`` bytes lies in a bundle."""
    return f"# rung bundle: GGUF model at {ALIGNMENT}, {size} bytes, sha256 {sha256}"


def find_model(path: Path) -> Extent | None:
    """Return where the GGUF model in a file lies, or None for a file that is neither GGUF nor a bundle.

    Raises ``BadFile`` for a bundle that is cut off, ``OSError`` for a file that cannot be read.
    """
    with open(path, "rb") as file:
        head, length = file.read(_HEAD), os.fstat(file.fileno()).st_size
    if head.startswith(b"GGUF"):
        return Extent(0, length)
    line = _LINE.search(head) if head.startswith(b"#!") else None
    if line is None:
        return None
    begin = int(line[1])
    extent = Extent(begin, begin + int(line[2]), line[3].decode())
    if extent.end > length:
        raise BadFile(
            f"{path.name} is a bundle that was cut off.",
            [f"its model ends at byte {extent.end:,}, the file at {length:,}"],
            ["copy or fetch the file again"],
            code="file-truncated",
        )
    return extent


def is_gguf(path: Path) -> bool:
    """Return whether a file has a GGUF model. Raises ``BadFile`` where it cannot be read or is a bundle cut off."""
    try:
        return find_model(path) is not None
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror or error}", code="file-unreadable") from error


def identity(paths: Sequence[Path]) -> str:
    """Return a name of a model's files that changes when they do: of a bundle, which is copied from machine to machine,
    the hash of its model; else what ``state_of`` says. Raises ``OSError``."""
    extent = find_model(paths[0]) if len(paths) == 1 else None
    return extent.sha256 if extent is not None and extent.sha256 else state_of(paths)
