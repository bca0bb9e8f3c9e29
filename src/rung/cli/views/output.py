"""Consoles and progress bars: answers go to stdout, everything about them to stderr; plain when piped."""

from __future__ import annotations

import codecs
import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any, Self, cast

from rung.core.text import printable

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID
    from rich.table import Table


#: Columns of a table that is piped, and those below which a table shows one fact a line.
_PIPED, _NARROW = 200, 60
#: A line of what to do.
_WAY_OUT = re.compile(r" +\d+  ")
#: The fewest letters that a line is folded to.
_NARROWEST = 20


def console(stderr: bool = False) -> Console:
    """A rich console that neither wraps nor colors what is piped, and writes control characters out; ``NO_COLOR`` is
    honored by rich."""
    from rich.console import Console
    from rich.text import Text

    class Plain(Console):
        def render_str(self, text: str, **options: Any) -> Text:
            return super().render_str(printable(text), **options)

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # which ends the command well, as where nothing is printed through rich

    stream = sys.stderr if stderr else sys.stdout
    options: dict[str, Any] = {"highlight": False, "soft_wrap": True, "markup": False, "emoji": False}
    if stream.isatty():
        return Plain(stderr=stderr, **options)
    return Plain(file=cast("IO[str]", _Trimmed(stream)), width=line_width(stream) or _PIPED, **options)


class _Trimmed:
    """A stream that takes the blanks off the ends of lines: tables fill their last column."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write ``text``, a line or more."""
        written: int = self._stream.write("\n".join(line.rstrip(" ") for line in text.split("\n")))
        return written

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def note(message: str) -> None:
    """Print sentences on stderr, wrapped at words on a terminal and whole in a pipe; names in them are anybody's."""
    text = printable(message)
    if sys.stderr.isatty():
        text = wrapped(text, line_width(sys.stderr))
    print(text, file=sys.stderr)


def wrapped(text: str, end: int) -> str:
    """Return a text whose lines end at words before column ``end``; below each its blanks at the start, and two more.

    A numbered way out is left alone: a command that is cut into lines cannot be pasted.
    """
    lines = []
    for line in text.split("\n"):
        indent = line[: len(line) - len(line.lstrip(" "))]
        if len(line) <= end or _WAY_OUT.match(line) or end < len(indent) + _NARROWEST:
            lines.append(line)
        else:
            below = f"{indent}  " if indent else ""
            lines += textwrap.wrap(line, end, subsequent_indent=below, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines)


def table(*headings: str) -> Table:
    """A table without lines: columns apart by two blanks."""
    from rich.table import Table

    class Facts(Table):
        def __rich_console__(self, console: Any, options: Any) -> Any:
            if options.max_width >= _NARROW:
                yield from super().__rich_console__(console, options)
                return
            names = [str(column.header) for column in self.columns]
            for row in zip(*(column._cells for column in self.columns), strict=True):
                yield from _facts(names, [str(cell) for cell in row], options.max_width)

    result = Facts(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for heading in headings:
        result.add_column(heading)
    return result


def columns(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table: columns apart by two blanks, the last one folded where the terminal ends.

    For what must be quick: rich takes longer to load than most answers.
    """
    listed = [tuple(map(printable, row)) for row in (headings, *rows)]
    if 0 < (end := line_width()) < _NARROW:
        return [line for row in listed[1:] for line in _facts(headings, row, end)]
    widths = [max(len(row[at]) for row in listed) for at in range(len(headings) - 1)]
    starts = ["".join(f"{cell:<{width}}  " for cell, width in zip(row[:-1], widths, strict=True)) for row in listed]
    return [line for start, row in zip(starts, listed, strict=True) for line in folded(start, row[-1])]


def folded(start: str, text: str) -> list[str]:
    """The lines of a text behind what stands before its first, or below where there is no room beside; folded where the
    terminal ends, whole when piped."""
    end = line_width()
    if not end or len(start) + len(text) <= end:
        return [(start + text).rstrip()]
    if end < len(start) + _NARROWEST:
        below = textwrap.wrap(text, max(end, _NARROWEST), initial_indent="    ", subsequent_indent="    ")
        return [start.rstrip(), *below]
    indent = " " * len(start)
    return textwrap.wrap(text, end, initial_indent=start, subsequent_indent=indent, break_on_hyphens=False)


def _facts(headings: Sequence[str], row: Sequence[str], end: int) -> list[str]:
    """Return the lines of a row where no table has room: its first cell, and below it one fact a line."""
    lines = textwrap.wrap(row[0], end) or [""]
    for heading, cell in zip(headings[1:], row[1:], strict=True):
        if cell:
            text = f"{heading} {cell}".strip()
            lines += textwrap.wrap(text, end, initial_indent="  ", subsequent_indent="    ")
    return lines


def line_width(stream: Any = None) -> int:
    """Return the columns of a line: ``COLUMNS``, else those of the terminal; 0 where there is none."""
    named = os.environ.get("COLUMNS", "")
    if named.isdigit() and int(named):
        return int(named)
    shown = stream or sys.stdout
    if not shown.isatty():
        return 0
    try:
        return os.get_terminal_size(shown.fileno()).columns
    except (OSError, ValueError):  # a stream that only looks like a terminal
        return shutil.get_terminal_size().columns


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


class Bar:
    """Shows bytes done of bytes in all under a label, or, ``counted``, steps; appears with the first update."""

    def __init__(self, quiet: bool, counted: bool) -> None:
        self._shown, self._counted = not quiet and sys.stderr.isatty(), counted
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def update(self, label: str, done: int, total: int) -> None:
        """Moves the bar; it goes away when all is done."""
        if not self._shown or total <= 0:
            return
        progress = self._progress or self._start(label, total)
        assert self._task is not None
        progress.update(self._task, description=label, completed=done, total=total)
        if done >= total:
            self._stop()

    def _start(self, label: str, total: int) -> Progress:
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn() if self._counted else DownloadColumn(binary_units=True),
            TimeRemainingColumn(),
        )
        progress = Progress(*columns, console=console(stderr=True), transient=True)
        progress.start()
        self._progress, self._task = progress, progress.add_task(label, total=total)
        return progress

    def _stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def bar(quiet: bool, counted: bool = False) -> Bar:
    """A bar to use in a ``with`` block."""
    return Bar(quiet, counted)
