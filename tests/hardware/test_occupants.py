"""Which processes hold a device's memory: of a CPU from /proc, of an NVIDIA or AMD card from its driver."""

from __future__ import annotations

from types import SimpleNamespace

from rung.core.types import Device
from rung.core.value import FrozenDict
from rung.hardware import occupants
from rung.hardware.families import rocm
from tests.hardware.test_rocm import NODES, drm, gpu_node, machine
from tests.hardware.trees import tree


def process(root, pid, name, kilobytes):
    folder = root / "proc" / str(pid)
    folder.mkdir(parents=True)
    (folder / "comm").write_text(f"{name}\n", encoding="utf-8")
    rss = f"VmRSS:\t{kilobytes} kB\n" if kilobytes is not None else ""
    (folder / "status").write_text(f"Name:\t{name}\n{rss}", encoding="utf-8")


def test_the_largest_processes_of_a_cpu_come_first(tmp_path):
    for pid in range(1, 9):
        process(tmp_path, pid, f"p{pid}", pid * 100)
    process(tmp_path, 99, "kernel", None)
    found = occupants.of(Device("cpu", "cpu", "c", "x86_64", 1), tmp_path)
    assert [p["pid"] for p in found] == [8, 7, 6, 5, 4]
    assert dict(found[0]) == {"pid": 8, "name": "p8", "bytes": 800 * 1024}


def test_a_card_lists_what_computes_on_it(tmp_path):
    process(tmp_path, 7, "python", 1)
    running = [SimpleNamespace(pid=7, usedGpuMemory=3 * 2**30), SimpleNamespace(pid=8, usedGpuMemory=None)]
    calls = []
    nvml = SimpleNamespace(
        NVMLError=RuntimeError,
        nvmlInit=lambda: calls.append("init"),
        nvmlShutdown=lambda: calls.append("shutdown"),
        nvmlDeviceGetHandleByUUID=lambda uuid: {"GPU-1": 1}[uuid],
        nvmlDeviceGetComputeRunningProcesses=lambda handle: running,
    )
    card = Device("cuda:0", "cuda", "card", "sm_61", 1, details=FrozenDict({"uuid": "GPU-1"}))
    found = occupants.of(card, tmp_path, nvml)
    assert [dict(p) for p in found] == [
        {"pid": 7, "name": "python", "bytes": 3 * 2**30},
        {"pid": 8, "name": "?", "bytes": 0},
    ]
    assert calls == ["init", "shutdown"]


def test_a_driver_that_does_not_answer_names_nobody(tmp_path):
    def broken():
        raise RuntimeError("driver lost")

    nvml = SimpleNamespace(NVMLError=RuntimeError, nvmlInit=broken)
    assert occupants.of(Device("cuda:0", "cuda", "card", "sm_61", 1), tmp_path, nvml) == ()


def test_an_amd_card_lists_what_computes_on_it(tmp_path):
    """KFD shows bytes by process and GPU; programs on another card, and those that hold nothing, are not in the way."""
    machine(tmp_path, gpu_node(1, 110000, 0x744C, bus=3), gpu_node(2, 90006, 0x66A1, bus=9), drm(3, "0x744c"))
    sizes = {(7, 101): 3 * 2**30, (7, 202): 2**30, (8, 101): 5 * 2**30, (9, 202): 2**30, (10, 101): 0, (11, 101): "?"}
    numbers = {f"{NODES}/{node}/gpu_id": f"{number}\n" for node, number in ((0, 0), (1, 101), (2, 202))}
    tree(
        tmp_path,
        numbers | {f"sys/class/kfd/kfd/proc/{pid}/vram_{number}": f"{size}\n" for (pid, number), size in sizes.items()},
    )
    process(tmp_path, 7, "python", 1)
    first, second = rocm.identify(tmp_path, environment={})
    assert [dict(p) for p in occupants.of(first, tmp_path)] == [
        {"pid": 8, "name": "?", "bytes": 5 * 2**30},
        {"pid": 7, "name": "python", "bytes": 3 * 2**30},
    ]
    assert sorted(p["pid"] for p in occupants.of(second, tmp_path)) == [7, 9]
    assert occupants.of(Device("rocm:0", "rocm", "card", "gfx1100", 1), tmp_path) == ()
