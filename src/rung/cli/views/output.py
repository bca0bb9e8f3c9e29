"""Consoles: answers go to stdout, everything about them to stderr; plain when piped."""

from __future__ import annotations

import codecs
import json
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from rung.core.text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

#: The fewest letters that a line is folded to.
_NARROWEST = 20


def console(stderr: bool = False) -> Console:
    """A rich console that neither wraps nor colours what is piped, and writes control characters out; ``NO_COLOR`` is
    honoured by rich."""
    from rich.console import Console
    from rich.text import Text

    class Plain(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(printable(text), **options)

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # which ends the command well, as where nothing is printed through rich

    stream = sys.stderr if stderr else sys.stdout
    wide = None if stream.isatty() else 200
    return Plain(stderr=stderr, highlight=False, soft_wrap=True, width=wide, markup=False, emoji=False)


def note(said: str) -> None:
    """A sentence on stderr; names in it are anybody's."""
    print(printable(said), file=sys.stderr)


def table(*headings: str) -> Table:
    """A table without lines: columns apart by two blanks."""
    from rich.table import Table

    made = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for heading in headings:
        made.add_column(heading)
    return made


def columns(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table: columns apart by two blanks, the last one folded where the terminal ends.

    For what must be quick: rich takes longer to load than most answers.
    """
    listed = [tuple(map(printable, row)) for row in (headings, *rows)]
    widths = [max(len(row[at]) for row in listed) for at in range(len(headings) - 1)]
    starts = ["".join(f"{cell:<{width}}  " for cell, width in zip(row[:-1], widths, strict=True)) for row in listed]
    return [line for start, row in zip(starts, listed, strict=True) for line in folded(start, row[-1])]


def folded(start: str, text: str) -> list[str]:
    """The lines of a text behind what stands before its first, or below where there is no room beside; folded where the
    terminal ends, whole when piped."""
    end = _end()
    if not end or len(start) + len(text) <= end:
        return [(start + text).rstrip()]
    if end < len(start) + _NARROWEST:
        below = textwrap.wrap(text, max(end, _NARROWEST), initial_indent="    ", subsequent_indent="    ")
        return [start.rstrip(), *below]
    indent = " " * len(start)
    return textwrap.wrap(text, end, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False)


def _end() -> int:
    """Where lines of the terminal end; 0 where none is."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(as_json(value, indent=2))


def as_json(value: Any, indent: int | None = None) -> str:
    """JSON as stdout can carry it: what is not ASCII is written out where that is not in UTF-8."""
    text = json.dumps(value, indent=indent, ensure_ascii=False, default=str)
    try:
        text.encode()
        whole = codecs.lookup(sys.stdout.encoding or "utf-8").name == "utf-8"
    except UnicodeEncodeError:  # half of a pair
        whole = False
    return text if whole else json.dumps(value, indent=indent, default=str)
