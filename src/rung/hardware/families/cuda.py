"""NVIDIA GPUs, as the driver's management library (NVML) lists them; cards without a driver by their PCI id."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rung.core.types import Device
from rung.hardware.families import from_catalog

_VENDOR = 0x10DE


def identify(
    root: Path = Path("/"), *, nvml: Any | None = None, environment: Mapping[str, str] = os.environ
) -> list[Device]:
    """The NVIDIA GPUs that a program here may use, in the order of the bus.

    ``nvml`` stands in for the module ``pynvml`` in tests. A machine without the driver's library answers at once.
    ``CUDA_VISIBLE_DEVICES`` is honored: positions (in the order of the bus), UUIDs or their beginnings.
    """
    module = nvml or library()
    listed: list[Device] = []
    trouble = ""
    if module is not None:
        try:
            listed = _listed(module)
        except module.NVMLError as error:
            trouble = f"the NVIDIA driver does not answer: {error}"
    if listed:
        return _numbered(_visible(listed, environment.get("CUDA_VISIBLE_DEVICES")))
    cards = list(from_catalog.cards(root, _VENDOR))
    return [_without_driver(number, card, trouble) for number, card in enumerate(cards)]


def library() -> Any | None:
    """``pynvml``, if the library that it needs can be loaded: the module alone costs 30 ms to import."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml


def _listed(nvml: Any) -> list[Device]:
    nvml.nvmlInit()
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        cuda = int(nvml.nvmlSystemGetCudaDriverVersion())
        newest = f"{cuda // 1000}.{cuda % 1000 // 10}"
        return [_one(nvml, number, driver, newest) for number in range(int(nvml.nvmlDeviceGetCount()))]
    finally:
        nvml.nvmlShutdown()


def _one(nvml: Any, number: int, driver: str, cuda: str) -> Device:
    """One GPU; a lost one is listed with everything absent, so that the others keep their numbers."""
    try:
        return _device(nvml, number, driver, cuda)
    except nvml.NVMLError as error:
        lost = from_catalog.device(
            id=f"cuda:{number}",
            kind="cuda",
            name="",
            arch="",
            memory=0,
            free=0,
            pci=None,
            driver=driver,
            details={"notes": f"the driver says: {error}"},
        )
        return from_catalog.unusable(lost, f"the driver says: {error}")


def _device(nvml: Any, number: int, driver: str, cuda: str) -> Device:
    handle = nvml.nvmlDeviceGetHandleByIndex(number)
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    details: dict[str, Any] = {"uuid": _text(nvml.nvmlDeviceGetUUID(handle)), "cuda": cuda}
    identifier: tuple[int, int] | None = None
    total, free = 0, None
    with contextlib.suppress(nvml.NVMLError):  # boards without a PCI bus
        pci = nvml.nvmlDeviceGetPciInfo(handle)
        details["pci"] = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}"
        identifier = (int(pci.pciDeviceId) & 0xFFFF, int(pci.pciDeviceId) >> 16)
    with contextlib.suppress(nvml.NVMLError):  # boards that share the system's memory do not say
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        total, free = int(memory.total), int(memory.free)
    return from_catalog.device(
        id=f"cuda:{number}",
        kind="cuda",
        name=_text(nvml.nvmlDeviceGetName(handle)),
        arch=f"sm_{major}{minor}",
        memory=total,
        free=free,
        pci=identifier,
        driver=driver,
        details=details,
    )


def _without_driver(number: int, card: from_catalog.Card, trouble: str) -> Device:
    """A card that the bus shows and no program can use: named by its PCI id, everything absent with the reason."""
    reason = trouble or (
        f"its driver is {card.driver}, not NVIDIA's" if card.driver and card.driver != "nvidia" else "no NVIDIA driver"
    )
    found = from_catalog.device(
        id=f"cuda:{number}",
        kind="cuda",
        name="",
        arch="",
        memory=0,
        free=0,
        pci=(card.vendor, card.device),
        details={"pci": card.pci_address, "notes": f"{reason}: install it, then rung devices"},
    )
    return from_catalog.unusable(found, reason)


def _visible(found: list[Device], visible: str | None) -> list[Device]:
    """Return the devices of ``CUDA_VISIBLE_DEVICES``, in its order; a name that fits nothing ends the list, as in
    CUDA."""
    if visible is None:
        return found
    left = []
    for name in (part.strip() for part in visible.split(",")):
        fits = [
            device
            for number, device in enumerate(found)
            if name == str(number) or (name.startswith("GPU-") and str(device.details.get("uuid", "")).startswith(name))
        ]
        if len(fits) != 1:
            break
        left += fits
    return left


def _numbered(found: list[Device]) -> list[Device]:
    return [replace(device, id=f"cuda:{number}") for number, device in enumerate(found)]


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
