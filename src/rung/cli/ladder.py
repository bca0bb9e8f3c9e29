"""``rung ladder OP FORMAT``: which implementations of an op run here, best first, and why not the others."""

from __future__ import annotations

from typing import Annotated

import typer

from rung.cli import options
from rung.cli.output import console, print_json, table


def ladder(
    op: Annotated[str, typer.Argument(help="linear, embedding, attention or decode_step.")] = "linear",
    format: Annotated[str, typer.Argument(help="A format of rung formats; for attention that of the cache.")] = "q4_0",
    device: options.Reasoned = None,
    software: options.Software = None,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="Print the rung of every op on the whole catalogue, as a page of Markdown.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Show which implementations of an op run, and why not.

    Best first: chosen, ready, or the reason why not.
    """
    from rung.cli.common import pick_device
    from rung.cli.fallbacks import cases, page
    from rung.core.errors import UsageError
    from rung.core.text import did_you_mean
    from rung.formats import get
    from rung.ops import LADDERS

    if matrix:
        print(page(), end="")
        return
    if op not in LADDERS:
        raise UsageError(
            f"There is no op {op!r}.{did_you_mean(op, LADDERS)}",
            [f"ops: {', '.join(LADDERS)}"],
            ["rung ladder linear q4_k"],
        )
    where = pick_device(device, software)
    name = get(format).name
    found = []
    for label, case in cases(op, name):
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
