"""Matches messages and exceptions against the signatures."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

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


#: Bytes: shorter words stand in too many lines to be worth the look-up (a Chinese character counts three).
_SHORTEST = 3
_parser: Any = re._parser  # type: ignore[attr-defined]  # the standard library's own: there is no public one


def anchors(pattern: str) -> frozenset[str]:
    """Lower-case words of which every match holds at least one; empty when there are none long enough."""
    words = _needed(_parser.parse(pattern, re.MULTILINE))
    return words if words and min(map(_length, words)) >= _SHORTEST else frozenset()


def _needed(tree: Sequence[tuple[Any, Any]]) -> frozenset[str]:
    """The best set of alternatives among the parts of a sequence that all must match."""
    found: list[frozenset[str]] = []
    run = ""
    for operation, argument in tree:
        name = str(operation)
        if name == "LITERAL":
            run += chr(argument).lower()
            continue
        found.append(frozenset({run}))
        run = ""
        found.append(_needed_of(name, argument))
    found.append(frozenset({run}))
    return max((words for words in found if words), key=_worth, default=frozenset())


def _needed_of(name: str, argument: Any) -> frozenset[str]:
    if name == "SUBPATTERN":
        return _needed(argument[3])
    if name == "BRANCH":
        branches = [_needed(branch) for branch in argument[1]]
        return frozenset().union(*branches) if all(branches) else frozenset()
    if name in ("MAX_REPEAT", "MIN_REPEAT") and argument[0] > 0:
        return _needed(argument[2])
    return frozenset()


def _worth(words: frozenset[str]) -> tuple[int, int]:
    return min(map(_length, words)), -len(words)


def _length(word: str) -> int:
    return len(word.encode())
