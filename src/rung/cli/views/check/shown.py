"""An answer of ``rung.check`` where it is printed, and in a notebook."""

from __future__ import annotations

from html import escape

from rung.cli.views.check import as_html, as_text
from rung.planning.check_result import Answer

#: Answers about more devices than these, as about the whole catalog, show the best choice of each.
_FEW = 16


def text(answer: Answer) -> str:
    """Return the text of ``rung check``."""
    return as_text.text(answer, fits=len(answer.best_by_device) > _FEW)


def html(answer: Answer) -> str:
    """Return the tables of its page, for a notebook."""
    return f"<p><b>{escape(answer.sentence)}</b></p>{as_html.model(answer)}"
