"""Describe the cores of a processor: kinds of unlike speed, hyper-threads, NUMA nodes, and how many threads to use."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rung.core.text import count
from rung.hardware.cgroup import number_list, read

#: Names of kinds of cores, the fastest first, by how many kinds there are.
NAMES = {
    2: ("performance", "efficiency"),
    3: ("prime", "performance", "efficiency"),
    4: ("prime", "performance", "efficiency", "low-power"),
}
#: Folders of the counters that Linux has for each kind of core of an Intel processor, the fastest first.
_INTEL = ("cpu_core", "cpu_atom", "cpu_lowpower")
#: Cores whose speeds differ by less than this share are of one kind: a favored core has a few percent more clock.
_ALIKE = 0.15
#: Slower kinds of cores compute too while the faster ones are fewer than this.
_ENOUGH = 4
#: From this many cores on, the number of threads is measured: memory or barriers may be the limit before the cores.
_LARGE = 16


@dataclass(frozen=True)
class Kind:
    """Cores of one speed: the numbers of their hardware threads, and how many cores they are."""

    cpus: frozenset[int]
    cores: int


@dataclass(frozen=True)
class Topology:
    """The processors that a program may use; ``kinds`` the fastest first, ``nodes`` the processors of each NUMA node.

    ``quota``: processors that a control group allows at a time (1.5), None for all.
    """

    kinds: tuple[Kind, ...]
    nodes: tuple[frozenset[int], ...] = ()
    quota: float | None = field(default=None)

    @property
    def most(self) -> int | None:
        """The quota in whole processors, rounded to the nearest, at least 1; None without one."""
        return None if self.quota is None else max(1, math.floor(self.quota + 0.5))

    @property
    def cores(self) -> int:
        """Physical cores, as many as the quota keeps busy."""
        return _least(sum(kind.cores for kind in self.kinds) or 1, self.most)

    @property
    def threads(self) -> int:
        """Hardware threads, as many as the quota keeps busy."""
        return _least(sum(len(kind.cpus) for kind in self.kinds) or 1, self.most)

    @property
    def named(self) -> dict[str, int]:
        """Cores by the name of their kind; empty where all are alike or a quota allows fewer than there are."""
        names = NAMES.get(len(self.kinds))
        if names is None or self.cores < sum(kind.cores for kind in self.kinds):
            return {}
        return {name: kind.cores for name, kind in zip(names, self.kinds, strict=True)}


def _least(number: int, most: int | None) -> int:
    return number if most is None else min(number, most)


def words(details: Mapping[str, Any]) -> str:
    """Return the cores of a CPU device in words.

    >>> words({"cores": 16, "core_kinds": {"performance": 8, "efficiency": 8}, "compute_threads": 8})
    '16 cores (8 performance, 8 efficiency), 8 compute'
    """
    cores, kinds = int(details.get("cores", 1)), details.get("core_kinds", {})
    text = count(cores, "core")
    if kinds:
        text += f" ({', '.join(f'{number} {kind}' for kind, number in kinds.items())})"
    threads = int(details.get("compute_threads") or cores)
    return text if threads == cores else f"{text}, {threads} compute"


def default_threads(cores: int, kinds: Mapping[str, int]) -> int:
    """Return how many threads to compute with where nothing was measured: one for each fast core.

    Hyper-threads of a core share what the kernels are limited by. Slow cores count only where the fast ones are few:
    the last of a step waits for the slowest, and memory is often the limit before all cores are.

    >>> default_threads(16, {"performance": 8, "efficiency": 8})
    8
    >>> default_threads(10, {"performance": 2, "efficiency": 8})
    10
    """
    threads = 0
    for of_kind in kinds.values():
        if threads >= _ENOUGH:
            break
        threads += of_kind
    return threads or max(cores, 1)


def thread_counts(cores: int, kinds: Mapping[str, int], nodes: int = 1) -> tuple[int, ...]:
    """Return the numbers of threads worth measuring, fewest first; one number where nothing needs to be measured.

    >>> thread_counts(4, {}), thread_counts(16, {"performance": 8, "efficiency": 8}), thread_counts(128, {}, 2)
    ((4,), (8, 12, 16), (16, 32, 64, 128))
    """
    first = default_threads(cores, kinds)
    if len(kinds) > 1:
        sums = [sum(list(kinds.values())[: last + 1]) for last in range(len(kinds))]
        return tuple(sorted({first, cores, *(n for n in sums if n >= min(first, _ENOUGH)), (first + cores) // 2}))
    if cores <= _LARGE and nodes <= 1:
        return (first,)
    return tuple(sorted({max(1, cores // part) for part in (1, 2, 4, 8)}))


def of_linux(root: Path, allowed: frozenset[int], quota: float | None) -> Topology:
    """Return the topology from ``proc`` and ``sys`` below ``root``, of the processors that may be used."""
    groups = _by_counters(root, allowed) or _by_number(root, allowed, "cpu_capacity")
    groups = groups or _by_part(root, allowed) or _by_number(root, allowed, "cpufreq/cpuinfo_max_freq")
    kinds = tuple(Kind(group, len(_siblings(root, group))) for group in groups or [allowed])
    return Topology(kinds, _nodes(root, allowed), quota)


def of_mac(ask: Callable[[str], str]) -> Topology:
    """Return the topology as ``sysctl`` describes it: perflevel0 holds the fastest cores."""
    kinds: list[Kind] = []
    for level in range(_number(ask("hw.nperflevels")) or 1):
        cores, threads = (_number(ask(f"hw.perflevel{level}.{what}cpu")) for what in ("physical", "logical"))
        if cores:
            begin = sum(len(kind.cpus) for kind in kinds)
            kinds.append(Kind(frozenset(range(begin, begin + max(threads, cores))), cores))
    if not kinds:
        cores = _number(ask("hw.physicalcpu")) or 1
        kinds.append(Kind(frozenset(range(_number(ask("hw.logicalcpu")) or cores)), cores))
    return Topology(tuple(kinds))


def _number(text: str) -> int:
    return int(text) if text.isdigit() else 0


def _siblings(root: Path, cpus: Iterable[int]) -> set[str]:
    """The cores of some processors, each as the list of its hardware threads."""
    found = set()
    for number in cpus:
        topology = root / f"sys/devices/system/cpu/cpu{number}/topology"
        siblings = read(topology / "thread_siblings_list") or read(topology / "core_cpus_list")
        found.add(siblings or str(number))
    return found


def _by_counters(root: Path, allowed: frozenset[int]) -> list[frozenset[int]]:
    """The kinds of an Intel processor that has several, from the counters of each."""
    groups = [_numbers(root / f"sys/devices/{name}/cpus") & allowed for name in _INTEL]
    whole = frozenset().union(*groups)
    return [group for group in groups if group] if whole == allowed else []


def _by_number(root: Path, allowed: frozenset[int], name: str) -> list[frozenset[int]]:
    """Processors grouped by a number of sysfs that grows with their speed; none where one lacks it."""
    speeds = {cpu: _number(read(root / f"sys/devices/system/cpu/cpu{cpu}/{name}")) for cpu in allowed}
    return _grouped(speeds) if all(speeds.values()) else []


def _grouped(speeds: Mapping[int, int]) -> list[frozenset[int]]:
    """Processors of about one speed together, the fastest first.

    >>> _grouped({0: 400, 1: 400, 2: 1000, 3: 1020})
    [frozenset({2, 3}), frozenset({0, 1})]
    """
    groups: list[set[int]] = []
    fastest = 0
    for cpu in sorted(speeds, key=lambda cpu: (-speeds[cpu], cpu)):
        if not groups or speeds[cpu] < (1 - _ALIKE) * fastest:
            groups.append(set())
            fastest = speeds[cpu]
        groups[-1].add(cpu)
    return [frozenset(group) for group in groups]


def _by_part(root: Path, allowed: frozenset[int]) -> list[frozenset[int]]:
    """Processors grouped by their design, on an Arm whose kernel says nothing else: the later design is the larger one
    where no clock tells."""
    parts: dict[str, set[int]] = {}
    for number, fields in enumerate(processors(root)):
        if number in allowed and "CPU part" in fields:
            parts.setdefault(fields["CPU part"], set()).add(number)
    if len(parts) < 2 or frozenset().union(*parts.values()) != allowed:
        return []

    def speed(part: str) -> tuple[int, str]:
        clock = root / f"sys/devices/system/cpu/cpu{min(parts[part])}/cpufreq/cpuinfo_max_freq"
        return _number(read(clock)), part

    return [frozenset(parts[part]) for part in sorted(parts, key=speed, reverse=True)]


def processors(root: Path) -> list[dict[str, str]]:
    """Return the fields of each processor in /proc/cpuinfo, in the order of their numbers."""
    found: list[dict[str, str]] = []
    for line in read(root / "proc/cpuinfo").splitlines():
        key, colon, value = line.partition(":")
        if not colon:
            continue
        if key.strip() == "processor":
            found.append({})
        if found:
            found[-1].setdefault(key.strip(), value.strip())
    return found


def features(root: Path = Path("/")) -> list[frozenset[str]]:
    """Return the features of each processor in /proc/cpuinfo; an old kernel lists those of all once, at the end."""
    listed = (fields.get("flags") or fields.get("Features") for fields in processors(root))
    return [frozenset(text.split()) for text in listed if text]


def shared_features(root: Path = Path("/")) -> frozenset[str]:
    """Return the features that every processor in /proc/cpuinfo lists: a thread may run on any of them."""
    each = features(root)
    return frozenset.intersection(*each) if each else frozenset()


def _nodes(root: Path, allowed: frozenset[int]) -> tuple[frozenset[int], ...]:
    """The processors of each NUMA node that has some."""
    folders = sorted((root / "sys/devices/system/node").glob("node[0-9]*"), key=lambda folder: int(folder.name[4:]))
    nodes = (_numbers(folder / "cpulist") & allowed for folder in folders)
    return tuple(node for node in nodes if node)


def _numbers(path: Path) -> frozenset[int]:
    try:
        return number_list(read(path))
    except ValueError:
        return frozenset()
