"""From devices to hosts: what software is to be chosen for, here or on a machine elsewhere."""

from __future__ import annotations

from collections.abc import Sequence

from rung.core.errors import DeviceError, UnknownDevice, UsageError
from rung.core.types import Device
from rung.hardware import detect
from rung.hardware.catalog.rows import Architecture
from rung.hardware.catalog.support import architecture_of
from rung.hardware.families.webgpu import SOFTWARE
from rung.software.companions import Host

SYSTEMS = ("linux", "windows", "macos")
#: Where several kinds of accelerators are in one machine, software is chosen for the first of these.
_FIRST = ("cuda", "rocm", "xpu", "mps")


def devices_here() -> tuple[tuple[Device, ...], tuple[Device, ...]]:
    """The devices of this machine that software is chosen for, all of one kind, and its other accelerators.

    Without an accelerator that the catalog knows it is the processor. A card that WebGPU reaches too counts once.
    """
    found = detect.devices()
    cards = tuple(device for device in found[1:] if "card" not in device.details)
    for kind in _FIRST:
        if same := tuple(card for card in cards if card.kind == kind and architecture_of(card)):
            return same, tuple(card for card in cards if card not in same)
    return found[:1], cards


def host_of(device: Device, here: Sequence[str], python: str, driver: str = "", system: str = "") -> Host:
    """The host of a device; ``here`` are the system and the machine of this Python, as in ``Host``.

    For a card that is not here they are what such cards are used with. ``driver`` replaces the device's, ``system``
    (``linux``, ``windows``, ``macos``, with or without ``-aarch64``) both. Raises ``UnknownDevice`` for an
    architecture that is not in the catalog, ``DeviceError`` for a software adapter, ``UsageError`` for a system that
    nobody knows.
    """
    row = architecture_of(device)
    if row is None and device.arch == SOFTWARE:
        raise DeviceError(
            f"{device.name} computes on the processor, and no software is made for it.",
            [],
            ["rung setup   # for what is here"],
        )
    if row is None:
        raise UnknownDevice(
            f"The catalog does not know {device.arch}, the architecture of {device.name}.",
            ["cards newer than the catalog usually need the newest torch"],
            ["pip install --upgrade torch", "rung devices --probe"],
        )
    usual = tuple(here) if device.real else _usual(row, here[0])
    if system:
        name, _, machine = system.partition("-")
        usual = (name, machine or usual[1])
        if name not in SYSTEMS or usual[1] not in ("x86_64", "aarch64"):
            raise UsageError(
                f"{system!r} is none of {', '.join(SYSTEMS)}, with or without -x86_64 or -aarch64.", code="name-unknown"
            )
    return Host(
        card=device.name,
        architecture=row.key,
        driver=driver or device.software.get("driver", "") if row.kind == "cuda" else "",
        system=usual[0],
        machine=usual[1],
        python=python,
    )


def _usual(row: Architecture, here: str) -> tuple[str, str]:
    """The system and the processor around a card that is elsewhere."""
    if row.kind == "mps" or row.key.startswith("arm-apple"):
        return "macos", "aarch64"
    machine = row.machine or ("aarch64" if row.platform else "x86_64")
    return "linux" if here == "macos" or row.platform else here, machine
