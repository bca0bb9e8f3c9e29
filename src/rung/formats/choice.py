"""Which layers of a network are held in which format, by their names."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from rung.core.errors import UsageError
from rung.core.text import matches
from rung.core.types import EMPTY, Format
from rung.core.value import FrozenDict
from rung.formats import table


@dataclass(frozen=True)
class Choice:
    """Hold what the arguments of ``rung.quantize`` say: linear layers and experts get ``format``, embeddings and output
    heads ``outer`` (None: they stay as they are). Those that a pattern of ``skip`` means stay too; those that one of
    ``keep`` means get its format.
    """

    format: Format
    skip: tuple[str, ...] = ()
    outer: Format | None = None
    keep: FrozenDict[Format] = EMPTY

    @classmethod
    def named(
        cls,
        format: str,
        skip: Iterable[str] = (),
        embeddings: str | None = None,
        keep: Mapping[str, str] | None = None,
    ) -> Self:
        """Return those arguments, with the names of formats. Raises ``UnknownFormat``, and ``UsageError`` as ``kept``
        does."""
        return cls(
            table.get(format),
            (skip,) if isinstance(skip, str) else tuple(skip),
            None if embeddings is None else table.get(embeddings),
            FrozenDict(kept(keep)),
        )

    def of(self, names: Sequence[str], outer: bool, known: Container[str]) -> Format | None:
        """The format of a layer that goes by those names among all that are ``known``; None: it stays as it is.

        ``outer``: it is an embedding or an output head.
        """

        def meant(pattern: str) -> bool:
            return any(means(pattern, name, known) for name in names)

        if any(map(meant, self.skip)):
            return None
        return next((own for pattern, own in self.keep.items() if meant(pattern)), self.outer if outer else self.format)


def kept(named: Mapping[str, str] | None) -> dict[str, Format]:
    """Formats by patterns. Raises ``UnknownFormat``, and ``UsageError`` for what is no mapping."""
    if named is not None and not isinstance(named, Mapping):
        raise UsageError("keep has a format for each pattern:  {'lm_head': 'q6_k'}", [f"it is {named!r}"])
    return {pattern: table.get(name) for pattern, name in (named or {}).items()}


def means(pattern: str, name: str, names: Container[str]) -> bool:
    """Return whether a pattern means the layer ``name``; one that is itself among the ``names`` of layers, only that
    one."""
    return name == pattern if pattern in names else matches(name, pattern)
