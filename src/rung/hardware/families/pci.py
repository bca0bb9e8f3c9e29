"""Cards as the PCI bus shows them, drivers or not: the last source of a name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rung.hardware.cgroup import read


@dataclass(frozen=True)
class Card:
    """A display controller or accelerator: its ids, place (``0000:01:00``), driver (may be empty) and sysfs folder."""

    vendor: int
    device: int
    place: str
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
