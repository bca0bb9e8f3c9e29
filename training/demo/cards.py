"""The cards of rung's catalogue as this model talks about them: display name, the names users type, and plain facts.

A fact that the catalogue does not state is ``None`` here, and no sentence is made of it: missing is never "no".
"""

from __future__ import annotations

import re
import tomllib
import zlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any

from training.demo.unknown_cards import squeeze

from rung.core.text import GB
from rung.hardware import catalog
from rung.hardware.catalog import Product

ARCHITECTURES = Path(catalog.__file__).parent / "architectures.toml"
VENDORS = {"nvidia": "NVIDIA", "amd": "AMD", "intel": "Intel", "apple": "Apple"}
_PREFIXES = r"^(GeForce|NVIDIA|Tesla|Radeon RX|Radeon|Instinct|Jetson|Data Center GPU|Quadro|Apple|RTX(?= A\d))\s+"
_VARIANT = r" (SXM\d? ?|PCIe ?|NVL ?)?(\d+GB)?( SXM\d?)?$"


@dataclass(frozen=True)
class Card:
    """One product. ``version`` is the compute capability of an NVIDIA card, else the architecture's key.

    ``memory`` lists the GB of its variants: ``shared`` with the CPU, ``at_most`` that much, or for ``each`` GPU of
    a board. ``bandwidth`` is in GB/s. ``bf16`` is native, emulated or none; ``f16`` fast (at least f32's rate),
    native, slow or none; ``int8`` the units that multiply it, or "" for none; ``driver`` is (last branch or
    "current", last CUDA toolkit or "").
    """

    name: str
    aliases: tuple[str, ...]
    vendor: str
    generation: str
    version: str
    memory: tuple[int, ...]
    shared: bool = False
    at_most: bool = False
    each: bool = False
    bandwidth: float | None = None
    bf16: str | None = None
    f16: str | None = None
    int8: str | None = None
    matrix: bool | None = None
    fp8: bool | None = None
    driver: tuple[str, str] | None = None

    @property
    def maker(self) -> str:
        """The vendor as it is written."""
        return VENDORS[self.vendor]

    @property
    def dtype(self) -> str | None:
        """The number format to compute in; ``None`` where the catalogue says too little."""
        if self.bf16 == "native":
            return "bf16"
        if self.f16 in ("fast", "native"):
            return "f16"
        return "f32" if self.f16 in ("slow", "none") and self.bf16 else None

    @property
    def mark(self) -> str:
        """The name with a checksum of all that is known: a card that the catalogue changes has another one."""
        return f"{self.name} {zlib.crc32(repr(astuple(self)).encode()):08x}"


def _bf16(arch: dict[str, Any]) -> str | None:
    level = arch["matmul"].get("bf16", "unknown")
    return {"absent": "none", "unknown": None}.get(level, level)


def _f16(arch: dict[str, Any]) -> str | None:
    level = arch.get("f16")
    return "fast" if level == "native" and arch.get("f16_rate", 0) >= 1 else level


def _int8(arch: dict[str, Any]) -> str | None:
    if "int8" in arch.get("units", ()):
        return "tensor cores" if arch["vendor"] == "nvidia" else "matrix units"
    instruction = arch.get("dot8")
    return f"the {instruction} instruction" if instruction else instruction


def _driver(arch: dict[str, Any]) -> tuple[str, str] | None:
    branch = arch.get("last_driver")
    if branch is None or not re.fullmatch(r"\d*", branch):  # a Jetson's driver comes with its JetPack
        return None
    return branch or "current", arch["max_cuda"]


def _generation(text: str) -> str:
    text = re.sub(r" (without tensor cores|Tegra|datacenter|consumer.*)$", "", text)
    return text.split("/")[0].replace("Apple GPU ", "Apple")


def _names(full: str) -> tuple[str, list[str]]:
    """The display name, and names that users may type; ``resolve`` drops those that are not unique."""
    display = re.sub(r"^(GeForce|NVIDIA) ", "", full)
    names = [display, full, re.sub(_PREFIXES, "", full)]
    names += [re.sub(_PREFIXES, "", name.removeprefix("NVIDIA ")) for name in names]
    if not full.startswith("Quadro"):
        names += [re.sub(r"^(GTX|RTX|RX) ", "", name) for name in names if re.match(r"(GTX|RTX|RX) \d{3}", name)]
    if full.startswith("Radeon RX"):
        names.append(full.removeprefix("Radeon "))
    names += [re.sub(_VARIANT, "", name) for name in names]
    return display, [name for name in dict.fromkeys(names) if len(name) > 1]


def sizes(product: Product) -> tuple[int, ...]:
    """The memories in GB that are sold under the product's name."""
    return tuple(round(size / GB) for size in product.sizes)


def _memory(product: Product) -> tuple[int, ...]:
    if named := re.search(r" (\d+)GB", product.name):
        return (int(named[1]),)
    return (max(sizes(product)),) if _at_most(product) else sizes(product)


def _at_most(product: Product) -> bool:
    """Return whether only the largest size is said: Apple sells its chips with up to five."""
    return product.name.startswith("Apple")


def _card(product: Product, arch: dict[str, Any]) -> Card:
    display, names = _names(product.name)
    names += [name for alias in product.aliases for name in _names(alias)[1] if name not in names]
    note, units = product.note, arch.get("units")
    return Card(
        name=display,
        aliases=tuple(names),
        vendor=arch["vendor"],
        generation=_generation(arch["generation"]),
        version=arch.get("cc", arch["key"]),
        memory=_memory(product),
        shared=arch["vendor"] == "apple" or "shared" in note or "unified" in note,
        at_most=_at_most(product),
        each=note.startswith("one of the"),
        bandwidth=product.bandwidth / 1e9,
        bf16=_bf16(arch),
        f16=_f16(arch),
        int8=_int8(arch),
        matrix=None if units is None else bool(units),
        fp8=None if units is None else "fp8" in units,
        driver=_driver(arch),
    )


def _family(name: str, members: list[Card]) -> Card:
    """Several variants of one product under their common name, with what they share."""
    memory = sorted({size for card in members for size in card.memory})
    same = len({card.bandwidth for card in members}) == 1
    return replace(
        members[0], name=name, aliases=(name,), memory=tuple(memory), bandwidth=members[0].bandwidth if same else None
    )


def _families(cards: list[Card], owners: dict[str, list[Card]]) -> list[Card]:
    """A card for every name that variants of one product share and no product displays: V100, A100, GTX 1060."""
    display = {squeeze(card.name) for card in cards}
    families: dict[str, Card] = {}
    for card in cards:
        for alias in card.aliases:
            members = owners[squeeze(alias)]
            stems = {re.sub(_VARIANT, "", member.name) for member in members}
            if len({member.name for member in members}) > 1 and squeeze(alias) not in display and len(stems) == 1:
                (stem,) = stems
                family = families.get(stem) or _family(stem, members)
                families[stem] = replace(family, aliases=tuple(dict.fromkeys((*family.aliases, alias))))
    return list(families.values())


def resolve(cards: Iterable[Card]) -> tuple[Card, ...]:
    """Give every typed name one owner: the product that displays it, a family of variants, or nobody."""
    cards = list(cards)
    owners: dict[str, list[Card]] = defaultdict(list)
    for card in cards:
        for alias in card.aliases:
            owners[squeeze(alias)].append(card)
    families = _families(cards, owners)
    display = {squeeze(card.name): card.name for card in cards}
    shared = {squeeze(alias) for family in families for alias in family.aliases}

    def owns(card: Card, alias: str) -> bool:
        key = squeeze(alias)
        if key in display:
            return display[key] == card.name
        return key not in shared and len({owner.name for owner in owners[key]}) == 1

    own = [replace(card, aliases=tuple(alias for alias in card.aliases if owns(card, alias))) for card in cards]
    return (*own, *families)


def architecture_rows() -> dict[str, dict[str, Any]]:
    """The architectures by key as the file states them, so that what is missing stays missing."""
    rows = {row["key"]: row for row in tomllib.loads(ARCHITECTURES.read_text(encoding="utf-8"))["architecture"]}
    return {key: {**rows.get(row.get("like"), {}), **row} for key, row in rows.items()}


def load_cards(products: Iterable[Product] | None = None) -> tuple[Card, ...]:
    """The GPUs of ``products`` (all of the catalogue) by name, and families such as V100 for variants of one name."""
    rows = architecture_rows()
    named = sorted(products or catalog.products(), key=lambda product: product.name)
    return resolve(_card(product, rows[product.arch]) for product in named if rows[product.arch]["kind"] != "cpu")


def known_names(cards: Iterable[Card]) -> frozenset[str]:
    """Squeezed names of all cards, to tell unknown ones."""
    return frozenset(squeeze(alias) for card in cards for alias in (card.name, *card.aliases))
