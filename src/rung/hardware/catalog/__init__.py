"""The catalog: what is known of architectures, products and software without having them. Read when first asked for.

The files beside this one say how their rows are written; each row names its source and whether it was checked. A
device made from a row is not in this machine: chosen by name, never fallen into.
"""

from __future__ import annotations

from rung.core.text import GB
from rung.hardware.catalog.capabilities import NAMES, declared
from rung.hardware.catalog.make import device
from rung.hardware.catalog.names import find, quoted, several
from rung.hardware.catalog.rows import DTYPES, VENDORS, Architecture, Product, architectures, products, sources

__all__ = [
    "DTYPES",
    "NAMES",
    "VENDORS",
    "Architecture",
    "Product",
    "architectures",
    "by_pci",
    "declared",
    "device",
    "find",
    "pci_arch",
    "pci_name",
    "products",
    "quoted",
    "several",
    "sources",
]


def by_pci(vendor: int, device: int, memory: int = 0) -> Product | None:
    """The product of that PCI id. Where several share one, the one with that memory (bytes), else none."""
    pci_id = f"{vendor:04x}:{device:04x}"
    found = [product for product in products() if pci_id in product.pci]
    if len(found) > 1:
        found = [p for p in found if any(abs(memory - size) < GB // 2 for size in p.sizes)]
    return found[0] if len(found) == 1 else None


def pci_arch(vendor: int, device: int) -> str:
    """Return the architecture of a PCI id, empty where the catalog has none or its products are of several."""
    pci_id = f"{vendor:04x}:{device:04x}"
    found = {product.arch for product in products() if pci_id in product.pci}
    return found.pop() if len(found) == 1 else ""


def pci_name(vendor: int, device: int) -> str:
    """Return the products that share a PCI id; empty where the catalog has none."""
    pci_id = f"{vendor:04x}:{device:04x}"
    return " / ".join(product.name for product in products() if pci_id in product.pci)
