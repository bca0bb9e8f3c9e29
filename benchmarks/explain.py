"""How often ``rung explain`` is right, on threads whose cause was established.

usage: python benchmarks/explain.py CORPUS [--held] [--misses]

CORPUS is a file of rows or a folder of such files (``*.jsonl``). A row holds id, repository, log, environment, cause,
fixes, confidence (of the label) and hard_group. Repositories whose name's SHA-256 is divisible by five were left unread
while the signatures were written: ``--held`` reports them alone, without it they are left out, and the rows of
``tests/data/explain.jsonl`` that name a repository are reported beside. What words say for causes and fixes is learned
again for every fifth of the repositories, without its rows; signatures, rules and orders of fixes are written by hand
and are the same for all. ``tests/data/unread.jsonl`` holds threads of which nothing is learned: they are reported
apart, with ``--held`` those of the repositories held back.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import explain_fixes as fixes
from explain_words import EXAMPLES, Row, Table, held, learn, lines, rows_of, words_of_row
from rung.diagnosis import helping, words
from rung.diagnosis.explain import Explanation, explain

Pair = tuple[Row, Explanation]
OUTSIDE = "not-a-compatibility-problem"
FOLDS = 5
#: Threads that were collected to judge by, of which nothing is learned; a fifth of them are of repositories held back.
UNREAD = EXAMPLES[0].parent / "unread.jsonl"


def share(pairs: Iterable[Pair], good: Callable[[Row, Explanation], bool]) -> str:
    """``n of m (x %)``."""
    found = [good(row, answer) for row, answer in pairs]
    return f"{sum(found)} of {len(found)} ({sum(found) / len(found):.1%})" if found else "none"


def right(row: Row, answer: Explanation) -> bool:
    """Whether the cause is right."""
    return bool(answer.cause == row["cause"])


def among_three(row: Row, answer: Explanation) -> bool:
    """Whether the right cause is the first or one of the next two."""
    return row["cause"] in [answer.cause, *(item.cause for item in answer.alternatives[:2])]


def fixed(row: Row, answer: Explanation) -> bool:
    """Whether one of the first two fixes is a right one."""
    return any(fix.label in row["fixes"] for fix in answer.fixes[:2])


def calibration_error(pairs: Iterable[Pair]) -> float:
    """Expected calibration error over ten equal bins of confidence."""
    bins: dict[int, list[tuple[float, bool]]] = {}
    for row, answer in pairs:
        bins.setdefault(min(9, int(answer.confidence * 10)), []).append((answer.confidence, right(row, answer)))
    count = sum(len(found) for found in bins.values())
    return sum(abs(sum(c - r for c, r in found)) for found in bins.values()) / max(count, 1)


def answers(rows: list[Row]) -> list[Pair]:
    """Every row with its explanation."""
    return [(row, explain(row["log"], row["environment"])) for row in rows]


def answers_by_fold(rows: list[Row]) -> list[Pair]:
    """Every row with its explanation by words that were learned without its repository."""
    others = [row for row in rows_of(EXAMPLES) if "repository" not in row]
    named = sorted({row["repository"] for row in rows})
    seen = {id(row): words_of_row(row) for row in (*rows, *others)}
    pairs = []
    for fold in range(FOLDS):
        out = set(named[fold::FOLDS])
        kept = [row for row in rows if row["repository"] not in out] + others
        words._table = told(learn(kept, [seen[id(row)] for row in kept]))
        kept = fixes.told(kept)
        orders = [fixes.order_of_row(row) for row in kept]
        helping._table = told(fixes.learn(kept, [seen[id(row)] for row in kept], orders))
        pairs += answers([row for row in rows if row["repository"] in out])
    place = {id(row): number for number, row in enumerate(rows)}
    return sorted(pairs, key=lambda pair: place[id(pair[0])])


def told(table: Table) -> Callable[[], words.Table]:
    """What reads a learned table, in place of the one that is shipped."""
    labels, learned = table
    weights = {word: " ".join(f"{c}:{n:g}" for c, n in found.items()) for word, found in learned.items()}
    return lambda: (tuple(labels), weights)


def report(pairs: list[Pair]) -> None:
    """Prints a line for each bar."""
    sure = [pair for pair in pairs if pair[0]["confidence"] != "low"]
    hard = [pair for pair in sure if pair[0]["hard_group"]]
    said = [pair for pair in pairs if pair[1].cause == OUTSIDE]
    outside = [pair for pair in pairs if pair[0]["cause"] == OUTSIDE]
    print("cause, label high or medium     ", share(sure, right))
    print("  hard groups                   ", share(hard, right))
    print("  label low                     ", share([p for p in pairs if p[0]["confidence"] == "low"], right))
    print("among the first three           ", share(sure, among_three))
    print("a right fix among the first two ", share(sure, fixed))
    print("outside the domain, precision   ", share(said, right))
    print("outside the domain, recall      ", share(outside, right))
    print(f"calibration error                {calibration_error(sure):.3f}")
    print("automatic with a wrong cause    ", sum(a.automatic and not right(r, a) for r, a in pairs))


def main() -> None:
    """Reads the corpus and reports."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--held", action="store_true", help="the fifth left unread, alone")
    parser.add_argument("--misses", action="store_true", help="list what was wrong, by cause")
    options = parser.parse_args()
    rows = [row for row in lines(options.corpus) if held(row) == options.held]
    found = [row for file in EXAMPLES for row in lines(file) if "repository" in row and not options.held]
    found = [{"id": row["repository"], "confidence": "medium", "hard_group": None} | row for row in found]
    explain("warm")  # the first call reads the tables
    started = time.process_time()
    pairs = answers(rows)
    print(f"{len(rows)} rows, {(time.process_time() - started) / max(len(rows), 1) * 1e3:.1f} ms each")
    report(pairs)
    unread = [row for row in lines(UNREAD) if held(row) or not options.held]
    judged = answers(unread)
    print(f"\n{len(unread)} threads of which nothing was learned")
    report(judged)
    if options.held:
        print("\nboth")
        report(pairs + judged)
    if found:
        pairs = answers_by_fold(rows + found)
        print("\nwords learned without the row's repository: the corpus")
        report(pairs[: len(rows)])
        print("\nwords learned without the row's repository: other threads")
        report(pairs[len(rows) :])
    if options.misses:
        for row, answer in sorted(pairs, key=lambda pair: str(pair[0]["cause"])):
            if not right(row, answer):
                print(f"  {row['cause']} ({row['confidence']}) → {answer.cause} {answer.confidence:.2f}  {row['id']}")


if __name__ == "__main__":
    main()
