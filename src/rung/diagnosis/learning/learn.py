"""Read the labeled messages, and learn which words speak for which cause and for which fix."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rung.diagnosis.explain import rules_of, scene
from rung.diagnosis.fixes.wording import wordings
from rung.diagnosis.learning.logistic import Floats, Problem, fit, places_of, sparse
from rung.diagnosis.match import signatures
from rung.diagnosis.model import share, words_of

#: A message with its label: log, environment, cause (None: nothing is the matter), fixes, and repository if it is of a
#: public thread.
Row = Mapping[str, Any]

#: Where the messages lie in a checkout of rung.
DATA = Path(__file__).parents[4] / "tests" / "data"
#: Ordinary output is rare in the rows and common in logs: each such row counts as so many, with other environments.
_ORDINARY = 8
#: How much a row of a public thread counts; one that was written for the project counts 1.
_PUBLIC = 2.0


def read_rows(folder: Path = DATA) -> list[Row]:
    """Return the rows of ``explain*.jsonl`` in the order of file names and lines."""
    files = sorted(folder.glob("explain*.jsonl"), key=lambda file: file.name)
    return [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]


def with_examples(rows: Iterable[Row]) -> list[Row]:
    """Return the rows, copies of ordinary ones with environments of others, and the signatures' own examples."""
    found = list(rows)
    ordinary = [row for row in found if row["cause"] is None] * (_ORDINARY - 1)
    environments = itertools.cycle([{}, *(row["environment"] for row in found)])
    found += [{**row, "environment": environment} for row, environment in zip(ordinary, environments, strict=False)]
    for known in signatures():
        cause = max(known.causes, key=known.causes.__getitem__)
        found.append({"log": known.example, "environment": {}, "cause": cause})
    return found


def words_of_row(row: Row) -> frozenset[str]:
    """Return the words by which ``rung explain`` knows a row."""
    found = scene([row["log"].encode("utf-8", "replace")], row["environment"])
    return frozenset(words_of(found, rules_of(found)))


def weights_of(rows: Sequence[Row]) -> list[float]:
    """Return how much each row counts."""
    return [_PUBLIC if "repository" in row else 1.0 for row in rows]


Words = Collection[str]


@dataclass(frozen=True)
class Learned:
    """A table: its labels, and by word the weights by label's place, in nats."""

    labels: Sequence[str]
    weights: Mapping[str, Mapping[int, float]]

    def text(self) -> str:
        """Return the table as its file holds it: a line of labels, then sorted words with their weights."""
        first = " ".join(label or "-" for label in self.labels)
        rows = (
            word + "\t" + " ".join(f"{column}:{nats:g}" for column, nats in found.items())
            for word, found in self.weights.items()
        )
        return "\n".join([first, *sorted(rows)]) + "\n"


@dataclass(frozen=True)
class Settings:
    """How a table is learned: the penalty on squared weights, the rows a word must be in, the least weight kept."""

    penalty: float
    min_rows: int
    kept: float
    steps: int


CAUSES = Settings(penalty=0.05, min_rows=2, kept=0.4, steps=60)
FIXES = Settings(penalty=0.6, min_rows=4, kept=0.4, steps=60)
#: Of fixes, the penalty on the weights of causes, which count in full in every row, and the least that is kept.
_BY_CAUSE, _KEPT_BY_CAUSE = 0.02, 0.1


def learn_causes(rows: Sequence[Row], words: Sequence[Words], settings: Settings = CAUSES) -> Learned:
    """Learn the weights of words for causes; the empty label stands for none of them."""
    labels = ["", *sorted({row["cause"] for row in rows} - {"", None})]
    columns = places_of(words, settings.min_rows)
    targets = np.zeros((len(rows), len(labels)))
    targets[np.arange(len(rows)), [labels.index(row["cause"] or "") for row in rows]] = 1
    there = sparse([_shares(found, columns) for found in words], len(columns))
    penalties = np.full(len(columns), settings.penalty)
    weights = fit(Problem(there, targets, np.array(weights_of(rows)), penalties, together=True), settings.steps)
    return Learned(labels, _kept(weights, columns, settings.kept))


def learn_fixes(rows: Sequence[Row], words: Sequence[Words], settings: Settings = FIXES) -> Learned:
    """Learn the weights of words, and of causes with ``@`` before them, for fixes; rows without a fix are left out."""
    labeled = [(row, found) for row, found in zip(rows, words, strict=True) if row["cause"] and row.get("fixes")]
    labels = sorted({row.label for row in wordings()})
    causes = sorted({row["cause"] for row, _ in labeled})
    columns = places_of([found for _, found in labeled], settings.min_rows)
    there = sparse(
        [[*_shares(found, columns), (len(columns) + causes.index(row["cause"]), 1.0)] for row, found in labeled],
        len(columns) + len(causes),
    )
    targets = np.array([[float(label in row["fixes"]) for label in labels] for row, _ in labeled])
    penalties = np.array([settings.penalty] * len(columns) + [_BY_CAUSE] * len(causes))
    weights = fit(Problem(there, targets, np.ones(len(labeled)), penalties, together=False), settings.steps)
    named = {f"@{cause}": len(columns) + number for number, cause in enumerate(causes)}
    return Learned(labels, _kept(weights, named, _KEPT_BY_CAUSE) | _kept(weights, columns, settings.kept))


def _shares(words: Words, columns: Mapping[str, int]) -> list[tuple[int, float]]:
    """Return the places of known words, rising, and what each counts."""
    known = sorted(columns[word] for word in words if word in columns)
    return [(column, share(len(known))) for column in known]


def _kept(weights: Floats, columns: Mapping[str, int], least: float) -> dict[str, dict[int, float]]:
    """Return the weights from that size on by word, to a tenth."""
    found = np.rint(weights * 10)
    rows = {
        word: {int(label): int(found[at, label]) / 10 for label in np.flatnonzero(abs(found[at]) >= least * 10 - 0.5)}
        for word, at in columns.items()
    }
    return {word: row for word, row in rows.items() if row}
