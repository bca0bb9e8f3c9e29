"""The processor: what it is called, what it can do, and the part of it that this process may use."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rung.core.settings import CPU_LEVEL
from rung.core.types import Capability, Device, Level, Proof
from rung.core.value import FrozenDict
from rung.hardware import cgroup, cpu_features, interpreter, topology
from rung.hardware.cgroup import read
from rung.hardware.software import installed
from rung.hardware.sysctl import sysctl

_AVX512 = ("avx512f", "avx512bw", "avx512dq", "avx512vl")
#: Capability to the flags in /proc/cpuinfo that declare it. Kernels that ask for AVX2 or AVX-512 use all of each row.
X86 = {
    "isa.ssse3": ("ssse3",),
    "isa.avx": ("avx",),
    "isa.f16c": ("f16c",),
    "isa.fma": ("fma",),
    "isa.avx2": ("avx2", "fma", "f16c"),
    "isa.avx_vnni": ("avx_vnni",),
    "isa.avx512f": _AVX512,
    "isa.avx512_vnni": (*_AVX512, "avx512_vnni"),
    "isa.avx512_vbmi": (*_AVX512, "avx512vbmi"),
    "isa.avx512_bf16": (*_AVX512, "avx512_bf16"),
    "isa.avx512_fp16": (*_AVX512, "avx512_fp16"),
}
ARM = {
    "isa.neon": ("asimd",),
    "isa.fp16": ("asimdhp",),
    "isa.neon_dotprod": ("asimd", "asimddp"),
    "isa.i8mm": ("i8mm",),
    "isa.bf16": ("bf16",),
    "isa.sve": ("sve",),
    "isa.sve2": ("sve2",),
}
#: The same in the names that sysctl has on a Mac.
APPLE = {
    "isa.neon": (cpu_features.MAC["neon"],),
    "isa.fp16": (cpu_features.MAC["fullfp16"],),
    "isa.neon_dotprod": (cpu_features.MAC["dotprod"],),
    "isa.i8mm": (cpu_features.MAC["i8mm"],),
    "isa.bf16": (cpu_features.MAC["bf16"],),
}
#: Environment variables that restrict the JIT to less than the processor can do.
TARGET_VARIABLES = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_DISABLE_JIT", CPU_LEVEL.variable)
#: What levels need, which ``rung.kernels.isa.levels`` writes: they are read where no compiler is installed, too.
_LEVELS = Path(__file__).parent.parent / "cpu_levels.table"


def identify(
    root: Path = Path("/"),
    *,
    machine: str = "",
    system: str = sys.platform,
    affinity: Iterable[int] | None = None,
    environment: Mapping[str, str] = os.environ,
    ask: Callable[[str], str] = sysctl,
) -> Device:
    """The CPU as cgroup and affinity leave it; nothing is measured, so its capabilities are declared, not proved.

    ``root`` holds ``proc`` and ``sys``; the other arguments stand in for this machine in tests.
    """
    arch = interpreter.arch(machine)
    if system == "darwin":
        name, memory, free, flags, details = _mac(ask)
    elif system == "win32":
        name, memory, free, flags, details = _windows()
    else:
        name, memory, free, flags, details = _linux(root, affinity)
    return Device(
        id="cpu",
        kind="cpu",
        name=name or f"{arch} processor",
        arch=arch,
        memory=memory,
        free=free,
        capabilities=FrozenDict(
            {c.name: c for c in declared(arch, flags, environment, APPLE if system == "darwin" else None)}
        ),
        software=installed(),
        details=FrozenDict(details),
    )


def declared(
    arch: str,
    flags: frozenset[str],
    environment: Mapping[str, str],
    names: Mapping[str, tuple[str, ...]] | None = None,
) -> list[Capability]:
    """The instruction sets that the processor declares; unknown where the JIT is told to compile for less."""
    own = cpu_features.llvm_features(flags) if arch == "aarch64" else cpu_features.own_changes()
    restriction = next(iter(restrictions(environment, own)), "")
    found = []
    for name, features in (names or (ARM if arch == "aarch64" else X86)).items():
        missing = [flag for flag in features if flag not in flags]
        if missing:
            reason = f"the processor does not list {', '.join(missing)}"
            found.append(Capability(name, Level.ABSENT, Proof.DECLARED, reason))
        elif restriction:
            found.append(Capability(name, Level.UNKNOWN, Proof.NONE, f"{restriction} restricts the compiler"))
        else:
            found.append(Capability(name, Level.NATIVE, Proof.DECLARED, f"the processor lists {', '.join(features)}"))
    return [*found, kernels(arch, flags, bool(restriction))]


def restrictions(environment: Mapping[str, str], own: str) -> dict[str, str]:
    """Return the variables that restrict the compiler: not features that end as it is told of the machine itself."""
    found = {name: environment[name] for name in TARGET_VARIABLES if environment.get(name)}
    if own and found.get("NUMBA_CPU_FEATURES", "").endswith(own):
        del found["NUMBA_CPU_FEATURES"]
    return found


def own_features() -> str:
    """Return changes to the features that LLVM finds on this machine; empty where it is right."""
    return cpu_features.own_features() or cpu_features.own_changes()


@functools.cache
def levels() -> Mapping[str, tuple[tuple[str, frozenset[str]], ...]]:
    """Levels of CPU instructions by kind of processor, the highest first: names, and LLVM's of the features needed."""
    found: dict[str, tuple[tuple[str, frozenset[str]], ...]] = {}
    for line in _LEVELS.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            name, arch, needs = (part.strip() for part in line.split("|"))
            found[arch] = (*found.get(arch, ()), (name, frozenset(needs.split())))
    return found


def kernels(arch: str, flags: frozenset[str], restricted: bool = False) -> Capability:
    """Return which level of CPU kernels a processor declares that lists those flags; a probe proves it."""
    if arch not in levels():
        return Capability("isa.kernels", Level.ABSENT, Proof.DECLARED, f"there is no compiler of kernels for {arch}")
    if restricted:
        return Capability("isa.kernels", Level.UNKNOWN, Proof.NONE, "the environment restricts the compiler")
    features = cpu_features.llvm_names(flags)
    level, needs = next(each for each in levels()[arch] if each[1] <= features)
    why = f"the processor lists {', '.join(sorted(needs))}" if needs else "any processor of its kind"
    return Capability("isa.kernels", Level.NATIVE, Proof.DECLARED, why, level)


_Facts = tuple[str, int, int | None, frozenset[str], dict[str, Any]]


def _linux(root: Path, affinity: Iterable[int] | None) -> _Facts:
    info = _cpuinfo(root)
    limits = cgroup.limits(root)
    allowed = frozenset(affinity if affinity is not None else _affinity())
    if limits.cpus and allowed & limits.cpus:
        allowed &= limits.cpus
    meminfo = _meminfo(root)
    total, available = meminfo.get("MemTotal", 0), meminfo.get("MemAvailable")
    memory = min(total, limits.memory or total)
    free = min((bytes for bytes in (available, limits.headroom) if bytes is not None), default=None)
    found = topology.of_linux(root, allowed, limits.quota)
    details = _cores(found)
    if limits.quota is not None:
        details["quota"] = round(limits.quota, 2)
    if caches := _caches(root, min(found.kinds[0].cpus, default=0)):
        details["caches"] = FrozenDict(caches)
    if nodes := len(list((root / "sys/devices/system/node").glob("node[0-9]*"))):
        details["numa_nodes"] = nodes
    return info.get("model name") or _arm_name(info), memory, free, topology.shared_features(root), details


def _cores(found: topology.Topology) -> dict[str, Any]:
    """Return details of the cores: how many, of which kinds, and how many threads compute."""
    details: dict[str, Any] = {"cores": found.cores, "threads": found.threads}
    if found.named:
        details["core_kinds"] = FrozenDict(found.named)
    details["compute_threads"] = topology.default_threads(found.cores, found.named)
    return details


def _mac(ask: Callable[[str], str]) -> _Facts:
    flags = frozenset(name for names in APPLE.values() for name in names if ask(name) == "1")
    memory = _number(ask("hw.memsize"))
    details = _cores(topology.of_mac(ask))
    caches = {level: _number(ask(name)) for level, name in (("L1d", "hw.l1dcachesize"), ("L2", "hw.l2cachesize"))}
    details["caches"] = FrozenDict({level: size for level, size in caches.items() if size})
    return ask("machdep.cpu.brand_string"), memory, _free_by_psutil(), flags, details


def _windows() -> _Facts:
    """Return psutil's facts; nothing tells which instructions there are, so none is declared."""
    import psutil

    memory = psutil.virtual_memory()
    cores, threads = psutil.cpu_count(logical=False) or 1, psutil.cpu_count() or 1
    details = {"cores": cores, "threads": threads, "compute_threads": cores}
    return platform.processor(), memory.total, memory.available, frozenset(), details


def _free_by_psutil() -> int | None:
    try:
        import psutil
    except ImportError:
        return None
    return int(psutil.virtual_memory().available)


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _affinity() -> Iterable[int]:
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def _cpuinfo(root: Path) -> dict[str, str]:
    """The fields of the first processor in /proc/cpuinfo."""
    return next(iter(topology.processors(root)), {})


def _meminfo(root: Path) -> dict[str, int]:
    """/proc/meminfo in bytes; where that is not mounted, as in a plain chroot, what sysinfo(2) says."""
    found: dict[str, int] = {}
    for line in read(root / "proc/meminfo").splitlines():
        with contextlib.suppress(ValueError, IndexError):
            key, value = line.split(":", 1)
            found[key] = int(value.split()[0]) * 1024
    if not found and root == Path("/"):
        page = os.sysconf("SC_PAGE_SIZE")
        pages = {"MemTotal": os.sysconf("SC_PHYS_PAGES"), "MemAvailable": os.sysconf("SC_AVPHYS_PAGES")}
        found = {key: page * count for key, count in pages.items()}
    return found


def _caches(root: Path, number: int) -> dict[str, int]:
    """Bytes of the caches that one processor sees, by level: L1d, L2, L3."""
    found: dict[str, int] = {}
    for folder in sorted((root / f"sys/devices/system/cpu/cpu{number}/cache").glob("index[0-9]*")):
        level, kind, text = (read(folder / name) for name in ("level", "type", "size"))
        unit = {"K": 2**10, "M": 2**20, "G": 2**30}.get(text[-1:], 0)
        if kind in ("Data", "Unified") and unit and text[:-1].isdigit():
            found[f"L{level}" + ("d" if level == "1" else "")] = int(text[:-1]) * unit
    return found


#: Names of Arm designs by implementer and part, for kernels that give numbers only (Arm's MIDR_EL1 tables).
_ARM_PARTS = {
    ("0x41", "0xd08"): "Cortex-A72",
    ("0x41", "0xd0b"): "Cortex-A76",
    ("0x41", "0xd0c"): "Neoverse N1",
    ("0x41", "0xd40"): "Neoverse V1",
    ("0x41", "0xd49"): "Neoverse N2",
    ("0x41", "0xd4f"): "Neoverse V2",
    ("0xc0", "0xac3"): "Ampere-1",
}


def _arm_name(info: Mapping[str, str]) -> str:
    part = (info.get("CPU implementer", "").lower(), info.get("CPU part", "").lower())
    return _ARM_PARTS.get(part, "")
