"""How released software is published: versions, Pythons, systems, indexes, drivers, and what goes with torch."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from rung.hardware.catalog.builds import Build, builds
from rung.hardware.catalog.rows import numbers, version
from rung.hardware.catalog.tables import load

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
