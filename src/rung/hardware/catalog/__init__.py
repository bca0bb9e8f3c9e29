"""The catalogue: what is known of architectures and products without having them. Read when first asked for.

``architectures.toml`` and ``products.toml`` beside this file say how their rows are written; each row names its source
and whether it was checked. A device made from a row is simulated: chosen by name, never fallen into.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rung.core.errors import UnknownDevice
from rung.core.text import GB, close
from rung.core.types import Capability, Device, Level, Proof
from rung.core.value import FrozenDict
from rung.hardware.software import installed

#: The dtypes that capabilities are named after.
DTYPES = ("f32", "f16", "bf16", "f64", "int8", "fp8")
VENDORS = {"10de": "NVIDIA", "1002": "AMD", "8086": "Intel", "106b": "Apple"}
_HERE = Path(__file__).parent
_TERA = 1e12


@dataclass(frozen=True)
class Architecture:
    """One row of ``architectures.toml``.

    ``matmul`` maps dtypes to levels, ``notes`` to a sentence about them; ``units`` are the dtypes of the matrix
    units; ``dot8`` the int8 dot instruction; ``f16`` is native, slow, none or empty (not known).
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
    f16_rate: float | None = None
    last_driver: str | None = None
    min_cuda: str = ""
    max_cuda: str = ""
    flash_attention_2: bool | None = None
    software: str = ""
    torch: str = ""
    note: str = ""

    def capabilities(self) -> list[Capability]:
        """What the table says of matmul, attention and elementwise work by dtype; where it does not know, its note.

        Attention is two matrix products and a softmax, so it is what matmul is; torch computes elementwise
        functions of f16 and bf16 in f32 wherever the hardware does not do them itself.
        """
        found = []
        for dtype, text in self.matmul.items():
            level = Level(text)
            if level is Level.UNKNOWN:
                if dtype in self.notes:
                    found.append(Capability(f"matmul.{dtype}", level, Proof.NONE, self.notes[dtype]))
                continue
            source = self.notes.get(dtype, "") or f"{self.generation}, {self.key}"
            found.append(Capability(f"matmul.{dtype}", level, Proof.TABLE, source))
            if dtype in ("int8", "fp8"):
                continue
            found.append(Capability(f"attention.{dtype}", level, Proof.TABLE, source))
            missing = dtype == "f64" and level is Level.ABSENT
            element = level if level is Level.NATIVE or missing else Level.EMULATED
            found.append(Capability(f"elementwise.{dtype}", element, Proof.TABLE, source))
        return found


@dataclass(frozen=True)
class Product:
    """One row of ``products.toml``, in bytes, bytes per second and operations per second.

    ``pci`` holds ``vendor:device`` in hexadecimal; ``status`` is checked or unsure.
    """

    name: str
    arch: str
    memory: int
    bandwidth: float
    peaks: Mapping[str, float]
    status: str
    source: str
    aliases: tuple[str, ...] = ()
    variants: tuple[int, ...] = ()
    dp4a: float | None = None
    units: Mapping[str, float] | None = None
    pci: tuple[str, ...] = ()
    note: str = ""

    def rates(self) -> dict[str, float]:
        """Matrix operations per second by dtype: the row's own, else the architecture's relative to f32."""
        relative = architectures()[self.arch].relative
        return {dtype: factor * self.peaks["f32"] for dtype, factor in relative.items()} | dict(self.peaks)


@functools.cache
def architectures() -> Mapping[str, Architecture]:
    """All architectures by key."""
    rows = {row["key"]: row for row in _load("architectures.toml")["architecture"]}
    found = {}
    for key, row in rows.items():
        merged = {**rows[row["like"]], **row} if "like" in row else dict(row)
        if "like" in row and "note" not in row:
            merged.pop("note", None)
        merged.pop("like", None)
        merged.setdefault("notes", {})
        merged.setdefault("relative", {})
        merged.setdefault("f16", "")
        found[key] = Architecture(**{name: _frozen(value) for name, value in merged.items()})
    return found


@functools.cache
def products() -> tuple[Product, ...]:
    """All products, in the order of the file."""
    found = []
    for row in _load("products.toml")["product"]:
        fields = {name: _frozen(value) for name, value in row.items()}
        fields["memory"] = round(row["memory"] * GB)
        fields["variants"] = tuple(round(size * GB) for size in row.get("variants", ()))
        fields["bandwidth"] = row["bandwidth"] * 1e9
        fields["peaks"] = FrozenDict({dtype: rate * _TERA for dtype, rate in row["peaks"].items()})
        if "dp4a" in row:
            fields["dp4a"] = row["dp4a"] * _TERA
        found.append(Product(**fields))
    return tuple(found)


@functools.cache
def sources() -> Mapping[str, str]:
    """The full names of the short sources of both files."""
    return {**_load("architectures.toml")["sources"], **_load("products.toml")["sources"]}


def find(name: str) -> Product | None:
    """The product of that name, as a driver or a person writes it: ``NVIDIA GeForce RTX 2080 Ti``, ``2080ti``."""
    full = _normal(name)
    short = _short(name)
    for wanted in (full, short, _LOOSE.sub(" ", short).strip()):
        for product in products():
            if re.sub(" +", " ", wanted) in _names(product):
                return product
    return None


def by_pci(vendor: int, device: int, memory: int = 0) -> Product | None:
    """The product of that PCI id. Where several share one, the one with that memory (bytes), else none."""
    wanted = f"{vendor:04x}:{device:04x}"
    found = [product for product in products() if wanted in product.pci]
    if len(found) > 1:
        found = [p for p in found if any(abs(memory - size) < GB // 2 for size in (p.memory, *p.variants))]
    return found[0] if len(found) == 1 else None


def pci_name(vendor: int, device: int) -> str:
    """What a PCI id is called: all the products that share it, empty when the catalogue has none."""
    wanted = f"{vendor:04x}:{device:04x}"
    return " / ".join(product.name for product in products() if wanted in product.pci)


def simulated(name: str) -> Device:
    """The device of that product name as the catalogue knows it.

    Raises ``UnknownDevice`` with the names that look most like it.
    """
    product = find(name)
    if product is None:
        names = {n: p.name for p in products() for n in _names(p)}
        near = list(dict.fromkeys(names[n] for n in close(_normal(name), names)))
        hint = f" Did you mean {' or '.join(near)}?" if near else ""
        raise UnknownDevice(f"the catalogue has no device called {name!r}.{hint}", ways_out=["rung devices --json"])
    architecture = architectures()[product.arch]
    return Device(
        id=_normal(product.name).replace(" ", "-"),
        kind=architecture.kind,
        name=product.name,
        arch=product.arch,
        memory=product.memory,
        bandwidth=product.bandwidth,
        peaks=FrozenDict(product.rates()),
        capabilities=FrozenDict({c.name: c for c in architecture.capabilities()}),
        software=installed(),
        details=FrozenDict({"rates": "table", "catalogue": product.status}),
        real=False,
    )


#: What drivers write beside a name and the catalogue does not.
_LOOSE = re.compile(r"\b(\d+gb|generation|hbm3e?)\b")
_MAKERS = re.compile(
    r"\b(nvidia|geforce|amd|intel|tesla|quadro|radeon|instinct|apple|graphics|corporation)\b|\(r\)|\(tm\)"
)


@functools.cache
def _names(product: Product) -> frozenset[str]:
    """Every normal form that means this product and no other: the whole name, its short forms, the aliases."""
    names = set()
    for full in (product.name, *product.aliases):
        normal, short = _normal(full), _short(full)
        names |= {normal, short, normal.replace(" ", ""), short.replace(" ", "")}
        if bare := re.fullmatch(r"(?:gtx|rtx|rx|arc) (\d{3,4}( \w+)*|[ab]\d{3})", short):
            names |= {bare[1], bare[1].replace(" ", "")}
    return frozenset(name for name in names if name)


def _normal(name: str) -> str:
    return re.sub(r"[^a-z0-9+]+", " ", name.lower()).strip()


def _short(name: str) -> str:
    """The normal form without the maker's words, SXM2 to SXM5 alike."""
    return re.sub(r"\bsxm\d\b", "sxm", _normal(_MAKERS.sub(" ", name.lower())))


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return FrozenDict(value)
    return tuple(value) if isinstance(value, list) else value


@functools.cache
def _load(name: str) -> dict[str, Any]:
    import tomllib  # not free to import, and most machines never ask

    with open(_HERE / name, "rb") as file:
        return tomllib.load(file)
