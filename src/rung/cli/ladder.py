"""``rung ladder OP FORMAT``: which implementations of an op run here, best first, and why not the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from rung.cli import options
from rung.cli.output import console, print_json, table

if TYPE_CHECKING:
    from rung.core.types import Case


def ladder(
    op: Annotated[str, typer.Argument(help="linear, embedding, attention or decode_step.")],
    format: Annotated[str, typer.Argument(help="A format of rung formats; for attention that of the cache.")] = "q4_0",
    device: options.Reasoned = None,
    software: options.Software = None,
    json: options.Json = False,
) -> None:
    """Show which implementations of an op run, and why not.

    Best first: chosen, ready, or the reason why not.
    """
    from rung.cli.common import pick_device
    from rung.core.errors import UsageError
    from rung.core.text import did_you_mean
    from rung.formats import get
    from rung.ops import LADDERS

    if op not in LADDERS:
        raise UsageError(
            f"There is no op {op!r}.{did_you_mean(op, LADDERS)}",
            [f"ops: {', '.join(LADDERS)}"],
            ["rung ladder linear q4_k"],
        )
    where = pick_device(device, software)
    name = get(format).name
    found = []
    for label, case in _cases(op, name):
        taken = False
        for rung in LADDERS[op].rungs:
            verdict = rung.verdict(case, where)
            state = "not here" if not verdict else "ready" if taken else "chosen"
            taken = taken or bool(verdict)
            found.append({"case": label, "rung": rung.name, "state": state, "reason": verdict.reason})
    if json:
        print_json({"op": op, "format": name, "device": where.id, "rungs": found})
        return
    rows = table("case", "rung", "", "")
    for row in found:
        rows.add_row(row["case"], row["rung"], row["state"], row["reason"])
    console().print(f"{op} {name} on {where.name} ({where.id})")
    console().print(rows)


def _cases(op: str, format: str) -> list[tuple[str, Case]]:
    """The classes of shapes that the rungs of an op are chosen for."""
    from rung.core.types import Case
    from rung.core.value import FrozenDict

    if op == "linear":
        return [(f"{m} {'row' if m == 1 else 'rows'}", Case(op, format, "f32", (m, 4096, 4096))) for m in (1, 256)]
    if op == "attention":
        return [
            (f"{q} {'query' if q == 1 else 'queries'}", Case(op, format, "f32", (q, 512, 8, 8, 128))) for q in (1, 256)
        ]
    if op == "embedding":
        return [("look up", Case(op, format, "f32", (1, 32000, 4096)))]
    options = FrozenDict({"head_dim": 128, "packings": ("r16",), "devices": 1})
    return [("token", Case(op, format, "f32", (32, 4096, 11008, 32000), options))]
