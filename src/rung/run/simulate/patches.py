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
        replaced = {
            id(was): (was, vars(owner)[name])
            for owner, name, was in self._undone
            if isinstance(owner, ModuleType) and callable(was)
        }
        for module_name, module in list(sys.modules.items()):
            if not isinstance(module, ModuleType) or module_name.partition(".")[0] in ("torch", "rung"):
                continue
            for name, value in list(vars(module).items()):
                was, instead = replaced.get(id(value), (_ABSENT, None))
                if was is value:
                    self.set(module, name, instead)

    def undo(self) -> None:
        """Puts everything back."""
        while self._undone:
            owner, name, value = self._undone.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
