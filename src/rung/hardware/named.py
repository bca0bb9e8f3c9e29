"""Names of devices: ids of what is here, and cards of the catalogue, which ``sim:`` may stand before."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rung.core.errors import UnknownDevice
from rung.core.types import Device
from rung.hardware import catalog, detect

#: How devices of this machine are called; every other name is one of the catalogue.
_ID = re.compile(r"(?:cpu|cuda|rocm|xpu|mps)(?::\d+)?")


def is_id(name: str) -> bool:
    """Whether it names a device of a machine (``cuda:0``) and no card of the catalogue."""
    return _ID.fullmatch(name) is not None


def absent(name: str, here: Iterable[Device]) -> UnknownDevice:
    """The error for a device that this machine does not have."""
    return UnknownDevice(
        f"There is no device {name!r} here.",
        [f"devices here: {', '.join(device.id for device in here)}"],
        ["rung devices", "rung devices --catalog"],
    )


def by_name(name: str) -> Device | None:
    """The card of the catalogue, or the file of one's own, that is meant.

    None for a device of this machine and for a name nobody knows. Raises ``UnknownDevice`` for an unknown name after
    ``sim:``.
    """
    if name.startswith("sim:") or name.endswith(".toml"):
        return catalog.device(name)
    here = detect.devices(cached=False)
    if any(name in (device.id, device.kind) for device in here) or catalog.find(name) is None:
        return None
    return catalog.device(name)
