"""Show what ``rung setup`` shows: a line for each package, its command below, then what there is to know."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rung.software.companions import platform_words
from rung.software.setup import Setup

if TYPE_CHECKING:
    from rung.core.types import Device
    from rung.software.companions import Choice, Host

_WIDE = 120


def lines(setup: Setup) -> Iterator[str]:
    """The whole answer."""
    for host in setup.hosts:
        yield _host(host)
    rows = (setup.torch, *setup.packages)
    left = max(len(row.package) for row in rows), max(len(row.version or "no") for row in rows)
    for row in rows:
        yield from _choice(row, left)
        if row is setup.torch:
            yield from _needs(setup)
    for variable in setup.environment:
        yield f"Set it before the program starts:  export {variable}"
    if newer := next((refused for refused in setup.refused if refused.reason.startswith("asks for")), None):
        yield from wrapped(f"Not {newer.build}: it {newer.reason}.")
    for note in setup.notes:
        yield from wrapped(note)


def _host(host: Host) -> str:
    parts = [f"{host.card} ({host.target})" if host.row.kind != "cpu" else host.card]
    parts += [platform_words(host.platform), f"Python {host.python}"]
    if host.row.kind == "cuda":
        parts.append(f"driver {host.driver or 'not known'}")
    return " · ".join(parts)


def _choice(row: Choice, left: tuple[int, int]) -> Iterator[str]:
    head = f"{row.package:{left[0]}}  {row.version or 'no':{left[1]}}  "
    yield from wrapped(row.reason, head, " " * len(head))
    if row.command:
        yield f"    {row.command}"


def _needs(setup: Setup) -> Iterator[str]:
    for text in setup.needs:
        yield f"    needs first: {text}"
    if setup.python:
        yield f"    python{setup.python} -m venv ENV    then, in it, the line above"
    if setup.otherwise and setup.otherwise.command:
        yield f"    as it is, on the processor:  {setup.otherwise.command}"


def verified(
    python: str, torch: str, setup: Setup, devices: Sequence[Device], proven: Sequence[tuple[str, Any]]
) -> Iterator[str]:
    """Yield what the probe proved of the ``torch`` that is installed now."""
    real = next((device for device in devices if device.real), None)
    where = real.name if real else "the processor"
    if not proven:
        yield f"Not verified: the probe needs Python 3.11, this is {python}. Verify it so:"
        yield '    python -c "import torch; print(torch.__version__, torch.ones(2, 2) @ torch.ones(2, 2))"'
        return
    right = [dtype for dtype, outcome in proven if outcome.ok and not outcome.value]
    if right:
        yield f"Verified: torch {torch} multiplies {', '.join(right)} on {where}, compared with float64."
    for dtype, outcome in proven:
        if dtype not in right:
            yield from wrapped(f"{dtype} does not: {outcome.value or outcome.error}")
    if real is None:
        yield f"{setup.hosts[0].card} is not here: nothing is proven about it."


def wrapped(text: str, first: str = "", later: str = "    ") -> list[str]:
    """The text in lines as wide as the terminal, 120 at most."""
    width = min(_WIDE, shutil.get_terminal_size((_WIDE, 0)).columns) if sys.stdout.isatty() else _WIDE
    return textwrap.wrap(text, width, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)
