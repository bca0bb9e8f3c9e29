"""Learns ``src/rung/diagnosis/words.table``: which words speak for which cause of ``rung explain``.

usage: python benchmarks/explain_words.py CORPUS [--check]

CORPUS is a file of rows, one JSON object a line, or a folder of such files (``*.jsonl``).

It learns from the corpus, from ``tests/data/explain*.jsonl`` and from the signatures' examples, and from nothing else:
the same rows give the same table, and ``--check`` says whether the table is the one that they give. Rows hold log,
environment and cause (null: nothing is the matter); repositories that are held back are left out. A multinomial
logistic regression on the presence of words, with a penalty on the weights, by L-BFGS; what is small is dropped. Takes
half a minute.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rung.diagnosis
from rung.diagnosis import signatures
from rung.diagnosis.explain import rules_of, scene
from rung.diagnosis.words import share, words_of

PENALTY, STEPS = 0.05, 60
#: Ordinary output is rare in the rows and common in logs; its copies have environments of other rows.
ORDINARY = 8
#: Messages written from the sources of programs and from public threads.
EXAMPLES = sorted((Path(__file__).parents[1] / "tests" / "data").glob("explain*.jsonl"))
#: What a row of a public thread counts, and the one case of a rule; one that was written from a source counts 1.
PUBLIC, RULE = 2.0, 3.0
#: A word must stand in so many rows; smaller weights are not kept.
SEEN, KEPT = 2, 0.4

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
    ordinary = [row for row in found if row["cause"] is None] * (ORDINARY - 1)
    told = itertools.cycle([{}, *(row["environment"] for row in found)])
    found += [row | {"environment": environment} for row, environment in zip(ordinary, told, strict=False)]
    for known in signatures():
        found.append(
            {"log": known.example, "environment": {}, "cause": max(known.causes, key=known.causes.__getitem__)}
        )
    return found


def words_of_row(row: Row) -> set[str]:
    """The words by which a row is known, as ``rung explain`` sees them."""
    found = scene([row["log"].encode("utf-8", "replace")], row["environment"])
    return words_of(found, rules_of(found))


def places_of(words: Iterable[set[str]], seen: int) -> dict[str, int]:
    """The words that so many rows have, numbered."""
    counts = Counter(word for found in words for word in found)
    return {word: place for place, word in enumerate(sorted(w for w, count in counts.items() if count >= seen))}


def matrix(words: Sequence[set[str]], places: dict[str, int]) -> torch.Tensor:
    """Rows by words, sparse: what each known word of a row counts."""
    known = [sorted(places[word] for word in found if word in places) for found in words]
    return torch.sparse_csr_tensor(
        torch.tensor([0, *itertools.accumulate(map(len, known))]),
        torch.tensor([*itertools.chain(*known)]),
        torch.tensor([share(len(found)) for found in known for _ in found], dtype=torch.float64),
        size=(len(words), len(places)),
    )


def fit(weights: Sequence[torch.Tensor], loss: Callable[[], torch.Tensor], steps: int) -> None:
    """Makes the loss least, by L-BFGS."""
    solver = torch.optim.LBFGS(weights, max_iter=steps, history_size=6, line_search_fn="strong_wolfe")

    def closure() -> torch.Tensor:
        solver.zero_grad()
        total = loss()
        total.backward()
        return total

    solver.step(closure)


def counted(row: Row) -> float:
    """How much a row counts."""
    return PUBLIC if "repository" in row else RULE if "rule" in row else 1.0


def learn(rows: Sequence[Row], words: Sequence[set[str]]) -> Table:
    """The causes and, by word, the weight for the cause at each place."""
    causes = ["", *sorted({row["cause"] for row in rows} - {"", None})]
    places = places_of(words, SEEN)
    there = matrix(words, places)
    targets = torch.tensor([causes.index(row["cause"] or "") for row in rows])
    counts = torch.tensor([counted(row) for row in rows], dtype=torch.float64)
    weights = torch.zeros(len(places), len(causes), dtype=torch.float64, requires_grad=True)
    fit(
        [weights],
        lambda: (
            counts @ torch.nn.functional.cross_entropy(there @ weights, targets, reduction="none")
            + PENALTY / 2 * weights.square().sum()
        ),
        STEPS,
    )
    return causes, kept(weights, places, KEPT)


def kept(weights: torch.Tensor, places: dict[str, int], least: float) -> dict[str, dict[int, float]]:
    """The weights from that size on, by word."""
    found = weights.detach().numpy().round(1)
    rows = {
        word: {int(c): float(found[at, c]) for c in np.flatnonzero(abs(found[at]) >= least)}
        for word, at in places.items()
    }
    return {word: row for word, row in rows.items() if row}


def written(table: Table) -> str:
    """The table as the file holds it."""
    causes, words = table
    first = " ".join(cause or "-" for cause in causes)
    rows = (
        word + "\t" + " ".join(f"{place}:{nats:g}" for place, nats in found.items()) for word, found in words.items()
    )
    return "\n".join([first, *sorted(rows)]) + "\n"


def table_of(corpus: Path) -> str:
    """The table as the corpus and the examples give it."""
    rows = rows_of([corpus, *EXAMPLES])
    return written(learn(rows, [words_of_row(row) for row in rows]))


def write(name: str, text_of: Callable[[Path], str], description: str) -> None:
    """Learns and writes a table, or says whether it is current."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--check", action="store_true", help="compare with the table that is there, write nothing")
    options = parser.parse_args()
    file = Path(rung.diagnosis.__file__).parent / name
    text = text_of(options.corpus)
    if options.check:
        same = file.read_text(encoding="utf-8") == text
        print("the table is what these rows give" if same else "the table is another than these rows give")
        raise SystemExit(not same)
    file.write_text(text, encoding="utf-8")
    print(f"{text.count(chr(10)) - 1} words, {len(text)} bytes")


if __name__ == "__main__":
    write("words.table", table_of, __doc__.splitlines()[0])
