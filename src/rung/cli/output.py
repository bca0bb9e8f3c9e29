"""Consoles: answers go to stdout, everything about them to stderr; plain when piped."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def console(stderr: bool = False) -> Console:
    """A rich console that neither wraps nor colours what is piped; ``NO_COLOR`` is honoured by rich."""
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    wide = None if stream.isatty() else 200
    return Console(stderr=stderr, highlight=False, soft_wrap=True, width=wide, markup=False, emoji=False)


def table(*headings: str) -> Table:
    """A table without lines: columns apart by two blanks."""
    from rich.table import Table

    made = Table(box=None, padding=(0, 2, 0, 0), header_style="bold", pad_edge=False)
    for heading in headings:
        made.add_column(heading)
    return made


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False, default=str))
