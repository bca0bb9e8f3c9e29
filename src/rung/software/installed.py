"""Find out whether what is installed fits a machine: torch's code and the card, its CUDA and the driver, and the
rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rung.core.errors import DeviceError, UnknownDevice, UsageError
from rung.core.types import Device
from rung.core.value import Value
from rung.hardware import detect
from rung.hardware.catalog import releases
from rung.hardware.catalog.releases import Build, builds, newest
from rung.hardware.catalog.rows import Architecture, numbers, version
from rung.hardware.catalog.support import architecture_of
from rung.hardware.families.webgpu import SOFTWARE
from rung.software.companions import Host, features_there, runs_as
from rung.software.setup import Setup, lacks, serves

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


@dataclass(frozen=True)
class Finding(Value):
    """Hold what is said of an installed package: it fits, it does not, or nobody knows (None)."""

    package: str
    version: str
    fits: bool | None
    text: str


def judge(installed: Mapping[str, str], host: Host, setup: Setup) -> tuple[Finding, ...]:
    """Findings about torch, Triton, bitsandbytes, flash-attn and xformers, as far as they are installed.

    ``installed`` maps packages to versions, torch also ``torch_cuda``, ``torch_hip``, ``torch_xpu`` and
    ``torch_damaged``; ``setup`` is what would fit.
    """
    if "torch" not in installed:
        return (Finding("torch", "", False, "torch is not installed."),)
    if damage := installed.get("torch_damaged"):
        at = installed["torch"]
        return (
            Finding(
                "torch", at, False, f"torch {at} is damaged: {damage}. Install it again, with pip's --force-reinstall."
            ),
        )
    build = build_of(installed, host)
    found = [_torch(installed["torch"], build, host, setup)]
    if build is not None:
        found += _triton(installed, build)
    for name in ("bitsandbytes", "flash-attn", "xformers"):
        if name in installed:
            found.append(_package(name, installed[name], host))
    return tuple(found)


def releases_of(device: Device) -> dict[str, str]:
    """The releases that a device of the catalog was given, as ``judge`` takes them."""
    keys = {"cuda": "torch_cuda", "rocm": "torch_hip", "xpu": "torch_xpu"}
    found = {keys.get(name, name): text for name, text in device.software.items()}
    build = str(device.details.get("build", "")).partition("+")[2]
    return found | ({"torch": f"{found['torch']}+{build}"} if build and "torch" in found else {})


def build_of(installed: Mapping[str, str], host: Host) -> Build | None:
    """The catalog's build of an installed torch; None for one that somebody compiled, or that is newer."""
    at = version(".".join(str(number) for number in numbers(installed["torch"])[:2]))
    if cuda := installed.get("torch_cuda"):
        name = f"cu{''.join(str(number) for number in numbers(cuda)[:2])}"
    elif hip := installed.get("torch_hip"):
        name = f"rocm{'.'.join(str(number) for number in numbers(hip)[:2])}"
    else:
        name = "xpu" if installed.get("torch_xpu") else "" if host.system == "macos" else "cpu"
    platform = host.row.platform or ("aarch64" if host.machine == "aarch64" else "")
    same = [b for b in builds() if version(b.release) == at and (b.name == name or _rocm(b.name, name))]
    return next((b for candidate in (platform, "") for b in same if b.platform == candidate), None)


def _rocm(known: str, name: str) -> bool:
    return name.startswith("rocm") and known.startswith(f"{name}.")


def _torch(at: str, build: Build | None, host: Host, setup: Setup) -> Finding:
    if build is None:
        text = f"torch {at} is no build of the catalog; what it can do here is found out by: rung devices --probe"
        return Finding("torch", at, None, text)
    on_processor = build.backend == "cpu" or (build.backend == "mps" and not serves(build, host))  # no Apple's GPU
    if on_processor and host.row.kind != "cpu":
        if setup.torch.version.endswith("+cpu"):
            return Finding("torch", at, True, f"torch {at} computes on the processor: {setup.torch.reason}.")
        return Finding("torch", at, False, f"torch {at} computes on the processor only and leaves {host.card} unused.")
    if host.row.kind == "cpu":
        return Finding("torch", at, True, f"torch {at} fits: it computes on the processor.")
    if not serves(build, host):
        return Finding("torch", at, False, f"torch {at} has no code for {host.target}; {_who_has(build, host, setup)}.")
    if missing := [text for name, text in lacks(build, host).items() if name == "driver"]:
        return Finding("torch", at, False, f"torch {at} asks for {missing[0]}.")
    return Finding("torch", at, True, f"torch {at} fits: {runs_as(build, host)}.")


def _who_has(build: Build, host: Host, setup: Setup) -> str:
    last = newest(host.architecture)
    if last is None:
        return "no released torch has"
    if not setup.torch.version.endswith("+cpu"):
        word = "is the last that has" if version(last.release) < version(releases.newest_release()) else "has"
        return f"{setup.torch.version} {word}"
    return f"{releases.newest_version(last.release)}+{last.name} has"


def _triton(installed: Mapping[str, str], build: Build) -> Iterator[Finding]:
    at, release = installed.get("triton", ""), releases.triton(build)
    if at and release and version(at) != version(release):
        text = f"torch {installed['torch']} belongs with Triton {release}, not {at}: torch.compile may fail."
        yield Finding("triton", at, False, text)


def _package(name: str, at: str, host: Host) -> Finding:
    found = list(features_there(name, at, host.row))
    good = [feature for feature, runs, _ in found if runs in ("yes", "slow")]
    against = [f"{feature}: {reason}" for feature, runs, reason in found if runs in ("no", "slow")]
    if not found:
        return Finding(name, at, None, f"{name} {at} is not in the catalog.")
    text = f"{name} {at}: {', '.join(good)}" if good else f"{name} {at} does nothing on {host.card}"
    return Finding(name, at, bool(good), f"{text}. {'; '.join(against)}".rstrip(" ."))
