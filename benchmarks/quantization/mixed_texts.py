"""Find texts that every machine has: the standard library, its help pages, and the licences of what is installed.

Each file belongs to one part by the hash of its name, so that no part holds what another one does.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import pydoc_data.topics
import sysconfig
from collections.abc import Iterator
from pathlib import Path

#: The parts, with the tenths of all files that each has.
PARTS = {"train": range(6), "calibration": range(6, 8), "held-out": range(8, 10)}
_LARGEST = 60_000


def texts(part: str, kind: str) -> list[str]:
    """Return the texts of a part; ``kind`` is ``code``, ``prose`` or ``licences``."""
    found = {"code": _code, "prose": _prose, "licences": _licences}[kind]()
    return [text[:_LARGEST] for name, text in found if _tenth(name) in PARTS[part]]


def mixed(part: str, characters: int) -> str:
    """Return about so many characters of a part, a third of each kind, in pieces that take turns."""
    pieces = {kind: "\n\n".join(texts(part, kind)) for kind in ("prose", "code", "licences")}
    length = 2000
    turns = []
    for first in range(0, characters // 3, length):
        turns += [text[first : first + length] for text in pieces.values()]
    return "\n".join(turns)[:characters]


def _tenth(name: str) -> int:
    return hashlib.sha256(name.encode()).digest()[0] % 10


def _code() -> Iterator[tuple[str, str]]:
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")):
        yield path.name, path.read_text(encoding="utf-8", errors="ignore")


def _prose() -> Iterator[tuple[str, str]]:
    yield from sorted(pydoc_data.topics.topics.items())


def _licences() -> Iterator[tuple[str, str]]:
    """The licences of what is installed; each text once."""
    found = set()
    for each in sorted(importlib.metadata.distributions(), key=lambda one: str(one.metadata["Name"])):
        for file in each.files or ():
            if "LICENSE" not in file.name.upper() and "COPYING" not in file.name.upper():
                continue
            path = Path(str(file.locate()))
            if path.is_file() and (text := path.read_text(encoding="utf-8", errors="ignore")) not in found:
                found.add(text)
                yield hashlib.sha256(text.encode()).hexdigest(), text
