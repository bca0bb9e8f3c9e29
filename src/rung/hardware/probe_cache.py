"""Hold what a probe found on a device, kept on disk until the device, its driver or the software changes."""

from __future__ import annotations

import functools
import hashlib
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rung.core import version
from rung.core.types import EMPTY, Capability, Device, Level
from rung.core.value import FrozenDict, Value
from rung.hardware import json_cache
from rung.hardware.families.cpu import own_features, restrictions

_PACKAGE = version.PACKAGE
#: The sources that a proof depends on, below the package: kernels and the probes themselves.
_SOURCES = ("kernels/isa", "run/probe.py", "run/probes")


@dataclass(frozen=True)
class Findings(Value):
    """The outcome of a probe: capabilities, rates in operations per second, bandwidth in bytes per second.

    ``notes`` are sentences about what could not be found out; ``until`` is the time (seconds since 1970) to which all
    of it counts, 0 for always.
    """

    capabilities: tuple[Capability, ...] = ()
    peaks: FrozenDict[float] = EMPTY
    bandwidth: float | None = None
    notes: tuple[str, ...] = ()
    until: float = 0.0


def key(device: Device) -> dict[str, str]:
    """Return the cache key of a proof: device, driver, torch build, JIT with its target, kernels' source, rung's
    version."""
    parts = {
        "what": "probe",
        "id": device.id,
        "name": device.name,
        "arch": device.arch,
        "memory": str(device.memory) if device.kind != "cpu" else "",
        "declared": _digest(",".join(sorted(f"{c.name} {c.level}" for c in device.capabilities.values()))),
        "threads": str(device.details.get("cores", "")),
        "sources": sources(),
        "rung": version.__version__,
    }
    parts |= {name: str(device.details[name]) for name in ("uuid", "pci") if name in device.details}
    parts |= {f"software.{name}": version for name, version in device.software.items()}
    parts |= restrictions(os.environ, own_features())
    return parts


@functools.cache
def sources() -> str:
    """A digest of the sources that a proof depends on; a proof is good until one of them changes."""
    digest = hashlib.sha256()
    for name in _SOURCES:
        path = _PACKAGE / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.exists() else []:
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def recall(device: Device) -> Device:
    """The device with what its last probe found, or as it is when there is none that still holds."""
    found = read(device)
    known = apply(device, found) if found else device
    rates = json_cache.read(_rates_key(device))
    return replace(known, rates=FrozenDict(rates)) if _are_rates(rates) else known


def write_rates(device: Device, rates: Mapping[str, float]) -> str:
    """Keeps what ``rung calibrate`` measured; returns a sentence when it could not be kept."""
    return json_cache.write(_rates_key(device), dict(rates))


def _rates_key(device: Device) -> dict[str, str]:
    """Rates hold for what a probe's findings hold for; those do not change what the key is made of."""
    here = replace(device, capabilities=FrozenDict({}))
    return {**key(here), "what": "rates"}


def _are_rates(data: object) -> bool:
    return isinstance(data, dict) and all(isinstance(rate, float) and rate > 0 for rate in data.values())


def read(device: Device) -> Findings | None:
    """Return the findings of the last probe of that device, or None; expired ones do not count."""
    data = json_cache.read(key(device))
    try:
        found = Findings.from_json(data) if isinstance(data, Mapping) else None
    except (ValueError, TypeError):
        return None  # written by a version that kept other things
    return None if found and 0 < found.until < time.time() else found


def write(device: Device, found: Findings) -> str:
    """Keeps what a probe found; returns a sentence when it could not be kept."""
    return json_cache.write(key(device), found.to_json())


def apply(device: Device, found: Findings) -> Device:
    """The device with those capabilities and rates; ``details["rates"]`` says that they were measured."""
    device = device.with_capabilities(found.capabilities)
    details = dict(device.details)
    if found.peaks or found.bandwidth:
        details["rates"] = "probe"
    if found.notes:
        details["notes"] = "; ".join(found.notes)
    absent = {c.name.removeprefix("matmul.") for c in found.capabilities if c.level is Level.ABSENT}
    return replace(
        device,
        peaks=FrozenDict({d: rate for d, rate in (device.peaks | found.peaks).items() if d not in absent}),
        bandwidth=found.bandwidth or device.bandwidth,
        details=FrozenDict(details),
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
