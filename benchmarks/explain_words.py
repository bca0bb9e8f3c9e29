"""Learns ``src/rung/diagnosis/words.table``: which words speak for which cause of ``rung explain``.

usage: python benchmarks/explain_words.py CORPUS [--check]

CORPUS is a file of rows, one JSON object a line, or a folder of such files (``*.jsonl``).

It learns from the corpus, from ``tests/data/explain.jsonl`` and from the signatures' examples, and from nothing else:
the same three give the same table, bit for bit, and ``--check`` says whether the table is the one that they give. Rows
hold log, environment and cause (null: nothing is the matter); repositories that are held back are left out. A
multinomial logistic regression on the presence of words, by AdaGrad, with a penalty on the weights; what is small is
dropped. Takes seconds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import rung.diagnosis
from rung.diagnosis import signatures
from rung.diagnosis.explain import rules_of, scene
from rung.diagnosis.words import words_of

PASSES, RATE, PENALTY = 6, 0.5, 0.005
#: Ordinary output is rare in the rows and common in logs.
ORDINARY = 4
#: Messages written from the sources of programs and from public threads.
EXAMPLES = Path(__file__).parents[1] / "tests" / "data" / "explain.jsonl"
#: A word must stand in so many rows; smaller weights are not kept.
SEEN, KEPT = 2, 0.3

Row = dict[str, Any]
Table = tuple[list[str], dict[str, dict[int, float]]]


def lines(place: Path) -> list[Row]:
    """The rows of a file, or of the files of a folder."""
    files = sorted(place.glob("*.jsonl")) if place.is_dir() else [place]
    text = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    return [json.loads(line) for line in text if line.strip()]


def held(row: Row) -> bool:
    """Whether a row is of a repository that was left unread: a fifth of them, by the SHA-256 of its name."""
    return "repository" in row and int(hashlib.sha256(row["repository"].encode()).hexdigest(), 16) % 5 == 0


def rows_of(files: Iterable[Path]) -> list[Row]:
    """The rows of files but for those held back, and the signatures' own examples."""
    found = [row for file in files for row in lines(file) if not held(row)]
    found += [row for row in found if row["cause"] is None] * (ORDINARY - 1)
    for known in signatures():
        found.append(
            {"log": known.example, "environment": {}, "cause": max(known.causes, key=known.causes.__getitem__)}
        )
    return found


def words_of_row(row: Row) -> set[str]:
    """The words by which a row is known, as ``rung explain`` sees them."""
    found = scene([row["log"].encode("utf-8", "replace")], row["environment"])
    return words_of(found, rules_of(found))


def learn(rows: Sequence[Row], words: Sequence[set[str]]) -> Table:
    """The causes and, by word, the weight for the cause at each place."""
    causes = ["", *sorted({row["cause"] for row in rows} - {"", None})]
    counts = Counter(word for found in words for word in found)
    places = {word: place for place, word in enumerate(sorted(w for w, count in counts.items() if count >= SEEN))}
    sparse = [np.array(sorted(places[word] for word in found if word in places), dtype=np.int64) for found in words]
    targets = [causes.index(row["cause"] or "") for row in rows]
    weights, squares = np.zeros((len(places), len(causes))), np.full((len(places), len(causes)), 1e-2)
    order = np.random.default_rng(0)
    for _ in range(PASSES):
        for row in order.permutation(len(rows)):
            index = sparse[row]
            if not len(index):
                continue
            scale = 1 / np.sqrt(len(index))
            scores = weights[index].sum(0) * scale
            shares = np.exp(scores - scores.max())
            shares /= shares.sum()
            shares[targets[row]] -= 1
            slope = shares * scale + PENALTY * weights[index]
            squares[index] += slope * slope
            weights[index] -= RATE * slope / np.sqrt(squares[index])
    kept = {
        word: {int(c): round(float(weights[place, c]), 1) for c in np.flatnonzero(abs(weights[place]) >= KEPT)}
        for word, place in places.items()
    }
    return causes, {word: found for word, found in kept.items() if found}


def written(table: Table) -> str:
    """The table as the file holds it."""
    causes, words = table
    lines = [" ".join(cause or "-" for cause in causes)]
    lines += [
        word + "\t" + " ".join(f"{place}:{nats:g}" for place, nats in found.items()) for word, found in words.items()
    ]
    return "\n".join(lines) + "\n"


def table_of(corpus: Path) -> str:
    """The table as the corpus and the examples give it."""
    rows = rows_of([corpus, EXAMPLES])
    return written(learn(rows, [words_of_row(row) for row in rows]))


def main() -> None:
    """Learns and writes the table, or says whether it is current."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--check", action="store_true", help="compare with the table that is there, write nothing")
    options = parser.parse_args()
    file = Path(rung.diagnosis.__file__).parent / "words.table"
    text = table_of(options.corpus)
    if options.check:
        same = file.read_text(encoding="utf-8") == text
        print("the table is what these rows give" if same else "the table is another than these rows give")
        raise SystemExit(not same)
    file.write_text(text, encoding="utf-8")
    print(f"{text.count(chr(10)) - 1} words, {len(text)} bytes")


if __name__ == "__main__":
    main()
