"""Registries in which a mistake is an error at import: a name twice, or a rung under an unknown op."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from rung.core.errors import RegistrationError
from rung.core.plugins import Plugin, Refused, accepted
from rung.core.types import Ladder, Rung

T = TypeVar("T")


def module_names(path: Iterable[str]) -> list[str]:
    """Return the names of the modules in a package's ``__path__``, sorted. ``pkgutil`` takes 3 ms to import."""
    files = [file for folder in path for file in os.listdir(folder)]
    return sorted(file.removesuffix(".py") for file in files if file.endswith(".py") and file != "__init__.py")


class Registry(Mapping[str, T], Generic[T]):
    """Names and their values, in the order of registration; a name is taken once.

    With ``group``, plug-ins of that group of entry points are added when a name is asked for that is not here, or all
    names are; ``accept`` makes items of what an entry point names, or raises ``plugins.Refused``.
    """

    def __init__(
        self, noun: str, group: str = "", accept: Callable[[Plugin, Any], Mapping[str, T]] | None = None
    ) -> None:
        self._noun = noun
        self._group, self._accept = group, accept
        self._items: dict[str, T] = {}

    def register(self, name: str, item: T) -> T:
        """Add ``item``; raise ``RegistrationError`` when the name is taken or empty."""
        if not name:
            raise RegistrationError(f"A {self._noun} without a name")
        if name in self._items:
            raise RegistrationError(f"{self._noun} {name!r} is registered twice")
        self._items[name] = item
        return item

    @property
    def own(self) -> Mapping[str, T]:
        """The items that are registered so far, without a look for plug-ins."""
        return MappingProxyType(self._items)

    def drop(self, name: str) -> None:
        """Remove an item that turned out not to be what it said."""
        self._items.pop(name, None)

    def _complete(self) -> None:
        """Add the plug-ins, once."""
        if self._group and self._accept is not None:
            group, self._group = self._group, ""
            for name, item in accepted(group, self._accept, self._items.__contains__):
                self._items[name] = item

    def __getitem__(self, name: str) -> T:
        if name not in self._items:
            self._complete()
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        self._complete()
        return iter(self._items)

    def __len__(self) -> int:
        self._complete()
        return len(self._items)


_LADDERS: Registry[Ladder] = Registry("ladder")


def register_ladder(ladder: Ladder) -> Ladder:
    """Registers the ladder of an op.

    Raises ``RegistrationError`` for a second ladder of an op, a rung of another op, a rung twice, or a ladder whose
    last rung is not ``ref``.
    """
    names = [rung.name for rung in ladder.rungs]
    if len(set(names)) != len(names):
        raise RegistrationError(f"The ladder of {ladder.op} has a rung twice: {', '.join(names)}")
    strangers = [rung.name for rung in ladder.rungs if rung.op != ladder.op]
    if strangers:
        raise RegistrationError(f"The ladder of {ladder.op} has rungs of other ops: {', '.join(strangers)}")
    if not names or names[-1] != "ref":
        raise RegistrationError(f"The last rung of {ladder.op} must be ref, the specification of the others")
    return _LADDERS.register(ladder.op, ladder)


def _added_rungs(plugin: Plugin, value: Any) -> Mapping[str, Rung]:
    """Return the rungs of a plug-in by ``op/name``: one ``Rung``, or several in a list or tuple."""
    rungs = list(value) if isinstance(value, list | tuple) else [value]
    for rung in rungs:
        if not isinstance(rung, Rung):
            raise Refused(f"it names a {type(rung).__name__}, and a rung is a rung.core.types.Rung")
        if rung.op not in _LADDERS:
            raise Refused(f"{rung.op!r} is no op; the ops are {', '.join(_LADDERS)}")
        for text in (rung.impl, *([rung.check] if rung.check else [])):
            if not re.fullmatch(r"[\w.]+:\w+", text):
                raise Refused(f"{text!r} does not name an object, as package.module:NAME does")
        if rung.packing != "stored":
            raise Refused(f"{rung.name} wants the packing {rung.packing!r}; rungs of plug-ins take weights as stored")
    items = {f"{rung.op}/{rung.name}": replace(rung, plugin=plugin.distribution) for rung in rungs}
    if len(items) < len(rungs):
        raise Refused("it names a rung twice")
    return items


class _Ladders(Mapping[str, Ladder]):
    """The ladders, each with the rungs of plug-ins above rung's own."""

    def __init__(self) -> None:
        self._whole: dict[str, Ladder] = {}

    def __getitem__(self, op: str) -> Ladder:
        if op not in self._whole:
            own = _LADDERS[op]
            names = [f"{each.op}/{rung.name}" for each in _LADDERS.values() for rung in each.rungs]
            added = [rung for rung in _added(tuple(names)) if rung.op == op]
            self._whole[op] = replace(own, rungs=(*added, *own.rungs)) if added else own
        return self._whole[op]

    def __iter__(self) -> Iterator[str]:
        return iter(_LADDERS)

    def __len__(self) -> int:
        return len(_LADDERS)


@functools.cache
def _added(taken: tuple[str, ...]) -> tuple[Rung, ...]:
    names = set(taken)
    found = []
    for name, rung in accepted("rung.rungs", _added_rungs, names.__contains__):
        names.add(name)
        found.append(rung)
    return tuple(found)


_WHOLE = _Ladders()


def ladders() -> Mapping[str, Ladder]:
    """Return the ladders, with the rungs of plug-ins; importing ``rung.ops`` registers all of rung's own."""
    return _WHOLE
