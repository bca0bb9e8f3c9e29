"""Show what ``rung devices`` shows of a device: a heading, levels by dtype, every reason, the software that runs
there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rung.cli.views.output import table
from rung.core.text import size
from rung.core.types import Capability, Device, Level, Proof
from rung.hardware import topology

if TYPE_CHECKING:
    from rich.table import Table

    from rung.hardware.catalog import Product
    from rung.hardware.catalog.support import Support

_DTYPES = ("f32", "f16", "bf16", "f64", "int8", "fp8")
_OPS = ("matmul", "attention", "elementwise")
_WORDS = {Level.NATIVE: "yes", Level.EMULATED: "emulated", Level.ABSENT: "no", Level.UNKNOWN: "?"}
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
    names = names if device.real else [name for name in names if name in device.capabilities]
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
