"""``rung ladder OP FORMAT``: which implementations of an op run here, best first, and why not the others."""

from __future__ import annotations

from typing import Annotated

import typer

from rung.cli import options
from rung.cli.views.output import console, print_json, table


def ladder(
    op: Annotated[str, typer.Argument(help="Op: linear, embedding, attention, decode_step or rasterize.")] = "linear",
    format: Annotated[
        str | None,
        typer.Argument(
            help="A format of rung formats; for attention the cache's. By default q4_0, or f32 where no weight is.",
            show_default=False,
        ),
    ] = None,
    device: options.Reasoned = None,
    software: options.Software = None,
    dtype: Annotated[
        str | None,
        typer.Option(
            "--dtype",
            help="Compute in f32, f16 or bf16; by default in what a plan takes on that device.",
            show_default=False,
        ),
    ] = None,
    matrix: Annotated[
        bool, typer.Option("--matrix", help="Print the rung of every op on the whole catalog, as a page of Markdown.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Show which implementations of an op run, and why not.

    Best first: chosen, ready, or the reason why not.
    """
    from rung.cli.common import tell_taken
    from rung.cli.views.fallbacks import DTYPES, cases, formats_of, page
    from rung.core.errors import UsageError
    from rung.core.text import did_you_mean
    from rung.formats import get
    from rung.hardware.select import select_device
    from rung.ops import LADDERS
    from rung.planning.weight_plan import compute_dtype

    if matrix:
        print(page(), end="")
        return
    if op not in LADDERS:
        raise UsageError(
            f"There is no op {op!r}.{did_you_mean(op, LADDERS)}",
            [f"ops: {', '.join(LADDERS)}"],
            ["rung ladder linear q4_k"],
            code="name-unknown",
        )
    where = select_device(device, software)
    tell_taken([device])
    name = get(format or ("q4_0" if "q4_0" in formats_of(op) else formats_of(op)[0])).name
    possible = DTYPES.get(op, ("f32",))
    if dtype is not None and dtype not in possible:
        raise UsageError(
            f"{op} is not computed in {dtype!r}.",
            [f"it is computed in: {', '.join(possible)}"],
            [f"rung ladder {op} {name} --dtype {possible[0]}"],
        )
    computed = dtype or (compute_dtype(where, lossless=name == "f32") if len(possible) > 1 else "f32")
    found = []
    for label, case in cases(op, name, computed):
        taken = False
        for rung in LADDERS[op].rungs:
            verdict = rung.verdict(case, where)
            state = "not here" if not verdict else "ready" if taken else "chosen"
            taken = taken or bool(verdict)
            found.append({"case": label, "rung": rung.name, "state": state, "reason": verdict.reason})
    if json:
        print_json({"op": op, "format": name, "device": where.id, "dtype": computed, "rungs": found})
        return
    rows = table("case", "rung", "", "")
    for row in found:
        rows.add_row(row["case"], row["rung"], row["state"], row["reason"])
    console().print(f"{op} {name} on {where.name} ({where.id}) in {computed}")
    console().print(rows)
