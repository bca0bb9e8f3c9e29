"""The fallback matrix: which rung every op stands on, on every architecture of the catalog, in every format."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from rung.core.types import Case, Climb, Device
from rung.formats import FORMATS
from rung.hardware import catalog
from rung.ops import LADDERS, example_dtypes, example_formats, examples

_HEAD = """# Fallbacks

Which rung every op stands on, on every product of the catalog, in every format: `rung ladder --matrix` prints this
page from the ladders and the catalog, and a test compares them. A product has the newest torch that still carries
code for it. Products whose answers are the same stand together; below each table is why the rungs above were not
taken. `rung ladder linear q4_k --device p2200` shows one of them.
"""


@dataclass(frozen=True)
class Row:
    """One line of a table: an op, a class of shapes, what is computed in, the formats, and the outcome of the climb."""

    op: str
    case: str
    dtype: str
    formats: tuple[str, ...]
    rung: str
    refusals: tuple[tuple[str, str], ...]


def formats_of(op: str) -> tuple[str, ...]:
    """The formats that an op is asked for in."""
    return example_formats(op) or tuple(FORMATS)


def climbs(device: Device) -> Iterator[tuple[str, Case, Climb]]:
    """Every climb on a device, with what its case is called: all ops, formats, shapes and dtypes."""
    for op, ladder in LADDERS.items():
        for format in formats_of(op):
            for dtype in example_dtypes(op):
                for label, case in examples(op, format, dtype):
                    yield label, case, ladder.climb(device, case)


def page() -> str:
    """The matrix as Markdown."""
    groups: dict[tuple[Row, ...], list[str]] = {}
    for key, device in _devices().items():
        groups.setdefault(_rows(device), []).append(key)
    parts = [_HEAD]
    for rows, keys in groups.items():
        parts += [f"\n## {', '.join(keys)}\n\n{_chips(keys)}\n\n", *_table(rows)]
    return "".join(parts)


def _chips(keys: Iterable[str]) -> str:
    """Return the chips of these architectures, in the words of their rows."""
    rows = [catalog.architectures()[key] for key in keys]
    return "; ".join(f"{row.generation}: {row.chips}" for row in rows) + "."


def _devices() -> Mapping[str, Device]:
    """A device for each architecture that a product has."""
    found: dict[str, Device] = {}
    for product in catalog.products():
        if product.arch not in found:
            found[product.arch] = catalog.device(product.name)
    return found


def _rows(device: Device) -> tuple[Row, ...]:
    found: dict[tuple[str, str, str, str, tuple[tuple[str, str], ...]], list[str]] = {}
    for label, case, climb in climbs(device):
        refusals = tuple((r.rung, _plain(r.reason, device, case)) for r in climb.refusals)
        rung = climb.rung.name if climb.rung else "none"
        found.setdefault((case.op, label, case.dtype, rung, refusals), []).append(case.format)
    return tuple(
        Row(op, label, dtype, tuple(formats), rung, refusals)
        for (op, label, dtype, rung, refusals), formats in found.items()
    )


def _plain(reason: str, device: Device, case: Case) -> str:
    """The reason without what differs between devices and formats that have the same answer."""
    kind = "a GPU" if device.kind != "cpu" else "a CPU"
    architecture = str(device.details.get("isa", device.arch))
    words = {
        device.name: "it",
        f"runs on cpu, not on {device.kind}": f"not on {kind}",
        f"runs on webgpu, not on {device.kind}": "for devices of WebGPU",
        f"runs on cpu and webgpu, not on {device.kind}": "for a CPU and devices of WebGPU",
        f"for {case.format}": "for that format",
    }
    for word, plain in {**words, architecture: "it"}.items():
        reason = reason.replace(word, plain)
    return reason


def _table(rows: Iterable[Row]) -> Iterator[str]:
    yield "| op | case | computes in | formats | rung |\n|---|---|---|---|---|\n"
    reasons: dict[tuple[str, str], None] = {}
    for row in rows:
        yield f"| {row.op} | {row.case} | {row.dtype} | {_formats(row)} | `{row.rung}` |\n"
        reasons.update(dict.fromkeys(row.refusals))
    yield "\n"
    for rung in dict.fromkeys(name for name, _ in reasons):
        yield f"- `{rung}`: {'; '.join(reason for name, reason in reasons if name == rung)}\n"


def _formats(row: Row) -> str:
    known = formats_of(row.op)
    if row.formats == known:
        return " ".join(known) if example_formats(row.op) else "all"
    missing = [name for name in known if name not in row.formats]
    return f"all but {' '.join(missing)}" if len(missing) < len(row.formats) else " ".join(row.formats)
