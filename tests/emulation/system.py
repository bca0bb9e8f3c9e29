"""Emulated processors without root: qemu, Debian's Python for ARM and the wheels that a language model needs; for x86
this machine's own Python.

``python -m tests.emulation.system`` makes it and prints where. It is kept in a folder outside of the project:
``RUNG_EMULATION``, else one of the user's caches. apt's and pip's own configuration say where packages come from.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_HERE = Path(__file__).parent
_ROOT = _HERE.parents[1]
#: What a language model needs on a CPU, as pip names it.
_PACKAGES = ("numpy", "numba", "llvmlite", "tokenizers")
_GLIBC = range(17, 37)  # wheels for glibc 2.17 to the 2.36 of Debian 12
#: Minutes that one download may take.
_LIMIT = 10


class Unavailable(Exception):
    """The system cannot be had here; the text says why."""


@dataclass(frozen=True)
class Core:
    """A processor as qemu names it, and what its kernel would list in /proc/cpuinfo; ``part`` is ARM's number of it."""

    name: str
    model: str
    part: str
    flags: str
    level: str
    arch: str = "aarch64"

    def cpuinfo(self, cores: int = 2) -> str:
        """Return /proc/cpuinfo as Linux writes it."""
        if self.arch == "aarch64":
            of_arm = "CPU implementer\t: 0x41\nCPU architecture: 8"
            fields = f"BogoMIPS\t: 108.00\nFeatures\t: {self.flags}\n{of_arm}\nCPU part\t: {self.part}\n"
        else:
            fields = f"vendor_id\t: GenuineIntel\nmodel name\t: {self.model}\nflags\t\t: {self.flags}\n"
        return "".join(f"processor\t: {number}\n{fields}\n" for number in range(cores))


_BASE = "fp asimd evtstrm crc32 cpuid"
_X86 = "fpu cx8 cmov mmx fxsr sse sse2 pni ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm"
CORES = {
    core.level: core
    for core in (
        Core("cortex-a72", "cortex-a72", "0xd08", f"{_BASE} aes pmull sha1 sha2", "neon"),
        Core(
            "cortex-a76", "cortex-a76", "0xd0b", f"{_BASE} atomics fphp asimdhp asimdrdm lrcpc asimddp", "neon_dotprod"
        ),
        Core(
            "neoverse-n2",
            "max,sve=off",
            "0xd49",
            f"{_BASE} atomics fphp asimdhp asimdrdm lrcpc asimddp i8mm bf16",
            "neon_i8mm",
        ),
        Core("nehalem", "Nehalem", "", _X86, "ssse3", "x86_64"),
        Core("ivybridge", "IvyBridge", "", f"{_X86} avx f16c", "avx", "x86_64"),
    )
}


def cores() -> dict[str, Core]:
    """Return the cores that can be emulated here by their levels: those of x86 run this machine's own Python."""
    own = platform.machine().lower().replace("amd64", "x86_64")
    return {level: core for level, core in CORES.items() if core.arch in ("aarch64", own)}


@dataclass(frozen=True)
class System:
    """The emulated system in ``folder``."""

    folder: Path

    def command(self, core: Core) -> list[str]:
        """Return the command that is Python on that processor."""
        return [str(self.folder / "bin" / f"python-{core.name}")]

    def environment(self, changes: Mapping[str, str] | None = None, arch: str = "aarch64") -> dict[str, str]:
        """Return the environment of such a Python: nothing of this machine's own but folders."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NUMBA", "RUNG"))}
        paths = (str(_ROOT / "src"), str(_ROOT), str(_HERE / "guest_site"), str(self.folder / f"site-{arch}"))
        return kept | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"} | dict(changes or {})

    def run(
        self, core: Core, arguments: Sequence[str], limit: float, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run Python with those arguments, for at most ``limit`` seconds."""
        return subprocess.run(
            [*self.command(core), *arguments],
            env=self.environment(environment, core.arch),
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )


def folder() -> Path:
    """Return where the system is kept."""
    chosen = os.environ.get("RUNG_EMULATION")
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(caches) / "rung-emulation"


def make() -> System:
    """Return the system, made where it is not there yet; raises ``Unavailable``."""
    with contextlib.suppress(Unavailable):
        return find()
    for tool in ("apt-get", "dpkg-deb"):
        if not shutil.which(tool):
            raise Unavailable(f"{tool} is missing: qemu and the packages of an ARM system come from Debian")
    system = System(folder())
    shutil.rmtree(system.folder, ignore_errors=True)
    _debian(system.folder)
    number = _python(system.folder).removeprefix("python")
    platforms = [f"--platform=manylinux_2_{glibc}_aarch64" for glibc in _GLIBC]
    abi = ["--abi=cp" + number.replace(".", ""), "--abi=abi3", "--abi=none"]
    _wheels(system.folder / "site-aarch64", ["--implementation=cp", f"--python-version={number}", *platforms, *abi])
    for core in cores().values():
        if core.arch != "aarch64":
            _wheels(system.folder / f"site-{core.arch}", [])
        _core(system.folder, core)
    _done().write_text(_contents())
    return system


def find() -> System:
    """Return the system if it is there, with the versions that are installed here; raises ``Unavailable``."""
    if not _done().exists() or _done().read_text() != _contents():
        raise Unavailable("it is not there: python -m tests.emulation.system makes it")
    return System(folder())


def _done() -> Path:
    return folder() / "done"


def _contents() -> str:
    """Return the contents of the system: packages, and this file."""
    return " ".join([*_requirements(), hashlib.sha256(Path(__file__).read_bytes()).hexdigest()])


def _debian(folder: Path) -> None:
    """Unpack qemu, and Python for aarch64, with an apt that has a state of its own."""
    host = _ask(["dpkg", "--print-architecture"])
    for name in ("lists/partial", "cache/archives/partial", "root", "host"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    configuration = folder / "apt.conf"
    configuration.write_text(
        f"""APT::Architecture "arm64";
APT::Architectures {{ "arm64"; "{host}"; }};
APT::Install-Recommends "false";
APT::Sandbox::User "";
Acquire::Languages "none";
Dir::State "{folder}";
Dir::State::status "{folder}/status";
Dir::Cache "{folder}/cache";
"""
    )
    environment = os.environ | {"APT_CONFIG": str(configuration)}
    _ask(["apt-get", "update"], environment, may_fail=True)  # a source without arm64 does not matter
    install = ["apt-get", "install", "--download-only", "-y", "python3", "libgomp1", "libstdc++6"]
    _ask(install, environment)
    archives = folder / "cache" / "archives"
    for package in archives.glob("*.deb"):
        _ask(["dpkg-deb", "-x", str(package), str(folder / "root")])
    shutil.rmtree(archives)
    archives.mkdir()
    _ask(["apt-get", "download", f"qemu-user-static:{host}"], environment, cwd=archives)
    for package in archives.glob("*.deb"):
        _ask(["dpkg-deb", "-x", str(package), str(folder / "host")])
    shutil.rmtree(folder / "cache")


def _wheels(folder: Path, options: Sequence[str]) -> None:
    """Unpack wheels, of the kind that pip's options name, in a folder."""
    if not folder.exists():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), "--no-deps"]
        _ask([*pip, "--only-binary=:all:", *options, *_requirements()])


def _core(folder: Path, core: Core) -> None:
    """A root whose /proc/cpuinfo is that of the core, and a Python that starts there."""
    root = folder / f"root-{core.name}"
    (root / "proc").mkdir(parents=True)
    (root / "proc" / "cpuinfo").write_text(core.cpuinfo())
    python = Path(getattr(sys, "_base_executable", sys.executable))  # no environment with torch
    if core.arch == "aarch64":
        python = folder / "root" / "usr" / "bin" / _python(folder)
        for part in (folder / "root").iterdir():
            if part.name != "proc":
                (root / part.name).symlink_to(Path("..") / "root" / part.name)
    qemu = folder / "host" / "usr" / "bin" / f"qemu-{core.arch}-static"
    starter = folder / "bin" / f"python-{core.name}"
    starter.parent.mkdir(exist_ok=True)
    starter.write_text(
        f"""#!/bin/sh
EMULATED_PYTHON="$0" exec "{qemu}" -L "{root}" -cpu {core.model} "{python}" "$@"
"""
    )
    starter.chmod(0o755)


def _python(folder: Path) -> str:
    names = sorted(path.name for path in (folder / "root" / "usr" / "bin").glob("python3.*"))
    found = [name for name in names if re.fullmatch(r"python3\.\d+", name)]
    if not found:
        raise Unavailable("Debian's packages hold no Python for aarch64")
    return found[-1]


def _requirements() -> list[str]:
    """The versions that are installed here."""
    try:
        return [f"{name}=={version(name)}" for name in _PACKAGES]
    except PackageNotFoundError as error:
        raise Unavailable(f"{error.name} is not installed here") from error


def _ask(
    command: list[str], environment: Mapping[str, str] | None = None, cwd: Path | None = None, may_fail: bool = False
) -> str:
    try:
        done = subprocess.run(
            command, env=environment, cwd=cwd, capture_output=True, text=True, timeout=60 * _LIMIT, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{command[0]} did not end within {_LIMIT} minutes") from error
    if done.returncode and not may_fail:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise Unavailable(f"{' '.join(command[:2])} failed: {last}")
    return done.stdout.strip()


if __name__ == "__main__":
    try:
        print(make().folder)
    except Unavailable as error:
        print(f"no emulated processors here: {error}")
        sys.exit(1)
