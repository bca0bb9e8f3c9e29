"""Plug-ins: what other distributions add to registries through entry points, found when a registry is asked."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")

#: The groups of entry points, and the registry that each adds to.
GROUPS = {"rung.formats": "format", "rung.architectures": "architecture", "rung.rungs": "rung"}

#: (group, entry point, distribution) of the plug-ins that were left out and named.
_LEFT_OUT: set[tuple[str, str, str]] = set()


@dataclass(frozen=True)
class Plugin:
    """An entry point: ``name`` in ``group``, and the distribution with its version."""

    group: str
    name: str
    distribution: str

    def leave_out(self, reason: str) -> None:
        """Name the plug-in and the reason on stderr, once."""
        key = (self.group, self.name, self.distribution)
        if key not in _LEFT_OUT:
            _LEFT_OUT.add(key)
            print(f"rung leaves out {self.name} ({self.group}) of {self.distribution}: {reason}.", file=sys.stderr)


class Refused(Exception):
    """Says why a plug-in is left out."""


def _declares_plugins() -> bool:
    """Return whether a distribution on the path names a group of rung.

    Reading the files takes 1 to 2 ms for 100 distributions; importlib.metadata takes over 100 ms until it has read
    them (benchmarks/plugins.py).
    """
    for folder in dict.fromkeys(sys.path):
        try:
            with os.scandir(folder or ".") as entries:
                names = [entry.path for entry in entries if entry.name.endswith((".dist-info", ".egg-info"))]
        except OSError:
            continue
        for name in names:
            try:
                with open(os.path.join(name, "entry_points.txt"), "rb") as file:
                    text = file.read()
            except OSError:
                continue
            if any(f"[{group}]".encode() in text for group in GROUPS):
                return True
    return False


@functools.cache
def _loaded() -> Mapping[str, list[tuple[Plugin, Any]]]:
    """Return the plug-ins of all groups with what their entry points name; one that raises is left out."""
    found: dict[str, list[tuple[Plugin, Any]]] = {group: [] for group in GROUPS}
    if not _declares_plugins():
        return found
    from importlib.metadata import entry_points

    for group in GROUPS:
        for point in sorted(
            entry_points(group=group), key=lambda point: (point.dist.name if point.dist else "", point.name)
        ):
            distribution = f"{point.dist.name} {point.dist.version}" if point.dist else "an unknown distribution"
            plugin = Plugin(group, point.name, distribution)
            try:
                found[group].append((plugin, point.load()))
            except (Exception, SystemExit) as error:
                plugin.leave_out(f"loading it raised {type(error).__name__}: {error}")
    return found


def accepted(
    group: str, accept: Callable[[Plugin, Any], Mapping[str, T]], taken: Callable[[str], bool]
) -> Iterator[tuple[str, T]]:
    """Yield the names and values that the plug-ins of a group add, each plug-in whole or not at all.

    ``accept`` returns the items of a plug-in, or raises ``Refused`` with the reason; ``taken`` says whether a name is
    registered already.
    """
    for plugin, value in _loaded()[group]:
        try:
            items = accept(plugin, value)
        except Refused as refused:
            plugin.leave_out(str(refused))
            continue
        except Exception as error:
            plugin.leave_out(f"judging it raised {type(error).__name__}: {error}")
            continue
        twice = [name for name in items if taken(name)]
        if twice:
            plugin.leave_out(f"{' and '.join(twice)} is registered already")
            continue
        yield from items.items()
