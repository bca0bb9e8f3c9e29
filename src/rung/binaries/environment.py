"""An installed package by name: its libraries, those of what it needs, and those of what is built upon it."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path

from rung.binaries.images import Library
from rung.binaries.places import file_in_folder

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def installed() -> Mapping[str, Distribution]:
    """The packages of this Python by their normal names."""
    return {normal(found.name): found for found in distributions() if found.name}


def normal(name: str) -> str:
    """A package's name as indexes compare it: ``nvidia_cublas-cu12`` is ``nvidia-cublas-cu12``."""
    return re.sub(r"[-_.]+", "-", name).lower()


def related(name: str, packages: Mapping[str, Distribution]) -> tuple[str, ...]:
    """The package, everything installed that it needs, and what needs it itself: its extensions. The package first."""
    found = [name]
    waiting = deque(found)
    while waiting:
        for needed in _needs(packages[waiting.popleft()]):
            if needed in packages and needed not in found:
                found.append(needed)
                waiting.append(needed)
    return (
        *found,
        *(other for other, other_package in packages.items() if other not in found and name in _needs(other_package)),
    )


def _needs(package: Distribution) -> list[str]:
    names = (_NAME.match(text) for text in package.requires or ())
    return [normal(found[0]) for found in names if found]


def libraries(names: tuple[str, ...], packages: Mapping[str, Distribution], remarks: list[str]) -> Iterator[Library]:
    """The libraries that these packages have installed, one at a time; the same file once."""
    visited: set[tuple[int, int]] = set()
    for name in names:
        unread: list[str] = []
        for file in packages[name].files or ():
            where = Path(str(packages[name].locate_file(file)))
            if found := file_in_folder(where, str(file), visited, unread):
                yield found
        if unread:
            remarks.append(f"{len(unread):,} files that {name} installed cannot be read: {unread[0]}")
