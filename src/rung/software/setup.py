"""Which released software fits a machine: torch and what goes with it, each with the reason and what pip is given.

Pure: hosts and the catalog in, a ``Setup`` out. torch is the newest build that carries code for every card, whose
CUDA the driver runs and that has wheels for the Python and the system. Where there is none, it is the newest of those
that ask for the cheapest change (another Python before another driver before another system), and ``needs`` says which;
what fits as it is, computing on the processor, is then ``otherwise``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from rung.core.types import Level
from rung.core.value import Value
from rung.hardware.catalog import releases
from rung.hardware.catalog.capabilities import capabilities, gfx_version
from rung.hardware.catalog.releases import Build, builds, newest
from rung.hardware.catalog.rows import architectures, numbers, version
from rung.software import companions
from rung.software.companions import Choice, Host, command, features_there, platform_words, runs_as

#: A llama.cpp that the catalog has looked into.
_LLAMA = "b9000"
#: What may have to change, with what it costs relative to the others: more than all cheaper ones together.
_COSTS = {"python": 1, "driver": 2, "system": 4}


@dataclass(frozen=True)
class Refusal(Value):
    """A build that is newer than the one chosen, and why it was not."""

    build: str
    reason: str


@dataclass(frozen=True)
class Setup(Value):
    """Hold what fits ``hosts``. ``needs`` are sentences about what must change first, ``python`` the Python to take if
    it is among them, ``otherwise`` what fits without; ``notes`` is what there is to know of these cards with this
    build, ``environment`` are variables that they need."""

    hosts: tuple[Host, ...]
    torch: Choice
    needs: tuple[str, ...]
    python: str
    otherwise: Choice | None
    packages: tuple[Choice, ...]
    notes: tuple[str, ...]
    environment: tuple[str, ...]
    refused: tuple[Refusal, ...]


def choose(hosts: Sequence[Host], version: str = "", indexes: Sequence[str] = ()) -> Setup | None:
    """The software that fits all the hosts, which share system and Python; None where no build carries code for all.

    ``version`` narrows torch: a release with or without patch and build (``2.7``, ``2.7.1+cu126``); ``indexes`` are
    options for pip in place of the official index. A single host always gets an answer, unless ``version`` forbids it.
    """
    found = [build for build in builds() if _is_requested(build, version)]
    first, *others = hosts
    serving = [b for b in _serving(first.architecture, first.machine) if _is_requested(b, version)]
    serving = [b for b in serving if all(serves(b, host) for host in others)]
    if not serving and len(hosts) == 1 and (version.endswith("+cpu") or not _served(hosts[0])):
        serving = [build for build in found if build.name == "cpu"]
    if not serving:
        return None
    fits = next((build for build in serving if not _cost(build, hosts)), None)
    best = fits or min(serving, key=lambda build: _cost(build, hosts))
    needs = tuple(dict.fromkeys(text for host in hosts for text in lacks(best, host).values()))
    otherwise = next((b for b in found if needs and b.name == "cpu" and not _cost(b, hosts)), None)
    return Setup(
        hosts=tuple(hosts),
        torch=_torch(best, hosts, version, indexes),
        needs=needs,
        python=releases.pythons(best)[1] if any("python" in lacks(best, host) for host in hosts) else "",
        otherwise=_torch(otherwise, hosts, version, indexes) if otherwise else None,
        packages=tuple(_from(indexes, choice) for choice in companions.packages(best, hosts)),
        notes=tuple(dict.fromkeys(note for host in hosts for note in _notes(best, host))),
        environment=tuple(dict.fromkeys(text for host in hosts for text in _environment(best, host))),
        refused=tuple(_refused(best, hosts, found)),
    )


def _from(indexes: Sequence[str], choice: Choice) -> Choice:
    """A package from the indexes that are given, in place of its own."""
    if not indexes or not choice.arguments:
        return choice
    own = choice.arguments
    if "--index-url" in own:
        index = own.index("--index-url")
        own = own[:index] + own[index + 2 :]
    return replace(choice, arguments=(*own, *indexes), command=command((*own, *indexes)))


def serves(build: Build, host: Host) -> bool:
    """Return whether a build carries code that runs on the host's card; a processor of Arm takes the builds made for
    it."""
    return build in _serving(host.architecture, host.machine)


@functools.cache
def _serving(key: str, machine: str) -> Mapping[Build, str]:
    """The builds with code for an architecture, the newest first, and the code that runs."""
    row = architectures()[key]
    platform = row.platform or ("aarch64" if row.kind == "cuda" and machine == "aarch64" else "")
    images = {build: build.image(row) for build in builds() if build.platform == platform}
    # text that the driver would have to compile asks for a newer driver than the minimum
    return {build: image for build, image in images.items() if image and not image.endswith("PTX")}


def _served(host: Host) -> bool:
    return bool(_serving(host.architecture, host.machine))


@functools.cache
def lacks(build: Build, host: Host) -> dict[str, str]:
    """Return the changes that a host needs for a build: ``python``, ``driver`` and ``system``, each with a sentence."""
    found = {}
    lowest, highest = releases.pythons(build)
    if not version(lowest) <= version(host.python) <= version(highest):
        span = f"Python {lowest} to {highest}" if lowest != highest else f"Python {lowest}"
        found["python"] = f"{span} instead of {host.python}"
    minimum, last = releases.minimum_driver(build, host.system, host.row.min_cuda), host.row.last_driver or ""
    if minimum and host.driver and numbers(host.driver) < numbers(minimum):
        found["driver"] = f"NVIDIA driver {minimum} or newer instead of {host.driver}"
    elif minimum and host.driver and not releases.old_enough(host.driver, last):
        found["driver"] = f"an NVIDIA driver of branch {last}, the last for this card, instead of {host.driver}"
    if host.platform not in releases.places(build):
        where = " or ".join(platform_words(platform) for platform in releases.places(build)) or "a system of its own"
        found["system"] = f"{where} instead of {platform_words(host.platform)}"
    return found


def _cost(build: Build, hosts: Sequence[Host]) -> int:
    return sum(_COSTS[name] for name in {name for host in hosts for name in lacks(build, host)})


def _is_requested(build: Build, requested: str) -> bool:
    release, _, name = requested.partition("+")
    return (not release or numbers(release)[:2] == version(build.release)) and name in ("", build.name, build.local)


def _torch(build: Build, hosts: Sequence[Host], version: str, indexes: Sequence[str]) -> Choice:
    patch = version.partition("+")[0]
    exact = build.with_release(patch) if patch.count(".") > 1 else build
    name = f"+{build.local or build.name}" if build.name else ""
    arguments = releases.arguments(exact, hosts[0].platform, tuple(indexes))
    of_file = re.search(r"torch-([\w.+]+)-cp", build.file)
    return Choice(
        package="torch",
        version=of_file[1] if of_file else releases.newest_version(exact.release) + name,
        how="install",
        reason="; ".join(dict.fromkeys(text for host in hosts for text in _reasons(build, host))),
        arguments=arguments,
        command=command(arguments) or _by_hand(build),
        source=build.source,
    )


def _by_hand(build: Build) -> str | None:
    """Fetching a wheel that its server gives another name."""
    address, _, name = build.file.partition("#")
    return f"wget {address} -O {name} && pip install ./{name}" if name else None


def _reasons(build: Build, host: Host) -> Iterator[str]:
    if build.backend == "cpu":
        yield "computes on the processor"
        if not _served(host):
            yield f"no released torch for {host.machine} carries code for {host.target}"
        return
    yield runs_as(build, host)
    if minimum := releases.minimum_driver(build, host.system, host.row.min_cuda):
        here = f" ({host.driver} is here)" if host.driver else ""
        yield f"needs NVIDIA driver {minimum} or newer{here}"


def _notes(build: Build, host: Host) -> Iterator[str]:
    row, last = host.row, newest(host.architecture)
    if row.kind != "cpu" and build.backend == "cpu":
        vulkan = any(name == "Vulkan" and runs == "yes" for name, runs, _ in features_there("llama.cpp", _LLAMA, row))
        yield f"{host.card} is left unused" + ("; llama.cpp runs on it, through Vulkan." if vulkan else ".")
        return
    current = next((b for b in builds() if b.backend == build.backend and b.platform == build.platform), build)
    if last and version(last.release) < version(current.release):
        yield (
            f"torch {current.release} has no code for {host.target}; {last.release} is the last that has. It goes on "
            "working, but programs that ask for a newer torch will not run on this card."
        )
    if row.last_driver and row.last_driver.isdigit() and not host.driver:
        yield f"Driver branch {row.last_driver} is the last for this card: newer drivers do not load for it."
    found = capabilities(host.architecture, build).get("matmul.bf16")
    if found and row.kind != "cpu" and found.level in (Level.ABSENT, Level.EMULATED):
        how = "emulated, and slow" if found.level is Level.EMULATED else "refused"
        yield f"bfloat16 is {how} on {host.card}: load models in float16."
    if build.status == "unsure" and row.kind != "cpu":
        yield f"What {build} carries was not looked into: {build.source}."
    if row.kind == "rocm" and host.system == "windows":
        yield "AMD publishes builds for Windows itself, which the catalog does not have: https://repo.amd.com/rocm/"


def _environment(build: Build, host: Host) -> Iterator[str]:
    image = build.image(host.row)
    if image and image == host.row.override:
        yield f"HSA_OVERRIDE_GFX_VERSION={gfx_version(image)}"


def _refused(best: Build, hosts: Sequence[Host], found: Sequence[Build]) -> Iterator[Refusal]:
    """The first build of each newer release for the same backend, each with its first reason."""
    releases_tried = {best.release}
    for build in found:
        if build is best:
            return
        if build.backend == best.backend and build.platform == best.platform and build.release not in releases_tried:
            releases_tried.add(build.release)
            reasons = (text for host in hosts for text in _reason_against(build, host))
            yield Refusal(str(build), next(reasons))


def _reason_against(build: Build, host: Host) -> Iterator[str]:
    if not serves(build, host):
        yield f"carries code for {' '.join(build.code)}: none of it runs on {host.target}"
    for text in lacks(build, host).values():
        yield f"asks for {text}"
