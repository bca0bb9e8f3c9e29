"""How often ``rung explain`` is right on public threads, by repository: the gate of what is learned and of every rule.

usage: python benchmarks/explain.py [--rules] [--misses]

The rows are those of ``tests/data/explain*.jsonl`` that name a repository. The tables are learned again for every fifth
of the repositories, without its rows; signatures, rules and orders of fixes are written by hand and are the same for
all, and threads were read when they were written. ``tests/data/unread.jsonl`` is not asked.

Before are the same rows, answered by the code of commit 579ca48, which learned from them and from 919 more that are not
in the repository: 161 threads of a corpus and 758 texts of posters. Exits with 1 where a bar is missed. ``--rules``
says of every rule and order of fixes on how many threads it holds and what would be wrong without it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rung.diagnosis import model
from rung.diagnosis import rules as rules_module
from rung.diagnosis.evidence import Rule, Scene
from rung.diagnosis.explain import Explanation, explain, rules_of, scene
from rung.diagnosis.fixes import fixing
from rung.diagnosis.fixes.wording import Speaker
from rung.diagnosis.learning.learn import (
    Learned,
    Row,
    learn_causes,
    learn_fixes,
    read_rows,
    with_examples,
    words_of_row,
)

FOLDS = 5
OUTSIDE = "not-a-compatibility-problem"
#: Of the old code on these rows, in percent, and how much less is let pass.
CAUSE, FIX, NEAR, CAUSE_LESS, FIX_LESS = 84.9, 90.2, 94.6, 0.7, 1.0
#: The expected calibration error of the old code, and the largest that is let pass.
ERROR_BEFORE, ERROR = 0.041, 0.07


@dataclass(frozen=True)
class Fold:
    """Threads of a fifth of the repositories, and what is learned without them."""

    rows: Sequence[Row]
    causes: Learned
    fixes: Learned

    def use(self) -> None:
        """Let ``rung explain`` answer by these tables."""
        causes, fixes = table(self.causes), table(self.fixes)
        model.word_table = lambda: causes
        fixing.fix_table = lambda: fixes


def table(learned: Learned) -> model.Table:
    """Return a table as it is read from its file."""
    first, *lines = learned.text().splitlines()
    return tuple("" if label == "-" else label for label in first.split()), model.Rows(lines)


def folds() -> Iterator[Fold]:
    """Yield the fifths, one after the other."""
    rows = with_examples(read_rows())
    word_sets = [words_of_row(row) for row in rows]
    named = sorted({row["repository"] for row in rows if "repository" in row})
    for number in range(FOLDS):
        out = set(named[number::FOLDS])
        kept = [index for index, row in enumerate(rows) if row.get("repository") not in out]
        others, theirs = [rows[index] for index in kept], [word_sets[index] for index in kept]
        tests = [row for row in rows if row.get("repository") in out]
        yield Fold(tests, learn_causes(others, theirs), learn_fixes(others, theirs))


def calibration_error(answers: Sequence[tuple[Row, Explanation]]) -> float:
    """Return the expected calibration error over ten equal bins of confidence."""
    bins: dict[int, float] = {}
    for row, answer in answers:
        index = min(9, int(answer.confidence * 10))
        bins[index] = bins.get(index, 0.0) + answer.confidence - (answer.cause == row["cause"])
    return sum(map(abs, bins.values())) / len(answers)


def fixed(row: Row, answer: Explanation) -> bool:
    """Say whether one of the first two fixes is a right one."""
    return any(fix.label in row["fixes"] for fix in answer.fixes[:2])


def report(answers: Sequence[tuple[Row, Explanation]]) -> bool:
    """Print a line for each figure; return whether all bars are reached."""
    flagged = [pair for pair in answers if pair[1].cause == OUTSIDE]
    outside = [pair for pair in answers if pair[0]["cause"] == OUTSIDE]
    right = _share(answers, lambda row, answer: answer.cause == row["cause"])
    helped = _share(answers, fixed)
    error = calibration_error(answers)
    near = _share(answers, lambda row, a: row["cause"] in [a.cause, *(item.cause for item in a.alternatives[:2])])
    print(f"{'':34}{'rows':>6}{'now':>10}{'before':>8}{'least':>8}")
    for name, rows, share, before, least in (
        ("right cause", answers, right, f"{CAUSE:.1f}", f"{CAUSE - CAUSE_LESS:.1f}"),
        ("a right fix among the first two", answers, helped, f"{FIX:.1f}", f"{FIX - FIX_LESS:.1f}"),
        ("the cause among the first three", answers, near, f"{NEAR:.1f}", ""),
        ("outside the domain, precision", flagged, _share(flagged, _right), "", ""),
        ("outside the domain, recall", outside, _share(outside, _right), "", ""),
    ):
        print(f"{name:34}{len(rows):>6}{f'({share:.1f}%)':>10}{before:>8}{least:>8}")
    print(f"{'calibration error':34}{len(answers):>6}{error:>9.3f}{ERROR_BEFORE:>9.3f}{ERROR:>8.2f}")
    print(f"{'automatic with a wrong cause':34}{sum(a.automatic and not _right(r, a) for r, a in answers):>15}")
    return right >= CAUSE - CAUSE_LESS and helped >= FIX - FIX_LESS and error <= ERROR


def _right(row: Row, answer: Explanation) -> bool:
    return bool(answer.cause == row["cause"])


def _share(pairs: Sequence[tuple[Row, Explanation]], good: Callable[[Row, Explanation], bool]) -> float:
    return 100 * sum(good(row, answer) for row, answer in pairs) / max(1, len(pairs))


class Rules:
    """Count what each rule and each order of fixes changes."""

    def __init__(self) -> None:
        self.rules: dict[str, list[int]] = {}
        self.orders: dict[int, list[int]] = {}

    def add(self, row: Row) -> None:
        """Count one thread, by the tables in use."""
        found = scene([row["log"].encode("utf-8", "replace")], row["environment"])
        rules = rules_of(found)
        shares = _shares(found, rules)
        cause = next(iter(shares), None)
        for rule in rules:
            other = next(iter(_shares(found, [one for one in rules if one is not rule])), None)
            shown = cause == row["cause"] and rule.causes.get(str(cause), 0) > 0
            change = (cause == row["cause"]) - (other == row["cause"])
            _count(self.rules, rule.id, (1, change > 0, change < 0, shown))
        for index, (named, when, _) in enumerate(fixing.FIX_ORDER):
            if shares.get(named, 0) >= 0.1 and when(found):
                rest = tuple(one for at, one in enumerate(fixing.FIX_ORDER) if at != index)
                change = _helps(row, found, rules, shares, fixing.FIX_ORDER) - _helps(row, found, rules, shares, rest)
                _count(self.orders, index, (1, change > 0, change < 0))

    def show(self) -> None:
        """Print a line for each rule and each order, and those that never hold."""
        print("\nrule: threads it holds on, wrong without it, right without it, evidence for the right cause")
        for rule in rules_module.RULES:
            print(f"{rule.id:34}" + "".join(f"{count:>6}" for count in self.rules.get(rule.id, [0, 0, 0, 0])))
        print("\norder of fixes: threads it holds on, wrong without it, right without it")
        for index, (named, _, order) in enumerate(fixing.FIX_ORDER):
            counts = "".join(f"{count:>6}" for count in self.orders.get(index, [0, 0, 0]))
            print(f"{named + ': ' + ' '.join(order):80}{counts}")


def _count(counts: dict[Any, list[int]], key: Any, more: Sequence[int]) -> None:
    counts[key] = [one + other for one, other in zip(counts.get(key, [0] * len(more)), more, strict=True)]


def _shares(found: Scene, rules: Sequence[Rule]) -> Mapping[str, float]:
    return model.probabilities(model.weights(found.hits, rules), model.votes(model.words_of(found, rules)))


def _helps(row: Row, found: Scene, rules: Sequence[Rule], shares: Mapping[str, float], orders: Sequence[Any]) -> bool:
    whole, fixing.FIX_ORDER = fixing.FIX_ORDER, tuple(orders)
    try:
        fixes = fixing.fixes_for(shares, found, model.words_of(found, rules), Speaker(found, next(iter(shares))))
    finally:
        fixing.FIX_ORDER = whole
    return any(fix.label in row["fixes"] for fix in fixes[:2])


def main() -> int:
    """Learn five times, answer and report; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rules", action="store_true", help="say of every rule and order of fixes what it changes")
    parser.add_argument("--misses", action="store_true", help="list what was wrong, by cause")
    options = parser.parse_args()
    answers: list[tuple[Row, Explanation]] = []
    rules = Rules()
    for fold in folds():
        fold.use()
        answers += [(row, explain(row["log"], row["environment"])) for row in fold.rows]
        for row in fold.rows if options.rules else ():
            rules.add(row)
    good = report(answers)
    if options.rules:
        rules.show()
    for row, answer in sorted(answers, key=lambda pair: str(pair[0]["cause"])) if options.misses else ():
        if not _right(row, answer):
            print(f"  {row['cause']} -> {answer.cause} {answer.confidence:.2f}  {row['repository']}")
    return not good


if __name__ == "__main__":
    sys.exit(main())
