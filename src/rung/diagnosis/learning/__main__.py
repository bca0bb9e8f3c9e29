"""Write the learned tables, or check that they are what the data give."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from rung.diagnosis.learning.learn import DATA, learn_causes, learn_fixes, read_rows, with_examples, words_of_row

PACKAGE = Path(__file__).parents[1]


def learn(folder: Path) -> dict[str, str]:
    """Return the text of each table by its file's name."""
    found = read_rows(folder)
    if not found:
        raise SystemExit(f"{folder} holds no explain*.jsonl: run this in a checkout of rung, or name one with --data.")
    rows = with_examples(found)
    words = [words_of_row(row) for row in rows]
    return {"words.table": learn_causes(rows, words).text(), "fixes.table": learn_fixes(rows, words).text()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or compare, as the options say; return 1 if a table is not what the data give."""
    parser = argparse.ArgumentParser(prog="python -m rung.diagnosis.learning", description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the rows (default: tests/data)")
    parser.add_argument("--out", type=Path, default=PACKAGE, help="folder of the tables (default: rung.diagnosis)")
    parser.add_argument("--check", action="store_true", help="compare with the tables that are there, write nothing")
    options = parser.parse_args(arguments)
    stale = []
    for name, text in learn(options.data).items():
        file = options.out / name
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            stale.append(name)
        if not options.check:
            file.write_text(text, encoding="utf-8", newline="\n")
        print(f"{name}: {text.count(chr(10)) - 1} words, {len(text)} bytes, {'new' if name in stale else 'as it was'}")
    if options.check and stale:
        print(f"{' and '.join(stale)}: other than the data give. Run: make generate", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
