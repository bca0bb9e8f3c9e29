"""Releases of software: what each of torch carries, and versions, Pythons, systems, indexes and drivers of all."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rung.core.errors import UsageError
from rung.core.text import did_you_mean
from rung.hardware.catalog.rows import Architecture, numbers, version
from rung.hardware.catalog.tables import load

_NAMES = {"cu": "cuda", "rocm": "hip", "xpu": "xpu", "cpu": "cpu", "": "mps"}


@dataclass(frozen=True)
class Build:
    """One release of torch: ``2.14+cu126``. ``toolkit`` is the version of CUDA or ROCm, empty elsewhere.

    ``code`` is what it carries device code for, ``ptx`` text that a driver compiles for later cards; ``platform``
    (jetson, aarch64) says what it is made for; ``default`` is what a plain pip install gives. ``local`` is its full
    name, ``index`` or ``file`` an address, ``pythons`` its lowest and highest, where the common ones do not hold.
    """

    release: str
    name: str
    code: tuple[str, ...]
    ptx: str
    platform: str
    default: bool
    status: str
    source: str
    local: str = ""
    index: str = ""
    file: str = ""
    pythons: tuple[str, ...] = ()

    @property
    def backend(self) -> str:
        """cuda, hip, xpu, mps or cpu."""
        return _NAMES[re.sub(r"[\d.]+$", "", self.name)]

    @property
    def toolkit(self) -> str:
        """``12.6`` of cu126, ``6.4`` of rocm6.4."""
        digits = re.sub(r"^[a-z]+", "", self.name)
        return digits if "." in digits or not digits else f"{digits[:-1]}.{digits[-1]}"

    def with_release(self, release: str) -> Build:
        """The same build of another patch: ``2.7.1`` of ``2.7``."""
        return replace(self, release=release)

    def __str__(self) -> str:
        return f"torch {self.release}+{self.name}" if self.name else f"torch {self.release}"

    def image(self, architecture: Architecture) -> str:
        """The code of this build that runs there: ``6.0`` on compute capability 6.1, ``gfx1030``; empty when none does.

        A cubin runs on its own major number from its own minor number on, PTX on everything later.
        """
        capability = architecture.capability
        if capability is None:
            target = architecture.machine or architecture.key
            if target in self.code:
                return target
            newer = architecture.override_below and version(self.release) >= version(architecture.override_below)
            return architecture.override if architecture.override in self.code and not newer else ""
        if self.backend != "cuda":
            return ""
        fits = [code for code in self.code if version(code)[0] == capability[0] and version(code)[1] <= capability[1]]
        if fits:
            return max(fits, key=version)
        return f"{self.ptx} as PTX" if self.ptx and version(self.ptx) <= capability else ""

    def software(self) -> dict[str, str]:
        """Return the ``software`` of a device with this build: ``{"torch": "1.10.0", "cuda": "10.2", "arch_list":
        "sm_37 sm_50 ..."}``."""
        found = {"torch": self.release if self.release.count(".") > 1 else f"{self.release}.0"}
        if self.toolkit:
            found["rocm" if self.backend == "hip" else self.backend] = self.toolkit
            prefix = "sm_" if self.backend == "cuda" else ""
            found["arch_list"] = " ".join(f"{prefix}{code.replace('.', '')}" for code in self.code)
        return found


@functools.cache
def builds() -> tuple[Build, ...]:
    """All builds, the newest release first."""
    found = []
    for row in load("software.toml")["torch"]:
        for release in row["versions"].split():
            found.append(
                Build(
                    release=release,
                    name=row["build"],
                    code=tuple(row["code"].split()),
                    ptx=row.get("ptx", ""),
                    platform=row.get("platform", ""),
                    default=row.get("default", False),
                    status=row["status"],
                    source=load("software.toml")["sources"].get(row["source"], row["source"]),
                    local=row.get("local", ""),
                    index=row.get("index", ""),
                    file=row.get("file", ""),
                    pythons=tuple(row.get("python", "").split()),
                )
            )
    return tuple(sorted(found, key=_newest, reverse=True))


def _newest(build: Build) -> tuple[tuple[int, int], bool, tuple[int, int]]:
    return version(build.release), build.default, version(build.toolkit or "0")


@functools.cache
def newest(key: str) -> Build | None:
    """The newest build that still carries code for the architecture of that key, None when none ever did."""
    from rung.hardware.catalog.rows import architectures

    architecture = architectures()[key]
    fits = (b for b in builds() if b.platform == architecture.platform and b.image(architecture))
    return next(fits, None)


def parse(text: str, architecture: Architecture) -> tuple[Build, dict[str, str]]:
    """The torch build of ``torch 1.10+cu102, bitsandbytes 0.42`` and the other packages with their versions.

    Without a build name it is the one that pip gives for that architecture; without torch, the newest that runs there.
    Raises ``UsageError`` with the builds that are known.
    """
    chosen, others = None, {}
    for part in (part.strip() for part in text.split(",")):
        found = re.fullmatch(r"([A-Za-z][\w.-]*?)?\s*(?:==|=)?\s*v?(b?\d+(?:\.\d+)*)(?:\+(\w[\w.]*))?", part)
        if not found:
            raise UsageError(
                f"{part!r} names no release of a package.",
                ["it is a package with its version: torch 2.3+cu121, bitsandbytes 0.42"],
                ['rung devices t4 --software "torch 2.3+cu121"'],
            )
        package = (found[1] or "torch").lower().replace("_", "-")
        if package in ("torch", "pytorch"):
            chosen = _torch(found[2], found[3], architecture)
        else:
            others[_package(package)] = found[2]
    chosen = chosen or newest(architecture.key)
    if chosen is None:
        raise UsageError(
            f"No released torch carries code for {architecture.key}: name one with --software.", code="no-torch-build"
        )
    return chosen, others


def _torch(release: str, name: str | None, architecture: Architecture) -> Build:
    short = ".".join(release.split(".")[:2])
    same = [b for b in builds() if b.release == short]
    if not same:
        known = sorted({b.release for b in builds()}, key=version)
        raise UsageError(
            f"The catalog knows torch {known[0]} to {known[-1]}, not {release}.{did_you_mean(release, known)}",
            ways_out=[f'rung devices t4 --software "torch {known[-1]}"'],
            code="name-unknown",
        )
    fits = [b for b in same if b.name == name] if name else _plain(same, architecture)
    if not fits:
        names = sorted({str(b) for b in same})
        raise UsageError(
            f"The catalog has no build torch {release}+{name}.",
            [f"of {short} it knows: {', '.join(names)}"],
            code="no-torch-build",
        )
    best = next((b for b in fits if b.platform == architecture.platform), fits[0])
    return best.with_release(release)


def _plain(same: list[Build], architecture: Architecture) -> list[Build]:
    """Return the builds that a plain install of that release gives on a machine with such a device, the best first."""
    backend = {"cuda": "cuda", "rocm": "hip"}.get(architecture.kind, architecture.kind)
    own = [b for b in same if b.backend == backend]
    return [b for b in own if b.default] or own or [b for b in same if b.backend == "cpu"]


def _package(name: str) -> str:
    """The name that the catalog has for a package, in whatever case it is written."""
    known = {str(row["package"]).lower(): row["package"] for row in features()}
    if name not in known:
        raise UsageError(
            f"The catalog knows no package {name!r}.{did_you_mean(name, [*known, 'torch'])}",
            [f"packages: torch, {', '.join(sorted(set(known.values())))}"],
            code="name-unknown",
        )
    return str(known[name])


def features() -> list[Mapping[str, Any]]:
    """The rows of ``[[feature]]``."""
    return list(load("software.toml").get("feature", ()))


INDEX = "https://download.pytorch.org/whl"
#: Releases before this one lie on one page for all builds, and are found with ``--find-links``.
_INDEXED_SINCE = (1, 11)
_OLD_PAGE = f"{INDEX}/torch_stable.html"


@functools.cache
def releases() -> Mapping[str, Mapping[str, str]]:
    """The rows of ``release`` by release: version, python, triton."""
    return {row["release"]: row for row in load("releases.toml")["release"]}


def newest_release() -> str:
    """The newest release of torch that the catalog knows: ``2.15``."""
    return builds()[0].release


def newest_version(release: str) -> str:
    """The last patch of a release: ``2.14.1`` of ``2.14``; a release that names a patch is left as it is."""
    return release if release.count(".") > 1 else releases()[release]["version"]


def pythons(build: Build) -> tuple[str, str]:
    """The lowest and the highest Python that a build has wheels for."""
    lowest, highest = build.pythons or releases()[_short(build)]["python"].split()
    return lowest, highest


def triton(build: Build) -> str:
    """The Triton that belongs to a build: ``3.8``, empty where there was none."""
    return releases()[_short(build)].get("triton", "")


@functools.cache
def places(build: Build) -> tuple[str, ...]:
    """Where a build is published: ``linux-x86_64``, ``windows-x86_64`` ..."""
    at = version(build.release)
    found: list[str] = []
    for row in load("releases.toml")["place"]:
        same = build.name.startswith(row["build"]) if row["build"] else not build.name
        if not same or row.get("platform", "") != build.platform:
            continue
        if version(row.get("since", "0")) <= at and ("before" not in row or at < version(row["before"])):
            found += row["on"].split()
    return tuple(found)


def plain(build: Build, platform: str) -> bool:
    """Return whether a plain ``pip install torch`` of that release gives this build there."""
    if platform == "linux-aarch64" and build.name == "cpu":
        return not any(b.default and b.platform == "aarch64" for b in builds() if b.release == _short(build))
    system = platform.partition("-")[0]
    return {"macos": True, "windows": build.name == "cpu"}.get(system, build.default and build.platform != "jetson")


def arguments(build: Build, platform: str, indexes: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return pip's arguments for a build: ``("torch==2.14.1+cu126", "--index-url", ...)``.

    ``indexes`` replace the index of the build: options for pip, as they are. Empty where pip cannot fetch the build.
    """
    if build.file:
        return () if "#" in build.file else (build.file,)
    requirement = f"torch=={newest_version(build.release)}"
    if plain(build, platform):
        return (requirement, *indexes)
    if build.platform != "jetson":
        requirement += f"+{build.local or build.name}"
    if indexes:
        return (requirement, *indexes)
    if version(build.release) < _INDEXED_SINCE:
        return (requirement, "--find-links", _OLD_PAGE)
    return (requirement, "--index-url", build.index or f"{INDEX}/{build.local or build.name}")


def minimum_driver(build: Build, system: str, first_cuda: str = "") -> str:
    """The lowest NVIDIA driver for a build on a card, empty for other backends.

    From CUDA 11 on a program needs the lowest driver of its major version only; text for later cards (PTX), which
    needs more, is not counted on. A card is known to drivers from that of ``first_cuda`` on, the first toolkit that
    compiles for it.
    """
    if build.backend != "cuda" or build.platform == "jetson":
        return ""
    table = load("releases.toml")
    major = build.toolkit.partition(".")[0]
    rows = [
        *(r for r in table["driver"] if r["cuda"] == major),
        *(r for r in table["toolkit"] if r["cuda"] == first_cuda),
    ]
    return max((str(row["windows" if system == "windows" else "linux"]) for row in rows), key=numbers)


def old_driver(driver: str, cuda: int, system: str) -> bool:
    """Return whether a driver is of an older branch than the lowest that runs programs of a major version of CUDA."""
    rows = load("releases.toml")["driver"]
    lowest = next((row["windows" if system == "windows" else "linux"] for row in rows if row["cuda"] == str(cuda)), "")
    return bool(lowest) and () < numbers(driver)[:1] < numbers(str(lowest))[:1]


def old_enough(driver: str, last: str) -> bool:
    """Return whether a driver still knows a card whose last branch is ``last`` (``580``; empty: the current one
    does)."""
    return not last.isdigit() or numbers(driver)[:1] <= (int(last),)


def packages(name: str) -> list[Mapping[str, Any]]:
    """The rows of ``[[package]]`` of that name, the newest first."""
    return [row for row in load("releases.toml")["package"] if row["name"] == name]


def source(name: str) -> str:
    """The full name of a source of ``releases.toml``."""
    return str(load("releases.toml")["sources"][name])


def _short(build: Build) -> str:
    return ".".join(build.release.split(".")[:2])
