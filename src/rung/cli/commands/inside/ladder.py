"""``rung ladder OP FORMAT``: which implementations of an op run here, best first, and why not the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from rung.cli import options
from rung.cli.views.output import console, print_json, table

if TYPE_CHECKING:
    from rung.core.types import Device


def ladder(
    op: Annotated[
        str, typer.Argument(help="linear, embedding, attention, decode_step, sample or rasterize.")
    ] = "linear",
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
    from rung.cli.views.fallbacks import formats_of, page
    from rung.formats import get
    from rung.hardware.select import select_device

    if matrix:
        print(page(), end="")
        return
    _check_op(op)
    where = select_device(device, software)
    tell_taken([device])
    name = get(format or ("q4_0" if "q4_0" in formats_of(op) else formats_of(op)[0])).name
    computed = _choose_dtype(op, name, dtype, where)
    found = _judge(op, name, computed, where)
    if json:
        print_json({"op": op, "format": name, "device": where.id, "dtype": computed, "rungs": found})
        return
    rows = table("case", "rung", "", "")
    for row in found:
        rows.add_row(row["case"], row["rung"], row["state"], row["reason"])
    console().print(f"{op} {name} on {where.name} ({where.id}) in {computed}")
    console().print(rows)


def _check_op(op: str) -> None:
    """Raise ``UsageError`` for a name that no op has."""
    from rung.core.errors import UsageError
    from rung.core.text import did_you_mean
    from rung.ops import LADDERS

    if op not in LADDERS:
        raise UsageError(
            f"There is no op {op!r}.{did_you_mean(op, LADDERS)}",
            [f"ops: {', '.join(LADDERS)}"],
            ["rung ladder linear q4_k"],
            code="name-unknown",
        )


def _choose_dtype(op: str, name: str, dtype: str | None, where: Device) -> str:
    """Return the dtype to compute in: ``dtype``, or what a plan takes on that device. Raise ``UsageError``."""
    from rung.core.errors import UsageError
    from rung.ops import example_dtypes
    from rung.planning.weight_plan import compute_dtype

    possible = example_dtypes(op)
    if dtype is not None and dtype not in possible:
        raise UsageError(
            f"{op} is not computed in {dtype!r}.",
            [f"it is computed in: {', '.join(possible)}"],
            [f"rung ladder {op} {name} --dtype {possible[0]}"],
        )
    return dtype or (compute_dtype(where, lossless=name == "f32") if len(possible) > 1 else "f32")


def _judge(op: str, name: str, dtype: str, where: Device) -> list[dict[str, Any]]:
    """Return each implementation of every case, best first, with its state on that device and the reason."""
    from rung.ops import LADDERS, examples

    found = []
    for label, case in examples(op, name, dtype):
        taken = False
        for rung in LADDERS[op].rungs:
            verdict = rung.verdict(case, where)
            state = "not here" if not verdict else "ready" if taken else "chosen"
            taken = taken or bool(verdict)
            found.append({"case": label, "rung": rung.name, "state": state, "reason": verdict.reason})
    return found
