"""Kinds of cores, hyper-threads, nodes and quotas of machines that are not here, from their files in /proc and /sys."""

import pytest

from rung.core.errors import UsageError
from rung.engine import planning
from rung.hardware import topology
from rung.hardware.families import cpu
from tests.hardware.trees import MEMINFO, cores, tree


def identify(root, groups=(), quota=None, affinity=None, **options):
    files, count = cores(groups, **options)
    files |= {"proc/meminfo": MEMINFO}
    if quota:
        mount = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
        files |= {"proc/self/cgroup": "0::/\n", "proc/self/mountinfo": mount, "sys/fs/cgroup/cpu.max": quota}
    affinity = range(count) if affinity is None else affinity
    return cpu.identify(tree(root, files), machine="x86_64", system="linux", affinity=affinity, environment={}).details


ALDER_LAKE = [("cpu_core", 8, 5_000_000), ("cpu_atom", 8, 3_800_000)]
SNAPDRAGON = [("", 1, 1024), ("", 3, 860), ("", 4, 320)]


@pytest.mark.parametrize(
    ("groups", "options", "expected"),
    [
        (ALDER_LAKE, {"threads_per_core": [2, 1]}, (16, 24, {"performance": 8, "efficiency": 8}, 8)),
        ([("cpu_core", 2, 0), ("cpu_atom", 8, 0)], {"threads_per_core": [2, 1]}, (10, 12, None, 10)),
        (
            [("cpu_core", 6, 0), ("cpu_atom", 8, 0), ("cpu_lowpower", 2, 0)],
            {"threads_per_core": [1, 1, 1]},
            (16, 16, {"prime": 6, "performance": 8, "efficiency": 2}, 6),
        ),
        (SNAPDRAGON, {"counters": False}, (8, 8, {"prime": 1, "performance": 3, "efficiency": 4}, 4)),
        ([("", 4, 1024)], {"counters": False}, (4, 4, {}, 4)),
        ([("", 4, 0)], {"threads_per_core": [2]}, (4, 8, {}, 4)),
        ([("", 2, 4_800_000), ("", 6, 4_600_000)], {"threads_per_core": [2, 2]}, (8, 16, {}, 8)),  # favored cores
        (ALDER_LAKE, {"threads_per_core": [2, 1], "affinity": range(16, 24)}, (8, 8, {}, 8)),
        (ALDER_LAKE, {"threads_per_core": [2, 1], "quota": "400000 100000"}, (4, 4, {}, 4)),
        ([("", 4, 0)], {"quota": "50000 100000"}, (1, 1, {}, 1)),
        ([("", 4, 0)], {"quota": "150000 100000"}, (2, 2, {}, 2)),
        ([("", 4, 0)], {"quota": "250000 100000"}, (3, 3, {}, 3)),
        ([("", 1, 0)], {}, (1, 1, {}, 1)),
    ],
)
def test_cores_by_kind_and_how_many_threads_compute(tmp_path, groups, options, expected):
    details = identify(tmp_path, groups, **options)
    count, threads, kinds, compute = expected
    assert (details["cores"], details["threads"], details["compute_threads"]) == (count, threads, compute)
    if kinds is not None:
        assert dict(details.get("core_kinds", {})) == kinds


def test_an_old_arm_kernel_gives_only_the_parts_of_its_cores(tmp_path):
    parts = ["0xd03"] * 4 + ["0xd08"] * 2  # A53, A72
    text = "\n\n".join(f"processor : {n}\nFeatures : asimd\nCPU part : {part}" for n, part in enumerate(parts))
    details = identify(tmp_path, [("", 6, 0)], more={"proc/cpuinfo": text})
    assert dict(details["core_kinds"]) == {"performance": 2, "efficiency": 4}
    assert details["compute_threads"] == 6


def test_a_mac_with_two_levels_of_cores():
    said = {"hw.nperflevels": "2", "machdep.cpu.brand_string": "Apple M1", "hw.memsize": str(8 << 30)}
    for level in (0, 1):
        said |= {f"hw.perflevel{level}.physicalcpu": "4", f"hw.perflevel{level}.logicalcpu": "4"}
    found = topology.of_mac(lambda name: said.get(name, ""))
    assert (found.cores, found.threads, found.named) == (8, 8, {"performance": 4, "efficiency": 4})
    assert topology.default_threads(found.cores, found.named) == 4
    assert topology.of_mac(lambda name: "").cores == 1


def test_two_nodes_are_the_processors_of_each(tmp_path):
    files, count = cores([("", 128, 0)])
    files |= {f"sys/devices/system/node/node{n}/cpulist": f"{64 * n}-{64 * n + 63}\n" for n in (0, 1)}
    found = topology.of_linux(tree(tmp_path, files), frozenset(range(count)), None)
    assert found.nodes == (frozenset(range(64)), frozenset(range(64, 128)))
    assert topology.of_linux(tmp_path, frozenset({3}), None).nodes == (frozenset({3}),)


@pytest.mark.parametrize(
    ("features", "shared"),
    [
        (["fp asimd asimddp", "fp asimd"], {"fp", "asimd"}),
        (["fp asimd"], {"fp", "asimd"}),
        ([], set()),
    ],
)
def test_features_are_those_that_all_cores_share(tmp_path, features, shared):
    text = "\n\n".join(f"processor\t: {number}\nFeatures\t: {each}" for number, each in enumerate(features))
    root = tree(tmp_path, {"proc/cpuinfo": text})
    assert topology.shared_features(root) == shared
    found = cpu.identify(root, machine="aarch64", system="linux", affinity={0}, environment={})
    there = {name for name, c in found.capabilities.items() if c.level.value == "native" and name != "isa.kernels"}
    assert there == ({"isa.neon"} if shared else set())


def test_a_plain_machine_is_not_measured_and_a_mixed_or_large_one_is():
    assert topology.thread_counts(4, {}) == (4,)
    assert topology.thread_counts(1, {}) == (1,)
    assert topology.thread_counts(8, {"performance": 4, "efficiency": 4}) == (4, 6, 8)
    assert topology.thread_counts(10, {"performance": 2, "efficiency": 8}) == (10,)
    assert topology.thread_counts(64, {}) == (8, 16, 32, 64)
    assert topology.thread_counts(8, {}, nodes=2) == (1, 2, 4, 8)


def test_threads_are_as_many_as_compute_and_never_more_than_run_at_a_time(monkeypatch, tmp_path):
    files, count = cores(ALDER_LAKE, threads_per_core=[2, 1])
    root = tree(tmp_path, files)
    found = cpu.identify(root, machine="x86_64", system="linux", affinity=range(count), environment={})
    monkeypatch.setattr(planning.detect, "devices", lambda cached: (found,))
    monkeypatch.setattr("os.sched_getaffinity", lambda process: set(range(count)))
    assert [planning.compute_threads(threads) for threads in (None, 1, 16, 24, 10_000)] == [8, 1, 16, 24, 24]
    monkeypatch.setenv("RUNG_THREADS", "1000")
    assert planning.compute_threads(None) == 24
    assert planning.requested_threads(None) == 1000
    with pytest.raises(UsageError, match="-1 threads"):
        planning.compute_threads(-1)
    monkeypatch.setenv("RUNG_THREADS", "10000")
    with pytest.raises(UsageError, match="RUNG_THREADS is '10000'"):
        planning.compute_threads(None)
