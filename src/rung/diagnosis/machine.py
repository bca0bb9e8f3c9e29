"""The environment that an explanation is made for: this machine, or a card of the catalog."""

from __future__ import annotations

import platform

from rung.core.errors import UnknownDevice
from rung.core.types import Device
from rung.hardware import catalog, detect
from rung.hardware.software import installed


def this_machine() -> dict[str, str]:
    """GPU, driver, torch, CUDA, system and processor of this machine, as an environment; torch is not imported."""
    found = {"os": f"{platform.system()} {platform.release()}"}
    software = installed()
    if "torch" in software:
        found["torch"] = software["torch"]
    if "torch_cuda" in software:
        found["cuda"] = software["torch_cuda"]
    for device in detect.devices():
        if device.kind == "cpu":
            found["cpu"] = device.name
        elif "gpu" not in found:
            found["gpu"] = device.name
            if device.arch.startswith("sm_"):
                found["compute_capability"] = f"{device.arch[3:-1]}.{device.arch[-1]}"
            if "driver" in device.software:
                found["driver"] = device.software["driver"]
    return {"gpu": "none"} | found


def best_device() -> Device:
    """The device of this machine that models run on: its GPU with the most free memory, else the CPU."""
    from rung.hardware.select import select_groups

    devices = [group[0] for group in select_groups(())]
    return max(devices, key=lambda device: (device.kind != "cpu", device.budget))


def card_named(name: str, software: str | None = None) -> Device | None:
    """The card of the catalog with that name, the CPU of this machine for ``cpu``; None where none is known."""
    if name.lower() == "cpu":
        return best_device() if best_device().kind == "cpu" else None
    try:
        return catalog.device(name, software) if name.strip() else None
    except UnknownDevice:
        return None


def catalog_card(name: str, software: str | None = None) -> dict[str, str]:
    """The environment of a machine with that card, and of the software nothing but what is named.

    Raises ``UnknownDevice``, and ``UsageError`` for software that the catalog does not know.
    """
    device = catalog.device(name, software)
    found = {"gpu": device.name}
    if capability := catalog.architectures()[device.arch].cc:
        found["compute_capability"] = capability
    if software is not None:
        found |= {key: device.software[key] for key in ("torch", "cuda") if key in device.software}
    return found
