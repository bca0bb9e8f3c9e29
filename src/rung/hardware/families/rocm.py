"""AMD GPUs, as the kernel lists them: KFD's topology for computing, DRM's files for memory and cards without KFD."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rung.core.types import Device
from rung.hardware.cgroup import read
from rung.hardware.families import from_catalog

_VENDOR = 0x1002
_NODES = "sys/class/kfd/kfd/topology/nodes"
_PROCESSES = "sys/class/kfd/kfd/proc"


def identify(root: Path = Path("/"), *, environment: Mapping[str, str] = os.environ) -> list[Device]:
    """The AMD GPUs that a program here may use; ``root`` is the folder that holds ``sys``.

    ``ROCR_VISIBLE_DEVICES``, then ``HIP_VISIBLE_DEVICES`` (positions) are honored.
    """
    cards = {card.pci_address: card for card in from_catalog.cards(root, _VENDOR)}
    nodes = sorted((root / _NODES).glob("[0-9]*"), key=lambda folder: int(folder.name))
    listed = [(node, _properties(node / "properties")) for node in nodes]
    # A node without SIMD units is a processor; gfx_target_version 0 says that ROCm does not know the GPU.
    gpus = [(node, p) for node, p in listed if p.get("simd_count", 0) and p.get("gfx_target_version", 0)]
    for variable in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"):
        gpus = _visible(gpus, environment.get(variable))
    driver = read(root / "sys/module/amdgpu/version")
    found = []
    for number, (node, properties) in enumerate(gpus):
        pci = _pci_address(properties)
        found.append(_device(number, node, properties, cards.get(pci), pci, driver))
    if not gpus and not listed:
        found = [_without_kfd(number, card) for number, card in enumerate(cards.values())]
    return found


def process_memory(pci: str, root: Path = Path("/")) -> dict[int, int]:
    """The processes that compute on the card at that place of the bus, and how many bytes of its memory each holds.

    KFD shows them to everybody (``proc/PID/vram_GPUID``); programs that only draw are not among them.
    """
    found: dict[int, int] = {}
    for node in (root / _NODES).glob("[0-9]*"):
        number = read(node / "gpu_id")
        if not number.isdigit() or _pci_address(_properties(node / "properties")) != pci:
            continue
        for file in (root / _PROCESSES).glob(f"[0-9]*/vram_{number}"):
            size, pid = read(file), file.parent.name
            if pid.isdigit() and size.isdigit() and int(size):
                found[int(pid)] = found.get(int(pid), 0) + int(size)
    return found


def target(version: int) -> str:
    """The gfx target of KFD's ``gfx_target_version``: 90010 is gfx90a, 110000 gfx1100.

    Major, minor and stepping are two decimal digits each; LLVM writes minor and stepping in hexadecimal.
    """
    return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"


def _device(
    number: int, node: Path, properties: Mapping[str, int], card: from_catalog.Card | None, pci: str, driver: str
) -> Device:
    banks = (_properties(bank) for bank in sorted(node.glob("mem_banks/*/properties")))
    # Heap types 1 and 2 are the GPU's own memory (public and private), 0 is the system's.
    memory = sum(bank.get("size_in_bytes", 0) for bank in banks if bank.get("heap_type") in (1, 2))
    total, used = _vram(card)
    details: dict[str, Any] = {"pci": pci, "compute_units": _compute_units(properties)}
    name = read(card.folder / "product_name") if card else ""
    return from_catalog.device(
        id=f"rocm:{number}",
        kind="rocm",
        name=name,
        arch=target(properties["gfx_target_version"]),
        memory=total or memory,
        free=total - used if total else None,
        pci=(properties.get("vendor_id", _VENDOR), properties.get("device_id", 0)),
        driver=driver,
        details=details,
    )


def _without_kfd(number: int, card: from_catalog.Card) -> Device:
    """A card that cannot compute here: named by its PCI id, everything absent with the reason."""
    reason = "amdgpu offers no compute queue (no KFD)" if card.driver == "amdgpu" else "no amdgpu driver"
    total, _ = _vram(card)
    found = from_catalog.device(
        id=f"rocm:{number}",
        kind="rocm",
        name=read(card.folder / "product_name"),
        arch="",
        memory=total,
        free=0,
        pci=(card.vendor, card.device),
        details={"pci": card.pci_address, "notes": f"{reason}: install it, then rung devices"},
    )
    return from_catalog.unusable(found, reason)


def _vram(card: from_catalog.Card | None) -> tuple[int, int]:
    """Bytes of video memory and bytes in use, 0 where the driver does not say."""
    if card is None:
        return 0, 0
    total, used = (read(card.folder / f"mem_info_vram_{which}") for which in ("total", "used"))
    return (int(total), int(used) if used.isdigit() else 0) if total.isdigit() else (0, 0)


def _compute_units(properties: Mapping[str, int]) -> int:
    return properties["simd_count"] // max(1, properties.get("simd_per_cu", 1))


def _pci_address(properties: Mapping[str, int]) -> str:
    """Domain, bus and device of KFD's ``location_id`` (bus in the high byte, device and function in the low one)."""
    location = properties.get("location_id", 0)
    return f"{properties.get('domain', 0):04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}"


def _properties(path: Path) -> dict[str, int]:
    """The lines ``name number`` of a file."""
    pairs = (line.split() for line in read(path).splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].lstrip("-").isdigit()}


def _visible(gpus: list[tuple[Path, dict[str, int]]], visible: str | None) -> list[tuple[Path, dict[str, int]]]:
    if visible is None:
        return gpus
    left = []
    for name in (part.strip() for part in visible.split(",")):
        if not (name.isdigit() and int(name) < len(gpus)):
            break
        left.append(gpus[int(name)])
    return left
