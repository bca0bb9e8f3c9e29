"""Attributes replaced for a while, and put back."""

from __future__ import annotations

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

    def undo(self) -> None:
        """Puts everything back."""
        while self._undone:
            owner, name, value = self._undone.pop()
            if value is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
