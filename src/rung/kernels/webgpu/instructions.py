"""Instructions that shaders take for a weight, as ``benchmarks/webgpu_instructions.py`` counts them in machine code."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

_TABLE = Path(__file__).with_name("instructions.table")


@functools.cache
def _counted() -> dict[str, float]:
    lines = (line.split() for line in _TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    return {name: float(count) for name, count in lines}


def of(format: str) -> float:
    """Return the instructions a weight of a format, decoded and multiplied with one row in float32: the most of AMD's
    families. Of a format that was not counted, those of the one that takes most."""
    known = _counted()
    return known.get(format.split(":")[0], max(known.values()))


def write(counts: Mapping[str, float]) -> None:
    """Write the table anew from the counts by format."""
    rows = [f"{name.split(':')[0]} {count:.2f}\n" for name, count in counts.items()]
    head = "# instructions a weight by format; python benchmarks/webgpu_instructions.py --write\n"
    _TABLE.write_text(head + "".join(rows), encoding="utf-8")
