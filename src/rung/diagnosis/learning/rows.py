"""Read the labeled messages that are learned from: ``tests/data/explain*.jsonl`` and the signatures' examples."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rung.diagnosis.explain import rules_of, scene
from rung.diagnosis.match import signatures
from rung.diagnosis.model.words import words_of

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
