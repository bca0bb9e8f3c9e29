"""Hold what the control groups of this process allow: processors, and memory with what is left of it.

Both versions of cgroups, mounted together or alone. A limit may stand at any level from the process's own group up to
the root of the mount, so every level is read and the tightest counts. Inside a container the path in
``/proc/self/cgroup`` may be the host's, of which the mount shows a part: the part is found through mountinfo.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

#: cgroup v1 writes "no limit" as the largest multiple of the page size in 63 bits.
_NO_LIMIT = 1 << 60


@dataclass(frozen=True)
class Limits:
    """``quota`` in processors (1.5), ``cpus`` the numbers of the allowed ones, ``memory`` and ``headroom`` in bytes.

    ``headroom`` is what may still be allocated: the limit less what is in use, page cache that can be given up not
    counted. None: not limited.
    """

    quota: float | None = None
    cpus: frozenset[int] | None = None
    memory: int | None = None
    headroom: int | None = None


def limits(root: Path = Path("/")) -> Limits:
    """The tightest limits over all levels; ``root`` is the folder that holds ``proc`` and ``sys``."""
    quotas: list[float] = []
    memory: list[tuple[int, int]] = []
    cpus: frozenset[int] | None = None
    for folder in _levels(root, "cpu"):
        quotas += _quota(folder)
    for folder in _levels(root, "memory"):
        memory += _memory(folder)
    for folder in _levels(root, "cpuset"):
        cpus = _cpus(folder)
        if cpus:  # the effective set of the lowest level holds those above it
            break
    return Limits(
        min(quotas, default=None),
        cpus,
        min((limit for limit, _ in memory), default=None),
        min((max(0, limit - used) for limit, used in memory), default=None),
    )


def number_list(text: str) -> frozenset[int]:
    """The numbers of a kernel list: ``0-3,8`` is 0, 1, 2, 3, 8. Raises ``ValueError``."""
    found: set[int] = set()
    for piece in text.strip().split(","):
        if piece:
            first, _, last = piece.partition("-")
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def read(path: Path) -> str:
    """The text of a small file, empty when it is not there or not readable."""
    with contextlib.suppress(OSError, ValueError):
        return path.read_text(encoding="utf-8").strip()
    return ""


def _levels(root: Path, controller: str) -> Iterator[Path]:
    """The folders of this process's group for a controller, lowest first, up to the root of each mount."""
    groups = [line.split(":", 2) for line in read(root / "proc/self/cgroup").splitlines()]
    for mount, part, version, options in _mounts(root):
        for number, controllers, path in (group for group in groups if len(group) == 3):
            unified = version == "cgroup2" and number == "0" and not controllers
            if not unified and not (
                version == "cgroup" and controller in controllers.split(",") and controller in options
            ):
                continue
            below = (
                PurePosixPath(path).relative_to(part) if PurePosixPath(path).is_relative_to(part) else PurePosixPath()
            )
            folder = root / mount.lstrip("/")
            lowest = folder / below
            if ".." in below.parts or not lowest.is_dir():
                lowest = folder
            yield lowest
            while lowest != folder:
                lowest = lowest.parent
                yield lowest


def _mounts(root: Path) -> Iterator[tuple[str, str, str, list[str]]]:
    """Mount point, the part of the hierarchy mounted there, file system and options of every cgroup mount."""
    for line in read(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        before, after = left.split(), right.split()
        if len(before) >= 5 and len(after) >= 3 and after[0] in ("cgroup", "cgroup2"):
            yield before[4], before[3], after[0], after[2].split(",")


def _quota(folder: Path) -> list[float]:
    """Processors that ``cpu.max`` or the CFS quota of version 1 allows."""
    quota, _, period = read(folder / "cpu.max").partition(" ")
    if not quota:
        quota, period = read(folder / "cpu.cfs_quota_us"), read(folder / "cpu.cfs_period_us")
    with contextlib.suppress(ValueError):
        if int(quota) > 0 and int(period) > 0:
            return [int(quota) / int(period)]
    return []


def _cpus(folder: Path) -> frozenset[int] | None:
    for name in ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"):
        with contextlib.suppress(ValueError):
            if found := number_list(read(folder / name)):
                return found
    return None


def _memory(folder: Path) -> list[tuple[int, int]]:
    """Limit and bytes in use that cannot be given up, of one level; empty when it sets no limit."""
    limit = read(folder / "memory.max") or read(folder / "memory.limit_in_bytes")
    used = read(folder / "memory.current") or read(folder / "memory.usage_in_bytes")
    if not limit.isdigit() or int(limit) >= _NO_LIMIT:
        return []
    stat = dict(line.split(" ", 1) for line in read(folder / "memory.stat").splitlines() if " " in line)
    cache = 0
    for name in ("active_file", "inactive_file"):
        text = stat.get(f"total_{name}", stat.get(name, "0"))  # version 1 counts its children under total_
        cache += int(text) if text.isdigit() else 0
    return [(int(limit), max(0, (int(used) if used.isdigit() else 0) - cache))]
