"""Which processes hold a device's memory now: what would have to end before a model fits."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from rung.core.types import Device
from rung.core.value import FrozenDict

#: How many are named, largest first.
MOST = 5


def of(device: Device, root: Path = Path("/"), nvml: Any | None = None) -> tuple[FrozenDict[Any], ...]:
    """``{"pid", "name", "bytes"}`` of the processes that hold most of the device's memory, largest first.

    Of a CPU the resident size of every process here; of an NVIDIA or AMD card what its driver lists of programs that
    compute there; of others nothing. ``root`` and ``nvml`` stand in for this machine in tests.
    """
    if device.kind == "cpu":
        found = _resident(root)
    elif device.kind == "cuda":
        found = _listed(device, root, nvml)
    elif device.kind == "rocm":
        found = _used(device, root)
    else:
        found = []
    found.sort(key=lambda process: -process["bytes"])
    return tuple(FrozenDict(process) for process in found[:MOST])


def _resident(root: Path) -> list[dict[str, Any]]:
    found = []
    for folder in (root / "proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError, KeyError, IndexError):  # it has ended meanwhile
            lines = (folder / "status").read_text(encoding="utf-8", errors="replace").splitlines()
            fields = dict(line.split(":", 1) for line in lines if ":" in line)
            resident = int(fields["VmRSS"].split()[0]) * 1024
            found.append({"pid": int(folder.name), "name": fields["Name"].strip(), "bytes": resident})
    return found


def _listed(device: Device, root: Path, nvml: Any | None) -> list[dict[str, Any]]:
    from rung.hardware.families import cuda

    module = nvml or cuda.library()
    if module is None:
        return []
    found = []
    with contextlib.suppress(module.NVMLError):
        module.nvmlInit()
        try:
            handle = module.nvmlDeviceGetHandleByUUID(str(device.details.get("uuid", "")))
            for process in module.nvmlDeviceGetComputeRunningProcesses(handle):
                used = int(process.usedGpuMemory or 0)
                found.append({"pid": int(process.pid), "name": _name(int(process.pid), root), "bytes": used})
        finally:
            module.nvmlShutdown()
    return found


def _used(device: Device, root: Path) -> list[dict[str, Any]]:
    from rung.hardware.families import rocm

    used = rocm.process_memory(str(device.details.get("pci", "")), root)
    return [{"pid": pid, "name": _name(pid, root), "bytes": size} for pid, size in used.items()]


def _name(pid: int, root: Path) -> str:
    with contextlib.suppress(OSError):
        return (root / "proc" / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    return "?"
