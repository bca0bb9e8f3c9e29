"""Hold what a probe found on a device, kept on disk until the device, its driver or the software changes."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rung.core import version
from rung.core.settings import CACHE
from rung.core.types import EMPTY, Capability, Device, Level
from rung.core.value import FrozenDict, Value
from rung.hardware.families.cpu import own_features, restrictions

#: A longer file is none of ours.
_LARGEST = 1 << 22


def folder() -> Path:
    """The folder that the proofs lie in; it need not exist."""
    path: Path = CACHE.read()
    return path / "proofs"


def _file(key: Mapping[str, str]) -> Path:
    digest = hashlib.sha256(json.dumps(dict(key), sort_keys=True).encode()).hexdigest()
    return folder() / f"{digest[:32]}.json"


def how_often(why: bool = False) -> str:
    """Return "once", or "each time" (and ``why``) where nothing can be kept: how often a person waits for a proof."""
    path = folder()
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return "once"
    except OSError as error:
        reason = f": {path} cannot be written ({error.strerror or error}). RUNG_CACHE names another folder"
        return "each time" + reason * why


def read_json(key: Mapping[str, str]) -> Any | None:
    """The value stored under ``key``, or None: never stored, unreadable, corrupt, or another key's."""
    try:
        with open(_file(key), "rb") as file:
            data = json.loads(file.read(_LARGEST))
        return data["value"] if data["key"] == dict(key) else None
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def write_json(key: Mapping[str, str], value: Any) -> str:
    """Stores a JSON-able value under ``key``; returns an empty string, or a sentence why it could not be kept."""
    path = _file(key)
    new = path.with_name(f".{path.stem}-{os.getpid()}-{time.monotonic_ns()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(new, "x", encoding="utf-8") as file:
            json.dump({"key": dict(key), "value": value}, file)
        os.replace(new, path)
    except OSError as error:
        reason = error.strerror or str(error)
        return f"{path.parent} cannot be written ({reason}), so this is measured again next time: set RUNG_CACHE"
    finally:
        with contextlib.suppress(OSError):
            new.unlink()
    return ""


def remove(key: Mapping[str, str]) -> None:
    """Forgets the value stored under ``key``, if there is one and the folder can be written."""
    with contextlib.suppress(OSError):
        _file(key).unlink()


@contextlib.contextmanager
def lock(key: Mapping[str, str], seconds: float = 60.0) -> Iterator[None]:
    """Let one process at a time find out the value of ``key``; the next ones then read it.

    Goes ahead without a lock where there can be none, and after ``seconds``.
    """
    with contextlib.ExitStack() as stack:
        try:
            import fcntl

            path = _file(key).with_suffix(".lock")
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(path, "a", encoding="utf-8"))
            deadline = time.monotonic() + seconds
            while not _locked(fcntl, file.fileno()) and time.monotonic() < deadline:
                time.sleep(0.05)
        except (OSError, ImportError):
            pass  # a folder that cannot be written, a system without locks: two may measure the same
        yield


def _locked(fcntl: Any, handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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
    rates = read_json(_rates_key(device))
    return replace(known, rates=FrozenDict(rates)) if _are_rates(rates) else known


def write_rates(device: Device, rates: Mapping[str, float]) -> str:
    """Keeps what ``rung calibrate`` measured; returns a sentence when it could not be kept."""
    return write_json(_rates_key(device), dict(rates))


def _rates_key(device: Device) -> dict[str, str]:
    """Rates hold for what a probe's findings hold for; those do not change what the key is made of."""
    here = replace(device, capabilities=FrozenDict({}))
    return {**key(here), "what": "rates"}


def _are_rates(data: object) -> bool:
    return isinstance(data, dict) and all(isinstance(rate, float) and rate > 0 for rate in data.values())


def read(device: Device) -> Findings | None:
    """Return the findings of the last probe of that device, or None; expired ones do not count."""
    data = read_json(key(device))
    try:
        found = Findings.from_json(data) if isinstance(data, Mapping) else None
    except (ValueError, TypeError):
        return None  # written by a version that kept other things
    return None if found and 0 < found.until < time.time() else found


def write(device: Device, found: Findings) -> str:
    """Keeps what a probe found; returns a sentence when it could not be kept."""
    return write_json(key(device), found.to_json())


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
