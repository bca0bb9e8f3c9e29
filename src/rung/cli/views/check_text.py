"""The text of ``rung check``: a table of the choices, or each in detail; what is best, and what would help."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rung.cli import check_scene
from rung.cli.views.check_facts import error, facts, gist
from rung.cli.views.output import columns, folded
from rung.core.text import printable, rate, size

if TYPE_CHECKING:
    from rung.planning.answer import Answer, Choice, Pass

#: A blank at which no line is folded, and the most letters of what stays whole.
_UNBROKEN, _SHORT = "\u00a0", 24


def show(answer: Answer, fits: bool = False, details: bool = False) -> None:
    """The answer as a table or in detail, the best choice, its command and its memory last."""
    lines = [f"{answer.model} · {answer.about}"]
    for one in answer.passes:
        lines += _pass_lines(one)
    shown = _per_device(answer) if fits else answer.choices
    if details:
        lines += _details(shown)
    elif check_scene.is_answer(answer):
        lines += check_scene.table(shown)
    else:
        lines += _table(shown)
    print(printable("\n".join([*lines, *_conclusion(answer, fits, details)])))


def _details(shown: Sequence[Choice]) -> list[str]:
    """A paragraph a choice. A command is never folded, so that it can be copied."""
    told = [facts(choice) for choice in shown]
    wide = max((len(name) for found in told for name in (*found, "command")), default=0)
    lines = []
    for choice, found in zip(shown, told, strict=True):
        lines.append(f"{choice.column} on {choice.device}: {choice.level}")
        for name, pieces in found.items():
            lines += _pieces(f"  {name:<{wide}}  ", pieces)
        lines += [f"  {'command':<{wide}}  {choice.command}"] if choice.command else []
    return lines


def _pieces(start: str, pieces: Sequence[str]) -> list[str]:
    """Short pieces stay whole where lines are folded: a name with its size."""
    whole = [piece.replace(" ", _UNBROKEN) if len(piece) <= _SHORT else piece for piece in pieces]
    return [line.replace(_UNBROKEN, " ") for line in folded(start, " · ".join(whole))]


def _table(shown: Sequence[Choice]) -> list[str]:
    """One line a choice; no columns of speeds where nothing has one, as of training."""
    headings = ("format", "device", "memory", "free", "", "tokens/s", "prompt/s", "error", "")
    rows = [_row(choice) for choice in shown]
    kept = [at for at, name in enumerate(headings) if not name.endswith("/s") or any(row[at] for row in rows)]
    return columns([headings[at] for at in kept], [[row[at] for at in kept] for row in rows]) if rows else []


def _row(choice: Choice) -> tuple[str, ...]:
    speeds = (choice.speed.decode_tokens_per_second, choice.speed.prefill_tokens_per_second)
    return (
        choice.format,
        choice.device,
        size(choice.memory.total),
        size(choice.free),
        choice.level,
        *("" if each is None else rate(each) for each in speeds),
        error(choice),
        choice.verdict.reason,
    )


def _pass_lines(one: Pass) -> list[str]:
    """What a traced pass takes, and which operations take most of it."""
    dear = ", ".join(f"{found['name']} {_operations(found['flops'])}" for found in one.operations[:3] if found["flops"])
    return [
        f"{one.component}: one pass is {one.calls:,} operations, {_operations(one.flops)}"
        + (f" ({dear})" if dear else ""),
        f"  {size(one.bytes)} read and written, at most {size(one.activations)} of activations at once",
    ]


def _operations(count: int) -> str:
    """``1.2 TFLOP``."""
    for unit, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}FLOP"
    return f"{count} FLOP"


def _per_device(answer: Answer) -> list[Choice]:
    """The best choice of every device that runs it, smallest memory first."""
    found = [answer.choices[index] for index in answer.best_by_device.values() if index is not None]
    return sorted(found, key=lambda choice: (choice.level == "slow", choice.free))


def _conclusion(answer: Answer, fits: bool, details: bool) -> list[str]:
    lines = _smallest(answer, details) if fits else _best(answer, details)
    way = next((choice.in_the_way for choice in answer.choices if choice.in_the_way), ())
    if way and not fits:
        held = ", ".join(f"{p['name']} ({p['pid']}) {size(p['bytes'])}" for p in way)
        lines.append(f"It would fit on the idle device; in the way now: {held}")
    return lines + _help(answer)


def _smallest(answer: Answer, details: bool) -> list[str]:
    """The smallest card of the catalogue that runs it."""
    able = _per_device(answer)
    lines = [f"{len(able)} of {len(answer.best_by_device)} cards of the catalogue run it."]
    if able:
        lines.append(f"→ the smallest: {able[0].device}, {able[0].format}, {size(able[0].memory.total)}")
        lines += [] if details else _pieces("  ", gist(able[0]))
    return lines


def _best(answer: Answer, details: bool) -> list[str]:
    """The best choice of each device with its command, and what its memory is made of where nobody said so yet."""
    lines = []
    for device, index in answer.best_by_device.items():
        if index is None:
            lines.append(f"→ {device}: nothing runs")
            continue
        best = answer.choices[index]
        lines.append(f"→ {device}: {best.format}" + (f"   {best.command}" if best.command else ""))
        lines += [] if details else _pieces("  ", gist(best))
    return lines


def _help(answer: Answer) -> list[str]:
    """The smallest changes with which something would run."""
    if not answer.relaxations:
        return []
    said = [help.change + (f"   {help.command}" if help.command else "") for help in answer.relaxations]
    return ["What would help", *(f"  {number}  {one}" for number, one in enumerate(said, 1))]
