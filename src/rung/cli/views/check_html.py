"""The page of ``rung check --html``: devices by formats, in one file that asks no network and runs no script."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from rung.cli.views.check_facts import facts
from rung.core.errors import UsageError
from rung.core.files import write_whole
from rung.core.text import rate, size
from rung.planning.answer import Unanswered

if TYPE_CHECKING:
    from rung.planning.answer import Answer, Choice

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: #1a1a1a;
  background: #fff }
h1 { font-size: 1.3rem } h2 { font-size: 1.1rem; margin-top: 2rem }
.scroll { overflow-x: auto } table { border-collapse: collapse }
th, td { text-align: left; vertical-align: top; padding: .35rem .6rem; border: 1px solid #d0d0d0 }
thead th, tbody th { background: #f4f4f4; font-weight: 600 }
td.yes { background: #dff3e0 } td.slow { background: #fff3cd } td.no { background: #f8dcdc }
td.best { outline: 2px solid #222; outline-offset: -2px }
summary { cursor: pointer } dl { display: grid; grid-template-columns: auto 1fr; gap: 0 .8rem; margin: .4rem 0 }
dt { color: #555 } dd { margin: 0 } code { background: #eee; padding: .1rem .3rem; overflow-wrap: anywhere }
@media (prefers-color-scheme: dark) {
  body { color: #e8e8e8; background: #181818 } thead th, tbody th { background: #262626 }
  th, td { border-color: #444 } td.yes { background: #1d3a21 } td.slow { background: #423813 }
  td.no { background: #472222 } td.best { outline-color: #eee } dt { color: #aaa } code { background: #333 }
}
"""


def page(answers: Sequence[Answer | Unanswered]) -> str:
    """The whole page as HTML; a table for each model, or why there is none."""
    body = "".join(_unanswered(one) if isinstance(one, Unanswered) else _model(one) for one in answers)
    title = escape(", ".join(answer.model for answer in answers))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>rung check: {title}</title><style>{_STYLE}</style></head>\n"
        f"<body><h1>rung check</h1>\n<p>Open a cell for its memory, speed and command. The framed cell of a row is the "
        f"best there.</p>\n{body}</body></html>\n"
    )


def write(path: Path, text: str) -> None:
    """Writes the page, whole or not at all. Raises ``UsageError`` where the file cannot be written."""
    data = text.encode("utf-8", "replace")  # names of files need not be text
    try:
        if path.exists() and not path.is_file():  # /dev/stdout
            path.write_bytes(data)
        else:
            write_whole(path, data)
    except OSError as error:
        raise UsageError(
            f"--html {path} cannot be written: {error.strerror or error}", ways_out=["--html check.html"]
        ) from error


def _model(answer: Answer) -> str:
    formats = list(dict.fromkeys(choice.column for choice in answer.choices))
    rows: dict[str, dict[str, tuple[int, Choice]]] = {device: {} for device in answer.best_by_device}
    for number, choice in enumerate(answer.choices):
        rows[choice.device][choice.column] = (number, choice)
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in formats)
    lines = []
    for device, cells in rows.items():
        best = answer.best_by_device[device]
        inner = "".join(_cell(*cells[name], best) if name in cells else "<td></td>" for name in formats)
        lines.append(f'<tr><th scope="row">{escape(device)}</th>{inner}</tr>')
    heading = f"{escape(answer.model)} · {answer.about}"
    table = f'<table><thead><tr><th scope="col">device</th>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table>'
    return f'<h2>{heading}</h2>\n<div class="scroll">{table}</div>\n{_help(answer)}'


def _unanswered(one: Unanswered) -> str:
    facts = "".join(f"<li>{escape(fact)}</li>" for fact in (*one.facts, *one.ways_out))
    return f"<h2>{escape(one.model)}</h2>\n<p>{escape(one.cause)}</p><ul>{facts}</ul>\n"


def _cell(number: int, choice: Choice, best: int | None) -> str:
    """One choice: its level as a word, and what is behind it on a click."""
    decode = choice.speed.decode_tokens_per_second
    words = f"{choice.level} · {size(choice.memory.total)}" + (f" · {rate(decode)} tokens/s" if decode else "")
    kind = choice.level + (" best" if number == best else "")
    items = "".join(
        f"<dt>{escape(name)}</dt><dd>{'<br>'.join(map(escape, pieces))}</dd>" for name, pieces in facts(choice).items()
    )
    command = f"<p><code>{escape(choice.command)}</code></p>" if choice.command else ""
    marked = "best: " if number == best else ""
    return f'<td class="{kind}"><details><summary>{marked}{words}</summary><dl>{items}</dl>{command}</details></td>'


def _help(answer: Answer) -> str:
    if not answer.relaxations:
        return ""
    items = "".join(
        f"<li>{escape(one.change)}" + (f" <code>{escape(one.command)}</code>" if one.command else "") + "</li>"
        for one in answer.relaxations
    )
    return f"<p>Nothing runs. What would help:</p><ul>{items}</ul>\n"
