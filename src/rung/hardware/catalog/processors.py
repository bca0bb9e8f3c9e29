"""The processors of the catalog: designs of cores (``cores.table``), and what is sold (``processors.table``)."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rung.core.text import GB
from rung.core.value import FrozenDict
from rung.hardware.catalog import tables

#: Where between the clock of all cores by the maker and that of one core they stay together while they multiply: an
#: i5-9500 does better, a laptop of 15 W worse.
_TURBO = 0.4
_MB = 2**20


@dataclass(frozen=True)
class Core:
    """One row of ``cores.table``: its architecture, instructions of inner loops and f32 operations a clock."""

    name: str
    arch: str
    per_clock: float
    f32: float
    source: str
    note: str


@dataclass(frozen=True)
class Cores:
    """Cores of one design in a processor, with the clock of all and the most of one, in GHz."""

    number: int
    core: Core
    clock: float
    most: float

    @property
    def sustained(self) -> float:
        """Clocks a second that all keep while they multiply."""
        return (self.clock + _TURBO * (self.most - self.clock)) * 1e9

    @property
    def instructions(self) -> float:
        """Instructions of inner loops that all end in a second, where memory keeps up."""
        return self.number * self.sustained * self.core.per_clock


@functools.cache
def cores() -> Mapping[str, Core]:
    """All designs by name."""
    found = (tables.cells(row, 6) for row in tables.rows("cores.table"))
    return {name: Core(name, arch, float(rate), float(f32), *rest) for name, arch, rate, f32, *rest in found}


def processors() -> list[dict[str, Any]]:
    """Return the fields of a product of the catalog for each row of ``processors.table``."""
    return [_processor(*tables.cells(row, 9)) for row in tables.rows("processors.table")]


def _processor(
    name: str, also: str, cores: str, memory: str, bus: str, reads: str, caches: str, source: str, note: str
) -> dict[str, Any]:
    core_groups = tuple(_cores(part) for part in cores.split(" + "))
    first, _, sold = memory.rstrip(")").partition(" (")
    bits, rate = (float(number) for number in bus.split("@"))
    sizes = zip(("L2", "L3"), caches.split(), strict=True)
    return {
        "name": name,
        "aliases": tuple(also.split(", ")) if also else (),
        "arch": core_groups[0].core.arch,
        "memory": round(float(first) * GB),
        "sizes": tuple(round(float(size) * GB) for size in sold.split() or [first]),
        "any_size": not sold,
        "bandwidth": bits * rate / 8 * 1e9,
        "peaks": FrozenDict({"f32": sum(each.number * each.clock * each.core.f32 for each in core_groups) * 1e9}),
        "cores": core_groups,
        "reads": float(reads) if reads else None,
        "caches": FrozenDict({level: round(float(size) * _MB) for level, size in sizes if float(size)}),
        "source": source,
        "note": note,
    }


def _cores(text: str) -> Cores:
    """Read ``8 Zen 3 @ 3.8-4.7``."""
    what, _, clocks = text.partition(" @ ")
    number, _, name = what.partition(" ")
    least, _, most = clocks.partition("-")
    return Cores(int(number), cores()[name], float(least), float(most or least))
