"""Attributes replaced for a while, and put back."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

_ABSENT = object()


class Patches:
    """Replaced attributes of modules and classes; ``undo`` puts back what was there, the last one first."""

    def __init__(self) -> None:
        self._undone: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replaces an attribute. One that ``owner`` only inherits is taken away again by ``undo``."""
        self._undone.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def follow(self) -> None:
        """Replaces in modules of others what they imported by name from those of torch that are patched by now."""
        _exchange(self._functions())

    def undo(self) -> None:
        """Puts everything back, in modules of others too, which may have been imported meanwhile."""
        theirs = [(now, was) for was, now in self._functions()]
        while self._undone:
            owner, name, value = self._undone.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        _exchange(theirs)

    def _functions(self) -> list[tuple[Any, Any]]:
        """Functions and classes of modules, each with what is there instead."""
        patched = [(owner, name, was) for owner, name, was in self._undone if isinstance(owner, ModuleType)]
        return [(was, vars(owner)[name]) for owner, name, was in patched if callable(was)]


def _exchange(pairs: list[tuple[Any, Any]]) -> None:
    """The first of each pair becomes the second wherever a module holds it that is neither torch's nor rung's."""
    becoming = {id(old): new for old, new in pairs}
    for module_name, module in list(sys.modules.items()):
        if not isinstance(module, ModuleType) or module_name.partition(".")[0] in ("torch", "rung"):
            continue
        names = vars(module)
        if not becoming.keys().isdisjoint(map(id, names.values())):
            for name in [name for name, value in names.items() if id(value) in becoming]:
                setattr(module, name, becoming[id(names[name])])
