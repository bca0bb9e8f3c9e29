"""The processor, as cgroup and affinity leave it."""

import json
import os

import psutil
import pytest

from rung.core.types import Device, Level, Proof
from rung.hardware.families import cpu
from tests.hardware.trees import GRAVITON, machine, tree

GB = 2**30


def identify(root, affinity=range(4), machine="x86_64", environment=None):
    return cpu.identify(root, machine=machine, system="linux", affinity=affinity, environment=environment or {})


def limited(root, files):
    mount = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
    tree(root, {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": mount})
    return tree(root, {f"sys/fs/cgroup/{name}": text for name, text in files.items()})


def test_a_machine_to_itself(tmp_path):
    found = identify(machine(tmp_path))
    assert (found.id, found.kind, found.arch, found.real) == ("cpu", "cpu", "x86_64", True)
    assert found.name == "Intel(R) Xeon(R) Processor @ 2.80GHz"
    assert (found.memory, found.free) == (16 * GB, 8 * GB)
    assert found.details["cores"] == 2
    assert found.details["threads"] == 4
    assert dict(found.details["caches"]) == {"L1d": 48 << 10, "L2": 1280 << 10, "L3": 48 << 20}
    assert found.details["numa_nodes"] == 2
    assert "quota" not in found.details
    assert found.bandwidth is None
    assert not found.peaks


def test_it_is_json_both_ways(tmp_path):
    found = identify(machine(tmp_path))
    assert Device.from_json(json.loads(json.dumps(found.to_json()))) == found
    assert hash(found)


@pytest.mark.parametrize(
    ("affinity", "files", "cores", "threads"),
    [
        ({0, 1}, {}, 1, 2),
        ({0, 2}, {}, 2, 2),
        ({1}, {}, 1, 1),
        (range(4), {"cpuset.cpus.effective": "2-3"}, 1, 2),
        ({0, 1, 2}, {"cpuset.cpus.effective": "2-3"}, 1, 1),
        (range(4), {"cpu.max": "100000 100000"}, 1, 1),
        (range(4), {"cpu.max": "160000 100000"}, 2, 2),
        (range(4), {"cpu.max": "20000 100000"}, 1, 1),
        (range(4), {"cpu.max": "max 100000"}, 2, 4),
        (range(4), {"cpu.max": "350000 100000"}, 2, 4),
    ],
)
def test_cores_that_may_be_used(tmp_path, affinity, files, cores, threads):
    found = identify(limited(machine(tmp_path), files), affinity)
    assert (found.details["cores"], found.details["threads"]) == (cores, threads)


def test_memory_within_the_cgroup(tmp_path):
    files = {"memory.max": str(4 * GB), "memory.current": str(GB), "memory.stat": f"inactive_file {GB // 2}\n"}
    found = identify(limited(machine(tmp_path), files))
    assert (found.memory, found.free) == (4 * GB, 3 * GB + GB // 2)


def test_a_cgroup_that_allows_more_than_there_is(tmp_path):
    found = identify(limited(machine(tmp_path), {"memory.max": str(64 * GB), "memory.current": "0"}))
    assert (found.memory, found.free) == (16 * GB, 8 * GB)


def test_what_the_processor_lists_is_declared_and_what_not_absent(tmp_path):
    found = identify(machine(tmp_path))
    vnni, bf16 = found.capability("isa.avx512_vnni"), found.capability("isa.avx512_bf16")
    assert (vnni.level, vnni.proof) == (Level.NATIVE, Proof.DECLARED)
    assert (bf16.level, bf16.proof) == (Level.ABSENT, Proof.DECLARED)
    assert "avx512_bf16" in bf16.source
    assert found.capability("isa.avx512_vbmi").level is Level.NATIVE
    assert found.capability("matmul.f32").level is Level.UNKNOWN


@pytest.mark.parametrize("variable", ["NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_DISABLE_JIT"])
def test_a_restricted_compiler_leaves_open_what_it_uses(tmp_path, variable):
    found = identify(machine(tmp_path), environment={variable: "haswell"})
    vnni = found.capability("isa.avx512_vnni")
    assert (vnni.level, vnni.proof) == (Level.UNKNOWN, Proof.NONE)
    assert variable in vnni.source
    assert found.capability("isa.avx512_bf16").level is Level.ABSENT


def test_an_arm_processor(tmp_path):
    found = identify(machine(tmp_path, GRAVITON, threads_per_core=1), machine="aarch64")
    assert (found.name, found.arch) == ("Neoverse N1", "aarch64")
    assert found.capability("isa.neon_dotprod").level is Level.NATIVE
    assert found.capability("isa.fp16").level is Level.NATIVE
    assert found.capability("isa.i8mm").level is Level.ABSENT
    assert found.details["cores"] == 4
    assert not [name for name in found.capabilities if "avx" in name]


def test_a_machine_that_says_nothing(tmp_path):
    found = identify(tmp_path)
    assert (found.name, found.memory, found.free) == ("x86_64 processor", 0, None)
    assert found.details["cores"] == 4
    assert found.capability("isa.kernels").detail == "generic"
    assert all(c.level is Level.ABSENT for c in found.capabilities.values() if c.name != "isa.kernels")


MAC = {
    "machdep.cpu.brand_string": "Apple M2 Pro",
    "hw.memsize": str(32 * GB),
    "hw.nperflevels": "2",
    "hw.perflevel0.physicalcpu": "8",
    "hw.perflevel0.logicalcpu": "8",
    "hw.perflevel1.physicalcpu": "4",
    "hw.perflevel1.logicalcpu": "4",
    "hw.physicalcpu": "12",
    "hw.logicalcpu": "12",
    "hw.l1dcachesize": "65536",
    "hw.l2cachesize": "4194304",
    "hw.optional.arm.AdvSIMD": "1",
    "hw.optional.arm.FEAT_DotProd": "1",
    "hw.optional.arm.FEAT_BF16": "1",
    "hw.optional.arm.FEAT_I8MM": "0",
}


def test_a_mac():
    found = cpu.identify(machine="arm64", system="darwin", environment={}, ask=lambda name: MAC.get(name, ""))
    assert (found.name, found.arch, found.memory) == ("Apple M2 Pro", "aarch64", 32 * GB)
    assert (found.details["cores"], found.details["threads"]) == (12, 12)
    assert dict(found.details["core_kinds"]) == {"performance": 8, "efficiency": 4}
    assert found.details["compute_threads"] == 8
    assert dict(found.details["caches"]) == {"L1d": 65536, "L2": 4194304}
    assert found.capability("isa.bf16").level is Level.NATIVE
    assert found.capability("isa.i8mm").level is Level.ABSENT
    assert found.free


def test_sysctl_that_is_not_there():
    assert cpu.sysctl("hw.memsize") == ""


@pytest.mark.skipif(not os.path.exists("/proc/cpuinfo"), reason="asks Linux")
def test_this_machine():
    found = cpu.identify()
    assert found.memory > GB // 4
    assert 0 < found.free <= found.memory
    assert 1 <= found.details["cores"] <= found.details["threads"] <= (os.cpu_count() or 1)
    assert found.software["torch"]


def test_a_processor_of_windows_has_its_memory_and_declares_no_instructions(tmp_path):
    found = cpu.identify(tmp_path, machine="AMD64", system="win32")
    assert (found.arch, found.kind) == ("x86_64", "cpu")
    assert found.memory == psutil.virtual_memory().total
    assert found.details["threads"] == psutil.cpu_count()
    assert found.capability("isa.avx2").level is not Level.NATIVE
