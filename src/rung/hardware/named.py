"""Names of devices: ids of what is here, and cards of the catalogue, which ``sim:`` may stand before."""

from __future__ import annotations

from rung.core.types import Device
from rung.hardware import catalog, detect


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
