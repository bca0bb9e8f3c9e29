"""The rows of the catalog as values: architectures and products, read when first asked for."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rung.core.text import GB
from rung.core.value import FrozenDict
from rung.hardware.catalog.processors import Cores, processors
from rung.hardware.catalog.tables import load, rows, text

#: The dtypes that capabilities are named after.
DTYPES = ("f32", "f16", "bf16", "f64", "int8", "fp8")
VENDORS = {"10de": "NVIDIA", "1002": "AMD", "8086": "Intel", "106b": "Apple"}
#: The sources of product rows whose figures were computed again from units that were checked.
_CHECKED = ("computed", "techpowerup", "listed", "makers", "pages")
_MB = 2**20


@dataclass(frozen=True)
class Architecture:
    """One row of ``architectures.toml``.

    ``matmul`` maps dtypes to levels, ``notes`` to a sentence about them; ``units`` are the dtypes of the matrix
    units; ``dot8`` the int8 dot instruction; ``sm`` the shaders of a multiprocessor of NVIDIA; ``f16`` is native, slow,
    none or empty (not known). ``isa`` are the instruction sets of a CPU and ``machine`` what it calls itself;
    ``platform`` (jetson, aarch64) says which builds are made for it; ``override`` is the gfx target whose code runs
    there when ROCm is told so, with torch below ``override_below``.
    """

    key: str
    vendor: str
    kind: str
    generation: str
    chips: str
    matmul: Mapping[str, str]
    notes: Mapping[str, str]
    units: tuple[str, ...]
    dot8: str
    f16: str
    relative: Mapping[str, float]
    status: str
    sources: tuple[str, ...]
    cc: str = ""
    sm: int = 0
    f16_rate: float | None = None
    last_driver: str | None = None
    min_cuda: str = ""
    max_cuda: str = ""
    flash_attention_2: bool | None = None
    software: str = ""
    torch: str = ""
    note: str = ""
    isa: tuple[str, ...] = ()
    machine: str = ""
    platform: str = ""
    override: str = ""
    override_below: str = ""

    @property
    def capability(self) -> tuple[int, int] | None:
        """NVIDIA's compute capability as numbers, None elsewhere."""
        return version(self.cc) if self.cc else None

    @property
    def source(self) -> str:
        """The sources of the row in full, one after the other."""
        return "; ".join(sources().get(name, name) for name in self.sources)


@dataclass(frozen=True)
class Product:
    """One row of ``products.table`` or ``processors.table``, in bytes, bytes per second and operations per second.

    ``sizes`` are the memories sold under the name, ``shown`` what a program finds free on an idle card of each size
    (empty when nobody has looked) and ``seen`` whether that figure was found in public output or is remembered.
    ``units`` holds shaders, clock (GHz), operations, bus (bits) and rate (Gbit/s per pin). ``pci`` holds
    ``vendor:device`` in hexadecimal; ``status`` is checked or unsure. A processor has ``cores``, ``caches`` by level in
    bytes, ``reads``, the share of its bandwidth that it was seen to read, and ``any_size`` where memory is fitted by
    whoever builds the machine.
    """

    name: str
    aliases: tuple[str, ...]
    arch: str
    memory: int
    sizes: tuple[int, ...]
    bandwidth: float
    peaks: Mapping[str, float]
    source: str
    note: str
    dp4a: float | None = None
    units: Mapping[str, float] = FrozenDict()
    shown: tuple[int, ...] = ()
    observed: bool = False
    pci: tuple[str, ...] = ()
    cores: tuple[Cores, ...] = ()
    caches: Mapping[str, int] = FrozenDict()
    reads: float | None = None
    any_size: bool = False

    @property
    def status(self) -> str:
        """``checked`` when the figures were computed again from checked units, else ``unsure``."""
        return "checked" if self.source in _CHECKED else "unsure"

    def rates(self) -> dict[str, float]:
        """Matrix operations per second by dtype: the row's own, else the architecture's relative to f32."""
        relative = architectures()[self.arch].relative
        return {dtype: factor * self.peaks["f32"] for dtype, factor in relative.items()} | dict(self.peaks)


@functools.cache
def architectures() -> Mapping[str, Architecture]:
    """All architectures by key."""
    rows = {row["key"]: row for row in load("architectures.toml")["architecture"]}
    found = {}
    for key in rows:
        merged = _merged(rows, key)
        for name, default in (("notes", {}), ("relative", {}), ("units", []), ("f16", ""), ("dot8", "")):
            merged.setdefault(name, default)
        found[key] = Architecture(**{name: _frozen(value) for name, value in merged.items()})
    return found


def _merged(rows: Mapping[str, dict[str, Any]], key: str) -> dict[str, Any]:
    """A row with what it leaves to the row that it is like; the note belongs to one row alone."""
    row = dict(rows[key])
    like = row.pop("like", "")
    return {**{name: value for name, value in _merged(rows, like).items() if name != "note"}, **row} if like else row


@functools.cache
def products() -> tuple[Product, ...]:
    """All products, in the order of the files: cards, then processors."""
    cards = [_product(cells) for cells in rows("products.table")]
    return (*cards, *(Product(**fields) for fields in processors()))


@functools.cache
def instances() -> Mapping[str, tuple[str, int, int]]:
    """Cloud instances: name to product, the GB of its memory (0: as the product) and how many cards it has."""
    found = {}
    for names, product, memory, number in rows("instances.table"):
        for name in names.split(", "):
            found[name] = (product, int(memory or 0), int(number))
    return found


@functools.cache
def sources() -> Mapping[str, str]:
    """The full names of the short sources of the files."""
    listed = (line.removeprefix("# source ").split(" = ", 1) for line in text("products.table") if " = " in line)
    found = {pair[0]: pair[1] for pair in listed if len(pair) == 2 and " " not in pair[0]}
    return {**load("architectures.toml")["sources"], **found}


def version(text: str) -> tuple[int, int]:
    """Major and minor part of ``12.1`` or ``2.3.1`` as numbers that compare; a missing minor part is 0."""
    major, minor = [*text.split("."), "0"][:2]
    return int(major), int(minor)


def numbers(text: str) -> tuple[int, ...]:
    """All numbers of a version, to compare by: (525, 60, 13) of ``525.60.13``."""
    return tuple(int(number) for number in re.findall(r"\d+", text))


def _product(cells: list[str]) -> Product:
    name, also, arch, memory, bandwidth, rates, dp4a, units, shown, pci, source, note = cells
    first, _, sizes = memory.rstrip(")").partition(" (")
    free, _, evidence = shown.partition(" ")
    return Product(
        name=name,
        aliases=tuple(also.split(", ")) if also else (),
        arch=arch,
        memory=round(float(first) * GB),
        sizes=tuple(round(float(size) * GB) for size in (sizes or first).split()),
        bandwidth=float(bandwidth) * 1e9,
        peaks=FrozenDict({dtype: float(rate) * 1e12 for dtype, rate in (r.split("=") for r in rates.split())}),
        dp4a=float(dp4a) * 1e12 if dp4a else None,
        units=FrozenDict(_units(units)),
        shown=tuple(int(size) * _MB for size in free.split("/")) if free else (),
        observed=evidence == "s",
        pci=tuple(pci.split(",")) if pci else (),
        source=source,
        note=note,
    )


def _units(text: str) -> dict[str, float]:
    if not text:
        return {}
    compute, memory = text.split()
    shaders, clock, operations = (float(part) for part in compute.split("x"))
    bus, rate = (float(part) for part in memory.split("@"))
    return {"shaders": shaders, "clock": clock, "operations": operations, "bus": bus, "rate": rate}


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return FrozenDict(value)
    return tuple(value) if isinstance(value, list) else value
