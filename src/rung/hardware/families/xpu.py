"""Intel GPUs, as the kernel's i915 and xe drivers show them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rung.core.types import Device
from rung.hardware import catalog
from rung.hardware.cgroup import read
from rung.hardware.families import from_catalog

_VENDOR = 0x8086


def identify(root: Path = Path("/")) -> list[Device]:
    """The Intel GPUs that the catalog knows or that have memory of their own; ``root`` holds ``sys``.

    Graphics inside a processor that the catalog does not list are left out: torch supports few of them, and the
    kernel does not say which.
    """
    found: list[Device] = []
    for card in from_catalog.cards(root, _VENDOR):
        memory = _memory(card)
        if not memory and not catalog.pci_name(card.vendor, card.device):
            continue
        details: dict[str, Any] = {"pci": card.pci_address}
        device = from_catalog.device(
            id=f"xpu:{len(found)}",
            kind="xpu",
            name="",
            arch="",
            memory=memory,
            free=None,
            pci=(card.vendor, card.device),
            driver=card.driver,
            details=details,
        )
        found.append(device if card.driver in ("i915", "xe") else from_catalog.unusable(device, "no Intel GPU driver"))
    return found


def _memory(card: from_catalog.Card) -> int:
    """Bytes of the card's own memory: xe gives them by tile, i915 (not every version) as a whole; else 0."""
    total = 0
    patterns = ("tile*/physical_vram_size_bytes", "lmem_total_bytes", "drm/card*/lmem_total_bytes")
    found = (sorted(card.folder.glob(pattern)) for pattern in patterns)
    for path in next((paths for paths in found if paths), []):
        text = read(path)
        total += int(text, 0) if text and text.removeprefix("0x").isalnum() else 0
    return total
