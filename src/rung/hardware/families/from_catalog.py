"""Hold what the catalog adds to a device that a driver or the bus has shown."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rung.core.types import Capability, Device, Level, Proof
from rung.core.value import FrozenDict
from rung.hardware import catalog
from rung.hardware.catalog import DTYPES, Product
from rung.hardware.cgroup import read
from rung.hardware.software import installed


def device(
    *,
    id: str,
    kind: str,
    name: str,
    arch: str,
    memory: int,
    free: int | None,
    pci: tuple[int, int] | None,
    driver: str = "",
    details: Mapping[str, Any],
) -> Device:
    """A device of this machine, completed from the catalog and marked so in ``details``.

    What the driver says comes first. Empty ``name`` or ``arch`` and a ``memory`` of 0 are taken from the product of
    that name, or of that PCI id where only one has it; ``details`` then holds ``name_from``, ``arch_from`` or
    ``memory_from`` = catalog. A name that several products share, or none, is marked ``pci id``. What nobody knows
    stays ``unknown``, with no capabilities.
    """
    product = (catalog.find(name) if name else None) or (catalog.by_pci(*pci, memory) if pci else None)
    facts = dict(details)
    if pci:
        facts["pci_id"] = f"{pci[0]:04x}:{pci[1]:04x}"
    if not name and pci:
        name = product.name if product else catalog.pci_name(*pci)
        facts["name_from"] = "catalogue" if product else "pci id"
        name = name or f"unknown {catalog.VENDORS.get(facts['pci_id'][:4], 'vendor')} device {facts['pci_id']}"
    if product and not arch:
        arch, facts["arch_from"] = product.arch, "catalogue"
    if product and not memory:
        memory, facts["memory_from"] = product.memory, "catalogue"
    if product and product.arch.startswith(f"{arch}-"):
        arch = product.arch  # a variant that the compute capability alone does not tell
    architecture = catalog.architectures().get(arch)
    same = product is not None and product.arch == arch
    if same and product:
        facts |= {"catalogue": product.status, "rates": "table"}
    elif architecture:
        facts["catalogue"] = architecture.status
    return Device(
        id=id,
        kind=kind,
        name=name or f"unknown {kind} device",
        arch=arch or "unknown",
        memory=memory,
        free=free,
        bandwidth=product.bandwidth if same and product else None,
        peaks=FrozenDict(_rates(product) if same else {}),
        capabilities=FrozenDict({c.name: c for c in (catalog.declared(architecture) if architecture else ())}),
        software=installed() | ({"driver": driver} if driver else {}),
        details=FrozenDict(facts),
    )


def unusable(found: Device, reason: str) -> Device:
    """The device with everything absent for that reason: no driver, or one that does not answer."""
    names: Iterable[str] = (f"{op}.{dtype}" for op in ("matmul", "attention", "elementwise") for dtype in DTYPES)
    return found.with_capabilities(Capability(name, Level.ABSENT, Proof.DECLARED, reason) for name in names)


def _rates(product: Product | None) -> Mapping[str, float]:
    return product.rates() if product else {}


@dataclass(frozen=True)
class Card:
    """A display controller or accelerator: ids, bus address (``0000:01:00``), driver (may be empty), sysfs folder."""

    vendor: int
    device: int
    pci_address: str
    driver: str
    folder: Path


def cards(root: Path, vendor: int) -> Iterator[Card]:
    """The cards of a vendor, in the order of the bus. Display controllers (class 03) and accelerators (class 12)."""
    for folder in sorted((root / "sys/bus/pci/devices").glob("*")):
        number = hexadecimal(read(folder / "vendor"))
        if number == vendor and read(folder / "class")[:4] in ("0x03", "0x12"):
            driver = ""
            with contextlib.suppress(OSError):
                driver = (folder / "driver").resolve(strict=True).name
            yield Card(vendor, hexadecimal(read(folder / "device")), folder.name.rpartition(".")[0], driver, folder)


def hexadecimal(text: str) -> int:
    """The number of ``0x10de``, -1 for anything else."""
    try:
        return int(text, 16)
    except ValueError:
        return -1
