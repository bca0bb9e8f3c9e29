"""The page of each cause, made from the data: printed by ``rung explain CAUSE``, kept in ``docs/errors/``.

After each change of the data: python -m rung.diagnosis.pages docs/errors
"""

from __future__ import annotations

import sys
from pathlib import Path

from rung.diagnosis.fixes.fixing import Cause, causes
from rung.diagnosis.fixes.wording import template, wordings
from rung.diagnosis.match import signatures
from rung.diagnosis.tables import compile_tables

_EXAMPLES = 8


def page(cause: Cause) -> str:
    """The page as Markdown: what it is, what to do, how it reads, what tells it from others."""
    texts = {row.label: template(row.text) for row in wordings() if row.plain}
    known = [s for s in signatures() if cause.label in s.causes]
    examples = [s for s in known if max(s.causes, key=s.causes.__getitem__) == cause.label] or known
    lines = [f"# {cause.label}", "", cause.sentence, "", cause.means, "", "## What to do", ""]
    lines += [f"{number}. `{label}`: {texts[label]}" for number, label in enumerate(cause.fixes, 1)]
    if examples:
        lines += ["", "## How it reads", ""]
        for signature in examples[:_EXAMPLES]:
            lines += ["```", signature.example, "```", f"{signature.means} ({signature.source})", ""]
    else:
        lines.append("")
    lines += ["## What tells it from others", ""]
    return "\n".join([*lines, f"    {template(cause.tell)}", ""])


def write(folder: Path) -> None:
    """Writes all pages and their list."""
    folder.mkdir(parents=True, exist_ok=True)
    listed = [f"- [{cause.label}]({cause.label}.md): {cause.sentence}" for cause in causes().values()]
    origin = "Made from `src/rung/diagnosis` by `python -m rung.diagnosis.pages docs/errors`."
    (folder / "README.md").write_text(
        "\n".join(["# What errors are about", "", origin, "", *listed, ""]), encoding="utf-8"
    )
    for cause in causes().values():
        (folder / f"{cause.label}.md").write_text(page(cause), encoding="utf-8")


if __name__ == "__main__":
    (Path(__file__).parent / "tables.json").write_text(compile_tables(), encoding="utf-8")
    write(Path(sys.argv[1]))
