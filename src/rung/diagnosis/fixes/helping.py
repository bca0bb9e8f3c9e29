"""How likely each fix helps where a cause is known: numbers learned from what helped in threads with such words.

``fixes.table`` is like the table of ``words``, of fixes: for words, and for causes with ``@`` before them, which count
in full. ``rung.diagnosis.learning`` learns them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Iterable, Mapping

from rung.diagnosis.model.words import Table, read_table, scores, weighed

#: Fixes beside those of the cause's own order are told from this chance on.
_LIKELY = 0.1


@functools.cache
def fix_table() -> Table:
    """Return the learned weights of words for each fix."""
    return read_table("fixes.table")


class Helping:
    """Hold what the words of one log say for each fix."""

    def __init__(self, words: Iterable[str]) -> None:
        self._labels, self._rows = table = fix_table()
        self._by_words = scores(words, table) or [0.0] * len(self._labels)

    def chances(self, cause: str, usual: Collection[str]) -> Mapping[str, float]:
        """Return the probability that a fix helps where that is the cause, for ``usual`` fixes and likely ones."""
        by_cause = dict(weighed(self._rows.get(f"@{cause}", "")))
        found = {}
        for number, label in enumerate(self._labels):
            found[label] = 1 / (1 + math.exp(-by_cause.get(number, 0.0) - self._by_words[number]))
        return {label: chance for label, chance in found.items() if label in usual or chance >= _LIKELY}
