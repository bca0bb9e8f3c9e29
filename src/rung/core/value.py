"""Frozen values that turn into JSON and back without a line of code of their own."""

from __future__ import annotations

import dataclasses
import enum
import importlib
import math
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, TypeVar

V = TypeVar("V")


class FrozenDict(Mapping[str, V]):
    """A mapping that cannot change and can be hashed; in JSON an object."""

    __slots__ = ("_hash", "_items")

    def __init__(self, items: Mapping[str, V] | None = None, **more: V) -> None:
        self._items: dict[str, V] = {**(items or {}), **more}
        self._hash: int | None = None

    def __getitem__(self, key: str) -> V:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        if self._hash is None:
            self._hash = hash(frozenset(self._items.items()))
        return self._hash

    def __reduce__(self) -> tuple[type[FrozenDict[V]], tuple[dict[str, V]]]:
        """Leave the hash behind: that of a string is another one in each process."""
        return type(self), (self._items,)

    def __repr__(self) -> str:
        return f"FrozenDict({self._items!r})"

    def __or__(self, more: Mapping[str, V]) -> FrozenDict[V]:
        return FrozenDict({**self._items, **more})


def to_json(value: Any) -> Any:
    """The JSON form (dicts, lists, strings, numbers) of a value made of frozen dataclasses."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: to_json(item) for key, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)  # JSON has no infinity
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, Sequence) and not isinstance(value, (bytes, bytearray, memoryview)):
        return [to_json(item) for item in value]
    raise TypeError(f"{type(value).__name__} has no JSON form")


def from_json(kind: Any, data: Any) -> Any:
    """The value of type ``kind`` that ``to_json`` wrote as ``data``.

    Raises ``ValueError`` that names the missing or unknown key; unknown keys are never dropped silently.
    """
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return FrozenDict(data) if isinstance(data, dict) else data
    if origin is types.UnionType or origin is typing.Union:
        if data is None:
            return None
        (inner,) = [a for a in arguments if a is not type(None)]
        return from_json(inner, data)
    if (origin is tuple and not isinstance(data, (list, tuple))) or (
        origin is FrozenDict and not isinstance(data, Mapping)
    ):
        raise ValueError(f"expected {origin.__name__}, found {data!r}")
    if origin is tuple:
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return tuple(from_json(arguments[0], item) for item in data)
        return tuple(from_json(a, item) for a, item in zip(arguments, data, strict=True))
    if origin is FrozenDict:
        return FrozenDict({key: from_json(arguments[0], item) for key, item in data.items()})
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(data)
    if dataclasses.is_dataclass(kind):
        return _dataclass_from_json(typing.cast(type, kind), data)
    if kind is float and (isinstance(data, int) or data in ("inf", "-inf", "nan")):
        return float(data)
    if not isinstance(data, kind):
        raise ValueError(f"expected {kind.__name__}, found {data!r}")
    return data


def _dataclass_from_json(kind: type, data: Any) -> Any:
    if not isinstance(data, Mapping):
        raise ValueError(f"{kind.__name__}: expected an object, found {data!r}")
    hints = typing.get_type_hints(kind)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    unknown = sorted(set(data) - set(fields))
    missing = sorted(
        name
        for name, f in fields.items()
        if name not in data and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    )
    if unknown or missing:
        raise ValueError(f"{kind.__name__}: unknown keys {unknown}, missing keys {missing}")
    return kind(**{name: from_json(hints[name], item) for name, item in data.items()})


class Value:
    """Base of the frozen dataclasses: JSON both ways."""

    def to_json(self) -> dict[str, Any]:
        """A dict that ``json.dumps`` takes and ``from_json`` reads back as an equal value."""
        return typing.cast(dict[str, Any], to_json(self))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """The value that ``to_json`` wrote. Raises ``ValueError`` that names what is missing or unknown."""
        return typing.cast(Self, from_json(cls, data))


class Shown:
    """A value that ``print`` and notebooks show as the command line does.

    ``VIEW`` names the module that draws it, with the functions ``text`` and ``html``: it lies above what holds values.
    """

    VIEW = ""

    def __str__(self) -> str:
        return str(importlib.import_module(self.VIEW).text(self))

    def _repr_html_(self) -> str:
        return str(importlib.import_module(self.VIEW).html(self))
