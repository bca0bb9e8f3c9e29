"""Learns ``src/rung/diagnosis/fixes.table``: which words speak for which fix, where the cause of an error is known.

usage: python benchmarks/explain_fixes.py CORPUS [--check]

From the rows of ``explain_words.py`` that say what helped: for every fix a logistic regression on the words of the
row, its cause and the place that the order set by hand gives the fix. Takes a minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from explain_words import EXAMPLES, Row, Table, fit, kept, matrix, places_of, rows_of, words_of_row, write, written
from rung.diagnosis.explain import scene
from rung.diagnosis.fixing import order_of
from rung.diagnosis.helping import PLACES, places
from rung.diagnosis.wording import wordings

#: Penalties on the weights of words, of causes and of places; what follows is as for words.
PENALTIES, STEPS = (0.6, 0.02, 0.02), 200
SEEN, KEPT = 4, 0.4


def order_of_row(row: Row) -> list[str]:
    """The fixes of the row's cause in the order set by hand."""
    return order_of(row["cause"], scene([row["log"].encode("utf-8", "replace")], row["environment"]))


def told(rows: Sequence[Row]) -> list[Row]:
    """The rows that say what helped."""
    return [row for row in rows if row["cause"] and row.get("fixes")]


def learn(rows: Sequence[Row], words: Sequence[set[str]], orders: Sequence[Sequence[str]]) -> Table:
    """The fixes and, by word, cause and place, the weight for the fix at each place; all rows say what helped."""
    fixes, causes = sorted({row.label for row in wordings()}), sorted({row["cause"] for row in rows})
    known = places_of(words, SEEN)
    there = matrix(words, known)
    cause = torch.tensor([causes.index(row["cause"]) for row in rows])
    place = torch.tensor([[numbered.get(fix, PLACES - 1) for fix in fixes] for numbered in map(places, orders)])
    helped = torch.tensor([[float(fix in row["fixes"]) for fix in fixes] for row in rows], dtype=torch.float64)
    sizes = ((len(known), len(fixes)), (len(causes), len(fixes)), (PLACES,))
    weights = [torch.zeros(size, dtype=torch.float64, requires_grad=True) for size in sizes]
    by_word, by_cause, by_place = weights
    fit(
        weights,
        lambda: (
            torch.nn.functional.binary_cross_entropy_with_logits(
                there @ by_word + by_cause[cause] + by_place[place], helped, reduction="sum"
            )
            + sum(penalty / 2 * w.square().sum() for penalty, w in zip(PENALTIES, weights, strict=True))
        ),
        STEPS,
    )
    named = {f"@{label}": number for number, label in enumerate(causes)}
    found = kept(by_cause, named, 0.1) | kept(by_place[None], {"@place": 0}, 0.1)
    return fixes, found | kept(by_word, known, KEPT)


def table_of(corpus: Path) -> str:
    """The table as the corpus and the examples give it."""
    rows = told(rows_of([corpus, *EXAMPLES]))
    return written(learn(rows, [words_of_row(row) for row in rows], [order_of_row(row) for row in rows]))


if __name__ == "__main__":
    write("fixes.table", table_of, __doc__.splitlines()[0])
