"""Registries in which a mistake is an error at import: a name twice, or a rung under an unknown op."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

from rung.core.errors import RegistrationError
from rung.core.types import Ladder

T = TypeVar("T")

#: What is computed. A ladder can be registered for these ops only.
OPS = ("linear", "embedding", "attention", "quantize", "dequantize", "decode_step", "rasterize")


class Registry(Mapping[str, T], Generic[T]):
    """Names and their values, in the order of registration; a name is taken once."""

    def __init__(self, noun: str) -> None:
        self._noun = noun
        self._items: dict[str, T] = {}

    def register(self, name: str, item: T) -> T:
        """Adds ``item``; raises ``RegistrationError`` when the name is taken or empty."""
        if not name:
            raise RegistrationError(f"A {self._noun} without a name")
        if name in self._items:
            raise RegistrationError(f"{self._noun} {name!r} is registered twice")
        self._items[name] = item
        return item

    def __getitem__(self, name: str) -> T:
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


_LADDERS: Registry[Ladder] = Registry("ladder")


def register_ladder(ladder: Ladder) -> Ladder:
    """Registers the ladder of an op.

    Raises ``RegistrationError`` for an unknown op, a second ladder, a rung of another op, a rung twice,
    or a ladder whose last rung is not ``ref``.
    """
    if ladder.op not in OPS:
        raise RegistrationError(f"{ladder.op!r} is no op; the ops are {', '.join(OPS)}")
    names = [rung.name for rung in ladder.rungs]
    if len(set(names)) != len(names):
        raise RegistrationError(f"The ladder of {ladder.op} has a rung twice: {', '.join(names)}")
    strangers = [rung.name for rung in ladder.rungs if rung.op != ladder.op]
    if strangers:
        raise RegistrationError(f"The ladder of {ladder.op} has rungs of other ops: {', '.join(strangers)}")
    if not names or names[-1] != "ref":
        raise RegistrationError(f"The last rung of {ladder.op} must be ref, the specification of the others")
    return _LADDERS.register(ladder.op, ladder)


def ladders() -> Mapping[str, Ladder]:
    """The ladders registered so far; importing ``rung.ops`` registers all of them."""
    return _LADDERS
