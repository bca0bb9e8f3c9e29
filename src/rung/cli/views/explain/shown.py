"""An explanation where Python prints it, and in a notebook: as ``rung explain`` shows it."""

from __future__ import annotations

import io
from html import escape
from typing import TYPE_CHECKING

from rung.core.text import printable

if TYPE_CHECKING:
    from rung.diagnosis.explain import Explanation

#: Columns of the text, which is not folded.
_WIDTH = 200


def text(found: Explanation) -> str:
    """Return the text of ``rung explain``."""
    from rich.console import Console

    from rung.cli.views.explain import as_text

    out = io.StringIO()
    as_text.show(found, Console(file=out, width=_WIDTH, soft_wrap=True, highlight=False, markup=False, emoji=False))
    return "\n".join(map(printable, out.getvalue().splitlines()))


def html(found: Explanation) -> str:
    """Return the same as HTML."""
    first, *rest = text(found).splitlines()
    return f"<p><b>{escape(first)}</b></p><pre>{escape(chr(10).join(rest))}</pre>"
