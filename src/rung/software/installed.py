"""Find out whether what is installed fits a machine: torch's code and the card, its CUDA and the driver, and the
rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rung.core.types import Device
from rung.core.value import Value
from rung.hardware.catalog import releases
from rung.hardware.catalog.releases import Build, builds, newest
from rung.hardware.catalog.rows import numbers, version
from rung.software.companions import Host, features_there, runs_as
from rung.software.setup import Setup, lacks, serves


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
