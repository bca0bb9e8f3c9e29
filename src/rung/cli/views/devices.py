"""Devices as a list, a screen and a verdict, and where a notebook prints one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from rung.cli.views.output import table
from rung.core.text import size
from rung.core.types import Capability, Device, Level, Proof
from rung.hardware import occupants, topology
from rung.hardware.families.webgpu import SOFTWARE
from rung.kernels import instructions
from rung.planning.answers.recommend import CONTEXT, FORMAT, largest

if TYPE_CHECKING:
    from rich.table import Table

    from rung.hardware.catalog import Product
    from rung.hardware.catalog.support import Support


_TABLE_DTYPES = ("f32", "f16", "bf16", "f64", "int8", "fp8")
_OPS = ("matmul", "attention", "elementwise")
_SHORT_WORDS = {Level.NATIVE: "yes", Level.EMULATED: "emulated", Level.ABSENT: "no", Level.UNKNOWN: "?"}
_PROOFS = {
    Proof.PROBE: "measured here",
    Proof.TABLE: "catalog",
    Proof.DECLARED: "declared",
    Proof.NONE: "",
}


def heading(device: Device) -> str:
    parts = [f"{device.id}  {device.name}"]
    if device.kind == "cpu":
        parts.append(topology.words(device.details))
    elif device.arch:
        parts.append(device.arch)
    if device.free is not None and device.memory:
        parts.append(f"{size(device.free)} free of {size(device.memory)}")
    else:
        parts.append(size(device.memory) if device.memory else "memory unknown")
    if "driver" in device.software:
        parts.append(f"driver {device.software['driver']}")
    return " · ".join(parts)


def speed(device: Device) -> str:
    """Where the figures come from, and how fast memory is read."""
    rate = (device.bandwidth or 0.0) / 1e9
    read = f"reads {rate:,.0f} GB/s" if rate >= 1000 else f"reads {rate:.3g} GB/s" if rate else ""
    if not device.real:
        row = "checked" if device.details.get("catalogue") == "checked" else "not checked"
        build = f" with {device.details['build']}" if "build" in device.details else ""
        where = f"not in this machine; from the catalog ({row}){build}"
    elif any(c.proof is Proof.PROBE for c in device.capabilities.values()):
        where = "measured here"
    elif any(c.proof is Proof.TABLE for c in device.capabilities.values()):
        row = "checked" if device.details.get("catalogue") == "checked" else "not checked"
        where = f"from the catalog ({row}), not measured here: rung devices --probe"
    elif "notes" in device.details:
        where = ""
    else:
        where = "not measured yet: rung devices --probe"
    return " · ".join(part for part in (read, where) if part)


def levels(device: Device) -> Table:
    """Ops by dtypes; what was not computed here stands in parentheses. The last row: 10^9 operations a second."""
    rows = table("", *_TABLE_DTYPES)
    for op in _OPS:
        rows.add_row(op, *(_word(device.capability(f"{op}.{dtype}")) for dtype in _TABLE_DTYPES))
    if device.peaks:
        rows.add_row("Gop/s", *(_rate(device.peaks.get(dtype)) for dtype in _TABLE_DTYPES))
    return rows


def reasons(device: Device) -> Table:
    """Every capability, its level, the proof and the reason."""
    rows = table("", "", "rate", "proof", "")
    names = [f"{op}.{dtype}" for op in _OPS for dtype in _TABLE_DTYPES]
    names = names if device.real else [name for name in names if name in device.capabilities]
    names += sorted(name for name in device.capabilities if name not in names)
    for name in names:
        found = device.capability(name)
        rate = _rate(device.peaks.get(name.removeprefix("matmul."))) if name.startswith("matmul.") else ""
        rows.add_row(
            name, _SHORT_WORDS[found.level], f"{rate} Gop/s" if rate else "", _PROOFS[found.proof], found.source
        )
    return rows


def _word(found: Capability) -> str:
    word = _SHORT_WORDS[found.level]
    return word if found.proof is Proof.PROBE or found.level is Level.UNKNOWN else f"({word})"


def _rate(rate: float | None) -> str:
    if rate is None:
        return ""
    return f"{rate / 1e9:.3g}" if rate < 1e12 else f"{rate / 1e9:,.0f}"


def instruction_sets(device: Device) -> str:
    """The instruction sets that are there, and in parentheses those that nobody has run yet."""
    names: Sequence[Capability] = [
        c for c in device.capabilities.values() if c.name.startswith("isa.") and c.name != "isa.kernels"
    ]
    there = [
        c.name.removeprefix("isa.") if c.proof is Proof.PROBE else f"({c.name.removeprefix('isa.')})"
        for c in names
        if c.level is Level.NATIVE
    ]
    return f"instruction sets: {' '.join(there)}" if there else ""


def kernels(device: Device) -> str:
    """Which level of CPU instructions kernels are compiled for, and how that is known; empty where there are none."""
    found = device.capability("isa.kernels")
    if device.kind != "cpu" or found.level is not Level.NATIVE or not found.detail:
        return ""
    known = "proved" if found.proof is Proof.PROBE else _PROOFS[found.proof]
    return f"CPU kernels: level {found.detail}, {known}"


def remarks(device: Device) -> Iterable[str]:
    """Lines about the device as a whole: what its name left open, what is known of it, what could not be found out."""
    yield from (str(device.details[name]) for name in ("note", "about", "notes") if name in device.details)
    if device.real and device.kind == "cpu" and any(map(os.environ.get, ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES"))):
        from rung.kernels.cpu import target

        yield from target.doubts()


def without_webgpu(found: Iterable[Device]) -> str:
    """Why no device is reached through WebGPU, as a line; empty where one is, or where cards are simulated."""
    if any(device.kind == "webgpu" or not device.real for device in found):
        return ""
    from rung.hardware.families import webgpu

    return f"WebGPU: {webgpu.absence()}"


def software(found: Sequence[Support]) -> Table:
    """The packages with what runs of each, and the reason of all but yes."""
    rows = table("software", "", "runs", "")
    for row in found:
        rows.add_row(f"{row.package} {row.version}", row.feature, row.runs, row.reason)
    return rows


def in_full(device: Device, found: Sequence[Support], doubts: Sequence[str]) -> dict[str, Any]:
    """The JSON of one device: capabilities by name, what of released software runs there, and all else it says."""
    whole = device.to_json()
    whole["packages"] = whole.pop("software")
    whole["build"] = device.details.get("build")
    whole["capabilities"] = {
        name: {"level": c.level.value, "proof": c.proof.value, "source": c.source}
        for name, c in device.capabilities.items()
    }
    if level := device.capability("isa.kernels").detail:
        whole["kernels"] = {"level": level, "proof": device.capability("isa.kernels").proof.value}
    whole["software"] = [row.to_json() for row in found]
    whole["doubts"] = list(doubts)
    return whole


def listing(products: Sequence[Product]) -> Iterator[str]:
    """A line for each product of the catalog; plain, because a table of hundreds of rows takes rich 0.3 s."""
    rows = [("name", "architecture", "memory", "GB/s", "f32 Gop/s", "f16", "")]
    for product in products:
        rates = product.rates()
        sizes = " / ".join(f"{s / 2**30:g}" for s in product.sizes) + " GB"
        figures = (f"{product.bandwidth / 1e9:g}", _rate(rates["f32"]), _rate(rates.get("f16")))
        rows.append((product.name, product.arch, sizes, *figures, product.status))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


_WORDS = {Level.NATIVE: "native", Level.EMULATED: "emulated", Level.ABSENT: "absent", Level.UNKNOWN: "not known"}
_VERDICT_DTYPES = ("f32", "f16", "bf16", "int8", "fp8")


def verdict(device: Device) -> list[str]:
    """Return the sentence about numbers and units, and the one about memory and models, a line each."""
    return [numbers(device), fits(device)]


def numbers(device: Device) -> str:
    """Return ``f32 native, f16/bf16 emulated, fp8 absent, no tensor cores``."""
    found: dict[Level, list[str]] = {}
    for dtype in _VERDICT_DTYPES:
        found.setdefault(device.capability(f"matmul.{dtype}").level, []).append(dtype)
    parts = [f"{'/'.join(names)} {_WORDS[level]}" for level, names in found.items()]
    return ", ".join([*parts, *_units(device), *_level(device)])


def _level(device: Device) -> list[str]:
    """Return the level of CPU instructions that kernels are compiled for, where a CPU's is known."""
    level = instructions.level(device)
    return [f"kernels at level {level}"] if level else []


def fits(device: Device) -> str:
    """Return ``4.9 GB free: dense models up to 4B in q4_k with 2,048 tokens``."""
    free = device.free if device.free is not None else device.memory
    if not free:
        return "memory unknown"
    most = largest(device)
    if not most:
        return f"{size(free)} free: no language model fits in {FORMAT}"
    return f"{size(free)} free: dense models up to {most.upper()} in {FORMAT} with {CONTEXT:,} tokens"


def _units(device: Device) -> list[str]:
    """Return the matrix units of a card by dtype; nothing where the catalog has no word on them."""
    name = "tensor cores" if device.kind == "cuda" else "matrix units"
    known = [c for c in device.capabilities.values() if c.name.startswith("units.") and c.level is not Level.UNKNOWN]
    there = [c.name.removeprefix("units.") for c in known if c.level is not Level.ABSENT]
    if not known or device.kind == "cpu":
        return []
    return [f"{name} for {'/'.join(there)}"] if there else [f"no {name}"]


_BAR = 24
#: How many processes are named, and the share of the memory below which one is not.
_NAMED, _LEAST = 3, 0.01


def state(device: Device) -> list[str]:
    """Return a line each about memory, load, the processes that hold it and the models that would still fit."""
    lines = [_memory(device), _load(device), _holders(device), _fits(device)]
    return [line for line in lines if line]


def _memory(device: Device) -> str:
    if device.free is None or not device.memory:
        return ""
    used = max(device.memory - device.free, 0)
    full = round(_BAR * used / device.memory)
    return f"memory   [{'#' * full}{'.' * (_BAR - full)}] {size(used)} used, {size(device.free)} free"


def _load(device: Device) -> str:
    """Return how many programs were ready to run in the last minute; drivers of cards do not say it."""
    if device.kind != "cpu" or not hasattr(os, "getloadavg"):
        return ""
    try:
        busy = os.getloadavg()[0]
    except OSError:
        return ""
    cores = int(device.details.get("cores", 1))
    word = "idle" if busy < 0.1 * cores else "busy" if busy < cores else "more work than cores"
    return f"load     {busy:.1f} in the last minute, {word}"


def _holders(device: Device) -> str:
    largest = [p for p in occupants.of(device) if p["bytes"] >= _LEAST * (device.memory or 1)]
    named = [f"{process['name']} {size(process['bytes'])} (pid {process['pid']})" for process in largest[:_NAMED]]
    return f"held by  {', '.join(named)}" if named else ""


def _fits(device: Device) -> str:
    known = device.free is not None and device.memory and device.arch != SOFTWARE
    return f"fits     {fits(device).partition(': ')[2]}" if known else ""


_SHOWN_DTYPES = ("f32", "f16", "bf16", "int8")


def text(device: Device) -> str:
    """Return its heading, its verdict and how fast memory is read, a line each."""
    return "\n".join(_lines(device))


def html(device: Device) -> str:
    """Return the same as HTML."""
    first, *rest = map(escape, _lines(device))
    return f"<p><b>{first}</b><br>{'<br>'.join(rest)}</p>"


def verdict_line(device: Device) -> str:
    """Return ``multiplies f32 native, f16 and bf16 emulated, int8 absent``."""
    found: dict[Level, list[str]] = {}
    for dtype in _SHOWN_DTYPES:
        found.setdefault(device.capability(f"matmul.{dtype}").level, []).append(dtype)
    return "multiplies " + ", ".join(f"{' and '.join(names)} {_WORDS[level]}" for level, names in found.items())


def _lines(device: Device) -> list[str]:
    lines = [heading(device), verdict_line(device), speed(device), instruction_sets(device), kernels(device)]
    return [*filter(None, lines), f"more: rung devices {device.id}"]
