"""Hold what goes with a build of torch: Triton, bitsandbytes, flash-attn, xformers; whether it runs on a card, and
which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rung.core.types import Level
from rung.core.value import Value
from rung.hardware.catalog import releases
from rung.hardware.catalog.capabilities import capabilities
from rung.hardware.catalog.releases import Build, features
from rung.hardware.catalog.rows import Architecture, architectures, version
from rung.hardware.catalog.support import covers, runs_there
from rung.hardware.catalog.tables import load

_SYSTEMS = {"linux": "Linux", "windows": "Windows", "macos": "macOS"}
#: What serves where a package does not.
_INSTEAD = {
    "bitsandbytes": "rung quantizes by itself: rung run MODEL --format nf4",
    "flash-attn": "torch's scaled_dot_product_attention takes another kernel",
    "xformers": "torch's scaled_dot_product_attention does the same",
}


@dataclass(frozen=True)
class Host(Value):
    """Hold what software is chosen for: a card (name, key of its architecture, version of its driver, empty when
    unknown) in a system (``linux``, ``windows``, ``macos``) on a processor (``x86_64``, ``aarch64``) with a Python
    (``3.12``).
    """

    card: str
    architecture: str
    driver: str = ""
    system: str = "linux"
    machine: str = "x86_64"
    python: str = "3.12"

    @property
    def row(self) -> Architecture:
        """Its architecture in the catalog."""
        return architectures()[self.architecture]

    @property
    def platform(self) -> str:
        """``linux-x86_64``, as the catalog says where builds are published."""
        return f"{self.system}-{self.machine}"

    @property
    def target(self) -> str:
        """Return the target that builds carry code for: ``6.1``, ``gfx1030``, ``x86_64``."""
        return self.row.cc or self.row.machine or self.architecture


@dataclass(frozen=True)
class Choice(Value):
    """One package: ``how`` is install, included (it comes with torch), optional or none, for that ``reason``.

    ``arguments`` are for ``pip install``, empty where pip has nothing to do; ``command`` is the line to paste.
    """

    package: str
    version: str
    how: str
    reason: str
    arguments: tuple[str, ...] = ()
    command: str | None = None
    source: str = ""


def command(arguments: Sequence[str]) -> str | None:
    """The line for a shell, of Linux or Windows; None without arguments."""
    words = (f'"{word}"' if any(mark in word for mark in "<>&|;() ") else word for word in arguments)
    return f"pip install {' '.join(words)}" if arguments else None


def platform_words(platform: str) -> str:
    """``Linux on x86_64`` of ``linux-x86_64``."""
    system, _, machine = platform.partition("-")
    return f"{_SYSTEMS.get(system, system)} on {machine}"


def runs_as(build: Build, host: Host) -> str:
    """Which code of a build runs on the card, as a sentence."""
    image = build.image(host.row)
    if image in (host.target, host.architecture):
        return f"carries code for {host.target}"
    return f"its code for {image} runs on {host.target}"


def packages(build: Build, hosts: Sequence[Host]) -> Iterator[Choice]:
    """Triton, bitsandbytes, flash-attn and xformers beside that build, on all those cards."""
    yield _triton(build, hosts)
    for name in ("bitsandbytes", "flash-attn", "xformers"):
        yield _package(name, build, hosts)


def features_there(package: str, at: str, row: Architecture) -> Iterator[tuple[str, str, str]]:
    """The features of a release on an architecture: name, yes, slow, no or unknown, and the reason of all but yes."""
    for feature in features():
        if feature["package"] == package and row.kind in feature.get("kinds", row.kind) and covers(feature, at):
            runs, reason = runs_there(feature, row)
            yield feature["feature"], runs, reason


def _triton(build: Build, hosts: Sequence[Host]) -> Choice:
    release = releases.triton(build)
    system = hosts[0].system
    if build.backend in ("cpu", "mps") or not release:
        text = "compiles for GPUs of NVIDIA, AMD and Intel" if release else f"torch {build.release} does without"
        return Choice("triton", "", "none", text)
    why = next((reason for host in hosts for reason in _no_compile(build, host)), "")
    if build.backend == "cuda" and system == "windows":
        if release not in load("releases.toml")["triton_windows"].split():
            return Choice("triton", "", "none", f"nobody publishes Triton {release} for Windows; torch runs without")
        major, minor = version(release)
        requirements = (f"triton-windows>={release},<{major}.{minor + 1}",)
        if why:
            return Choice("triton", "", "none", why)
        reason = "for torch.compile; others than its makers build it for Windows"
        return Choice("triton", release, "optional", reason, requirements, command(requirements), "https://pypi.org")
    return Choice("triton", release, "included", f"comes with torch{f', but {why}' if why else ''}")


def _no_compile(build: Build, host: Host) -> Iterator[str]:
    found = capabilities(host.architecture, build).get("compile")
    if found and found.level is Level.ABSENT:
        yield found.source.partition(": http")[0]


def _package(name: str, build: Build, hosts: Sequence[Host]) -> Choice:
    """The newest release of a package that fits build and hosts; else none, with the newest one's reason."""
    reasons = []
    for row in releases.packages(name):
        reason = next((text for host in hosts for text in _against(row, build, host)), "")
        if not reason:
            requirements = tuple(row["install"].format(cu=build.name).split())
            compiler = f"nvcc of CUDA {build.toolkit}" if build.backend == "cuda" else f"hipcc of ROCm {build.toolkit}"
            text = row.get("optional", "").format(compiler=compiler)
            how = "optional" if text else "install"
            about = "; ".join(part for part in (text, *_features(name, row["version"], hosts)) if part)
            return Choice(
                name, row["version"], how, about, requirements, command(requirements), releases.source(row["source"])
            )
        reasons.append(reason)
    return Choice(name, "", "none", f"{reasons[0]}; {_INSTEAD[name]}", source="")


def _against(row: Mapping[str, Any], build: Build, host: Host) -> Iterator[str]:
    """Why a release of a package does not go with a build on a host."""
    found = list(features_there(row["name"], row["version"], host.row))
    words = {runs for _, runs, _ in found}
    if not words & {"yes", "slow"}:
        refused = [reason for _, runs, reason in found if runs == "no"]  # the most demanding feature stands first
        unsure = [reason for _, runs, reason in found if runs == "unknown"]
        yield (refused or unsure or ["nobody has said whether it runs there"])[-1]
    at = version(build.release)
    if host.platform not in row["on"].split() or build.platform == "jetson":
        yield f"not published for {platform_words(host.platform)}"
    if version(host.python) < version(row["python"]):
        yield f"asks for Python {row['python']} or newer"
    if at < version(row["torch"]):
        yield f"asks for torch {row['torch']} or newer"
    if "torch_below" in row and at >= version(row["torch_below"]):
        yield f"made for torch below {row['torch_below']}"
    known = row["cuda"].split()
    if build.backend == "cuda" and build.toolkit not in known and build.toolkit.partition(".")[0] not in known:
        yield f"built for CUDA {' '.join(known)}, not {build.toolkit}"


def _features(name: str, at: str, hosts: Sequence[Host]) -> Iterator[str]:
    """Yield what runs of a release on all the hosts, then what does not on one of them, with the reason."""
    found = [one for host in hosts for one in features_there(name, at, host.row)]
    refused = {feature for feature, runs, _ in found if runs in ("no", "unknown")}
    if good := [feature for feature in dict.fromkeys(feature for feature, _, _ in found) if feature not in refused]:
        yield ", ".join(good)
    words = {"slow": "slow", "no": "not", "unknown": "not known"}
    yield from dict.fromkeys(f"{feature} {words[runs]}: {reason}" for feature, runs, reason in found if runs in words)
