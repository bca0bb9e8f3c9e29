"""``rung devices``: the devices of this machine and what each can do, with the proof."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from rung.cli import options
from rung.cli.output import console, print_json, table
from rung.core.text import count, size
from rung.core.types import Capability, Device, Level, Proof

if TYPE_CHECKING:
    from rich.table import Table

_DTYPES = ("f32", "f16", "bf16", "f64", "int8", "fp8")
_OPS = ("matmul", "attention", "elementwise")
_WORDS = {Level.NATIVE: "yes", Level.EMULATED: "emulated", Level.ABSENT: "no", Level.UNKNOWN: "?"}
_PROOFS = {
    Proof.PROBE: "measured here",
    Proof.TABLE: "catalogue",
    Proof.DECLARED: "declared",
    Proof.NONE: "",
}


def devices(
    name: Annotated[
        str, typer.Argument(help="One device, with all reasons: cpu, cuda:0 ..., or a card of the catalogue: p2200.")
    ] = "",
    probe: Annotated[bool, typer.Option("--probe", help="Measure now what each device can do (about 10 s).")] = False,
    json: options.Json = False,
) -> None:
    """List the devices of this machine and what each can compute: measured, from the catalogue, or unknown."""
    found = chosen(name)
    if probe:
        found = [_probed(device) for device in found]
    if json:
        print_json([device.to_json() for device in found])
        return
    out = console()
    for number, device in enumerate(found):
        if number:
            out.print()
        out.print(_heading(device))
        if line := _speed(device):
            out.print(line)
        if note := str(device.details.get("notes", "")):
            out.print(note)
        if name:
            out.print(reasons(device))
            continue
        out.print(levels(device))
        if line := _instruction_sets(device):
            out.print(line)
    if not name:
        out.print(f"\nWhy: rung devices {found[0].id if len(found) == 1 else 'ID'}")


def chosen(name: str) -> list[Device]:
    """All devices here, or the one called ``name``: an id, a kind, else a card of the catalogue.

    Raises ``UnknownDevice``.
    """
    from rung.hardware import catalog, detect

    here = detect.devices()
    if not name:
        return list(here)
    for device in here:
        if name in (device.id, device.kind):
            return [device]
    return [catalog.device(name)]


def _probed(device: Device) -> Device:
    from rung.run.probe import probe

    with console(stderr=True).status(f"{device.id}: starting") as status:
        return probe(device, fresh=True, progress=lambda what: status.update(f"{device.id}: {what}"))


def _heading(device: Device) -> str:
    parts = [f"{device.id}  {device.name}"]
    if device.kind == "cpu":
        parts.append(count(int(device.details.get("cores", 1)), "core"))
    elif device.arch:
        parts.append(device.arch)
    if device.free is not None and device.memory:
        parts.append(f"{size(device.free)} free of {size(device.memory)}")
    else:
        parts.append(size(device.memory) if device.memory else "memory unknown")
    if "driver" in device.software:
        parts.append(f"driver {device.software['driver']}")
    return " · ".join(parts)


def _speed(device: Device) -> str:
    """Where the figures come from, and how fast memory is read."""
    read = f"reads {device.bandwidth / 1e9:.3g} GB/s" if device.bandwidth else ""
    if not device.real:
        row = "checked" if device.details.get("catalogue") == "checked" else "not checked"
        where = f"not in this machine; from the catalogue ({row})"
    elif any(c.proof is Proof.PROBE for c in device.capabilities.values()):
        where = "measured here"
    elif any(c.proof is Proof.TABLE for c in device.capabilities.values()):
        row = "checked" if device.details.get("catalogue") == "checked" else "not checked"
        where = f"from the catalogue ({row}), not measured here: rung devices --probe"
    elif "notes" in device.details:
        where = ""
    else:
        where = "not measured yet: rung devices --probe"
    return " · ".join(part for part in (read, where) if part)


def levels(device: Device) -> Table:
    """Ops by dtypes; what was not computed here stands in parentheses. The last row: 10^9 operations a second."""
    rows = table("", *_DTYPES)
    for op in _OPS:
        rows.add_row(op, *(_word(device.capability(f"{op}.{dtype}")) for dtype in _DTYPES))
    if device.peaks:
        rows.add_row("Gop/s", *(_rate(device.peaks.get(dtype)) for dtype in _DTYPES))
    return rows


def reasons(device: Device) -> Table:
    """Every capability, its level, the proof and the reason."""
    rows = table("", "", "rate", "proof", "")
    names = [f"{op}.{dtype}" for op in _OPS for dtype in _DTYPES]
    names += sorted(name for name in device.capabilities if name not in names)
    for name in names:
        found = device.capability(name)
        rate = _rate(device.peaks.get(name.removeprefix("matmul."))) if name.startswith("matmul.") else ""
        rows.add_row(name, _WORDS[found.level], f"{rate} Gop/s" if rate else "", _PROOFS[found.proof], found.source)
    return rows


def _word(found: Capability) -> str:
    word = _WORDS[found.level]
    return word if found.proof is Proof.PROBE or found.level is Level.UNKNOWN else f"({word})"


def _rate(rate: float | None) -> str:
    if rate is None:
        return ""
    return f"{rate / 1e9:.3g}" if rate < 1e12 else f"{rate / 1e9:,.0f}"


def _instruction_sets(device: Device) -> str:
    """The instruction sets that are there, and in parentheses those that nobody has run yet."""
    names: Sequence[Capability] = [c for c in device.capabilities.values() if c.name.startswith("isa.")]
    there = [
        c.name.removeprefix("isa.") if c.proof is Proof.PROBE else f"({c.name.removeprefix('isa.')})"
        for c in names
        if c.level is Level.NATIVE
    ]
    return f"instruction sets: {' '.join(there)}" if there else ""
