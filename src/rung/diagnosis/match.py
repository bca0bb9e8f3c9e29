"""Matches messages and exceptions against the signatures."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from rung.core.types import EMPTY, StepClass
from rung.core.value import FrozenDict
from rung.diagnosis.tables import tables

#: Bytes of a message that are searched; what makes an error recognizable stands near its beginning.
_LONGEST = 20_000


@dataclass(frozen=True)
class Signature:
    """One known error: how it reads, what it means, how a ladder steps down from it and what it is evidence of.

    ``step`` is None for rows that only explain. ``causes`` are weights of evidence in nats by cause. A
    line matches only if it holds one of the ``anchors`` (in lower case), where there are any. ``late``: reported
    after the fact, or following from another error. ``general``: wording so wide that it counts only where no other row
    matches the line. ``unsure``: causes that it points to and, alone, never establishes.
    """

    id: str
    step: StepClass | None
    text: str
    example: str
    means: str
    source: str
    causes: FrozenDict[float] = EMPTY
    anchors: tuple[str, ...] = ()
    late: bool = False
    general: bool = False
    unsure: tuple[str, ...] = ()

    @functools.cached_property
    def pattern(self) -> re.Pattern[str]:
        """Compiled when first asked for: most rows never are. Titles and chats retype messages in any case."""
        return re.compile(self.text, re.MULTILINE | re.IGNORECASE)


@dataclass(frozen=True)
class Match:
    """A signature found in a text, with the facts that its named groups captured."""

    signature: Signature
    text: str
    facts: FrozenDict[str] = EMPTY

    @property
    def reason(self) -> str:
        """One sentence: what it means, and the words it was recognized by."""
        return f"{self.signature.means} ({self.text})"


@functools.cache
def signatures() -> tuple[Signature, ...]:
    """All signatures, in the order of their files and rows."""
    return tuple(
        Signature(
            id=row["id"],
            step=StepClass(row["step"]) if "step" in row else None,
            text=row["pattern"],
            example=row["example"],
            means=row["means"],
            source=row["source"],
            causes=FrozenDict(row["causes"]),
            anchors=tuple(row["anchors"]),
            late=row.get("late", False),
            general=row.get("general", False),
            unsure=tuple(row.get("unsure", ())),
        )
        for row in tables()["signature"]
    )


def match(text: str) -> Match | None:
    """The signature that a ladder knows a step for and whose words stand first in the text, or None."""
    found = [(hit.start(), index, hit) for index, hit in _hits(text[:_LONGEST])]
    if not found:
        return None
    _, index, hit = min(found, key=lambda item: item[:2])
    facts = {key: value for key, value in hit.groupdict().items() if value}
    return Match(signatures()[index], hit[0], FrozenDict(facts))


def _hits(text: str) -> Iterator[tuple[int, re.Match[str]]]:
    for index, signature in enumerate(signatures()):
        hit = signature.pattern.search(text) if signature.step is not None else None
        if hit:
            yield index, hit


def classify(error: BaseException) -> Match | None:
    """Match a raised exception against the signatures; None where it is a bug of the program.

    Looks at the exception and at those it was raised from, the root first.
    """
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)
    for link in reversed(chain):
        found = match_alone(link)
        if found:
            return found
    return None


def match_alone(error: BaseException) -> Match | None:
    """Match one exception, whatever was being handled when it was raised."""
    return match(f"{type(error).__name__}: {error}")
