"""Hold what runs on a device today, and where that is kept: planning takes as long to import as an explanation
takes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rung.core.types import Device
from rung.diagnosis import machine
from rung.diagnosis.explanation import Explanation
from rung.diagnosis.explanation import Works as Works
from rung.hardware import json_cache

if TYPE_CHECKING:
    from rung.diagnosis.evidence import Scene
    from rung.models.networks.values import Outline

_PACKAGE = Path(__file__).parents[2]
#: Sources that decide the answer, below the package.
_SOURCES = ("planning", "formats", "models/catalog", "models/networks", "hardware/catalog", "diagnosis/fixes/suited.py")
#: Free memory changes all the time: so many of its leading bits count.
_BITS = 4


def suit(found: Explanation, scene: Scene, device: Device, outline: Outline | None) -> Explanation:
    """Return the explanation with its fixes checked against ``device`` for the model of ``outline`` or of the log, and
    with what works there: that model, else a well-known one."""
    device = _of_log(scene, device)
    if outline is not None or scene.mentions.runs:
        from rung.diagnosis.fixes import suited

        found = suited.suit(found, scene, device, outline)
    return found if found.works is not None else replace(found, works=best_known(device))


def _of_log(scene: Scene, device: Device) -> Device:
    """Return the card that the log names, where this machine has none; else ``device``."""
    gpu = scene.facts.gpu
    if gpu is None or not device.real or device.kind != "cpu":
        return device
    return machine.card_named(gpu.name) or device


def best_known(device: Device) -> Works | None:
    """Return the well-known model that is named for a device, as it was found before where nothing has changed."""
    key = _key(device)
    data = json_cache.read(key)
    if isinstance(data, Mapping):
        try:
            kept = replace(Works.from_json(data), free=device.budget) if data else None
            if kept is None or kept.memory <= device.budget:
                return kept
        except (ValueError, TypeError, KeyError):
            pass  # written by a version that kept other things: it is found anew
    from rung.diagnosis.fixes import suited

    found = suited.best_known(device)
    json_cache.write(key, found.to_json() if found is not None else {})
    return found


def _key(device: Device) -> dict[str, str]:
    """Return the cache key of the answer: the device with its software, its free memory rounded, and the sources."""
    rates = sorted((*device.rates.items(), *device.peaks.items()))
    parts: dict[str, Any] = {
        "what": "works",
        "id": device.id,
        "name": device.name,
        "free": _rounded(device.budget),
        "bandwidth": device.bandwidth,
        "rates": hashlib.sha256(repr(rates).encode()).hexdigest()[:16],
        "capabilities": len(device.capabilities),
        "sources": _sources(),
    }
    return {name: str(value) for name, value in parts.items()} | {
        f"software.{name}": version for name, version in device.software.items()
    }


def _rounded(count: int) -> int:
    """The number with its leading bits alone."""
    rest = max(count.bit_length() - _BITS, 0)
    return count >> rest << rest


def _sources() -> int:
    """When the newest of the sources was written, in nanoseconds."""
    files = (
        file
        for name in _SOURCES
        for file in ((_PACKAGE / name).rglob("*") if (_PACKAGE / name).is_dir() else (_PACKAGE / name,))
        if file.suffix in (".py", ".table", ".toml")
    )
    return max((file.stat().st_mtime_ns for file in files), default=0)
