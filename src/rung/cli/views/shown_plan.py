"""A plan where it is printed, in a notebook, and as ``rung plan`` shows it: what runs, and what was refused and why."""

from __future__ import annotations

from html import escape

from rung.cli.common import context_words, part_lines
from rung.cli.views.output import columns
from rung.cli.views.page import table
from rung.core.text import rate, size
from rung.core.types import Candidate, Plan
from rung.formats.table import grade
from rung.planning.speed import at_reading_speed

HEADINGS = ("format", "computes in", "device", "memory", "tokens/s", "prompt/s", "quality", "")


def text(plan: Plan) -> str:
    """Return its line, what is stored otherwise, and the candidates."""
    return "\n".join([_line(plan), *part_lines(plan), *candidates(plan)])


def html(plan: Plan) -> str:
    """Return the same as HTML."""
    rows = ["".join(f"<td>{escape(cell)}</td>" for cell in _row(each)) for each in plan.candidates]
    return f"<p><b>{escape(_line(plan))}</b></p>{table(HEADINGS, (f'<tr>{row}</tr>' for row in rows))}"


def candidates(plan: Plan) -> list[str]:
    """Return the lines of a table of what was considered."""
    return columns(HEADINGS, map(_row, plan.candidates))


def _line(plan: Plan) -> str:
    return f"{plan.model} · {'; '.join(plan.reasons)} · {plan.memory_words(named=True)} · {context_words(plan)}"


def _row(candidate: Candidate) -> tuple[str, ...]:
    return (
        candidate.format,
        candidate.dtype,
        " + ".join(p.device for p in candidate.placements),
        " + ".join(size(p.memory.total) for p in candidate.placements),
        *(rate(each) if candidate.timed else "-" for each in (candidate.decode_rate, candidate.prefill_rate)),
        grade(candidate.error_db),
        _level(candidate) if candidate.verdict else f"no: {candidate.verdict.reason}",
    )


def _level(candidate: Candidate) -> str:
    """``slow`` for what a person waits for, as in ``rung check``."""
    return "yes" if candidate.timed and at_reading_speed(candidate.decode_rate) else "slow"
