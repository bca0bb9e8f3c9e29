"""How likely each fix helps where a cause is known: numbers learned from what helped in threads with such words.

``fixes.table`` is like the table of ``words``, of fixes: for words, for causes with ``@`` before them, which count in
full, and for the places in an order set by hand (``@by cause``, ``@by fact``, ``@by signature``; the last is for fixes
that it does not name).
``benchmarks/explain_fixes.py`` learns them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence

from rung.diagnosis.words import Table, read_table, scores, weighed

#: Fixes beside those of the cause's own order are told from this chance on.
_TOLD = 0.1
#: The places of an order that are told apart.
PLACES = 6


@functools.cache
def _table() -> Table:
    return read_table("fixes.table")


def places(order: Sequence[str]) -> dict[str, int]:
    """The place of each fix that an order names, from 0; late ones share one."""
    return {label: min(place, PLACES - 2) for place, label in enumerate(order)}


class Helping:
    """Hold what the words of one log say for each fix."""

    def __init__(self, words: Iterable[str]) -> None:
        self._labels, self._rows = table = _table()
        self._by_words = scores(words, table) or [0.0] * len(self._labels)

    def chances(self, cause: str, order: Sequence[str]) -> Mapping[str, float]:
        """The probability by fix that it helps where that is the cause; ``order`` is the one set by hand."""
        at = places(order)
        by_cause, by_place = (dict(weighed(self._rows.get(key, ""))) for key in (f"@{cause}", "@place"))
        found = {}
        for number, label in enumerate(self._labels):
            nats = by_cause.get(number, 0.0) + by_place.get(at.get(label, PLACES - 1), 0.0) + self._by_words[number]
            found[label] = 1 / (1 + math.exp(-nats))
        return {label: chance for label, chance in found.items() if label in at or chance >= _TOLD}
