"""How often ``rung explain`` is right, on threads whose cause was established.

usage: python benchmarks/explain.py CORPUS.jsonl [--held] [--misses]

A row of the corpus holds id, repository, log, environment, cause, fixes, confidence (of the label) and hard_group.
Repositories whose name's SHA-256 is divisible by five were left unread while the signatures were written: ``--held``
reports them alone, without it they are left out. Signatures and rules are written by hand, so nothing is fitted to rows
but one number, the softmax temperature; its error is measured for every repository with the temperature fitted to the
others.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from rung.diagnosis import score
from rung.diagnosis.explain import Explanation, explain

Row = dict[str, Any]
Pair = tuple[Row, Explanation]
OUTSIDE = "not-a-compatibility-problem"
TEMPERATURES = (1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.4)


def held(row: Row) -> bool:
    """Whether a row belongs to the fifth that was left unread."""
    return int(hashlib.sha256(row["repository"].encode()).hexdigest(), 16) % 5 == 0


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


def grouped_calibration(rows: list[Row]) -> tuple[float, dict[float, float]]:
    """The error with each repository judged by the temperature that suits the others, and the error by temperature."""
    kept, by_temperature = score.TEMPERATURE, {}
    for temperature in TEMPERATURES:
        score.TEMPERATURE = temperature
        by_temperature[temperature] = answers(rows)
    score.TEMPERATURE = kept
    judged: list[Pair] = []
    for repository in {row["repository"] for row in rows}:
        others = {
            t: calibration_error(p for p in pairs if p[0]["repository"] != repository)
            for t, pairs in by_temperature.items()
        }
        best = min(others, key=lambda t: others[t])
        judged += [pair for pair in by_temperature[best] if pair[0]["repository"] == repository]
    return calibration_error(judged), {t: calibration_error(pairs) for t, pairs in by_temperature.items()}


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
    rows = [json.loads(line) for line in options.corpus.read_text(encoding="utf-8").splitlines() if line.strip()]
    rows = [row for row in rows if held(row) == options.held]
    explain("warm")  # the first call reads the tables
    started = time.perf_counter()
    pairs = answers(rows)
    print(f"{len(rows)} rows, {(time.perf_counter() - started) / max(len(rows), 1) * 1e3:.1f} ms each")
    report(pairs)
    if not options.held:
        error, by_temperature = grouped_calibration([row for row in rows if row["confidence"] != "low"])
        listed = ", ".join(f"{t}: {e:.3f}" for t, e in by_temperature.items())
        print(f"calibration error, temperature fitted to the other repositories  {error:.3f}  ({listed})")
    if options.misses:
        for row, answer in sorted(pairs, key=lambda pair: str(pair[0]["cause"])):
            if not right(row, answer):
                print(f"  {row['cause']} ({row['confidence']}) → {answer.cause} {answer.confidence:.2f}  {row['id']}")


if __name__ == "__main__":
    main()
