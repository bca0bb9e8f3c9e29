"""Words that a line must hold for a pattern to match it, so that most patterns are never tried."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

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
