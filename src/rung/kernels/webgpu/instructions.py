"""Instructions that shaders take for a weight, as ``benchmarks/webgpu_instructions.py`` counts them in machine code."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

_TABLE = Path(__file__).with_name("instructions.table")


@functools.cache
def _counted() -> dict[str, tuple[float, float]]:
    lines = (line.split() for line in _TABLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#"))
    return {name: (float(floats), float(integers)) for name, floats, integers in lines}


def of(format: str, int8: bool = False) -> float:
    """Return the instructions a weight of a format, decoded and multiplied with one row in float32: the most of AMD's
    families. Of a format that was not counted, those of the one that takes most. ``int8``: with activations as signed
    bytes, the most of the families that multiply four of them at once."""
    known = _counted()
    name = format.split(":")[0]
    return known[name][int8] if name in known else max(each[int8] for each in known.values())


def write(counts: Mapping[str, float], int8: bool = False) -> None:
    """Write the counts of some formats into one column of the table."""
    _counted.cache_clear()
    known = dict(_counted())
    for name, count in counts.items():
        floats, integers = known.get(name.split(":")[0], (count, count))
        known[name.split(":")[0]] = (floats, count) if int8 else (count, integers)
    rows = [f"{name} {floats:.2f} {integers:.2f}\n" for name, (floats, integers) in known.items()]
    head = (
        "# instructions a weight by format, in float32 and in int8; python benchmarks/webgpu_instructions.py --write\n"
    )
    _TABLE.write_text(head + "".join(rows), encoding="utf-8")
