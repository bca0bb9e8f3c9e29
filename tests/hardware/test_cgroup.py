"""Limits of control groups, both versions, nested, in containers and half broken."""

import pytest

from rung.hardware.cgroup import Limits, limits, number_list

GB = 2**30
V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"


def tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def v2(root, group, files):
    base = {"proc/self/cgroup": f"0::{group}", "proc/self/mountinfo": V2_MOUNT}
    return tree(root, base | {f"sys/fs/cgroup/{name}": text for name, text in files.items()})


def test_no_control_groups_no_limits(tmp_path):
    assert limits(tmp_path) == Limits()


def test_version_2(tmp_path):
    v2(
        tmp_path,
        "/user/box",
        {
            "user/box/cpu.max": "150000 100000",
            "user/box/cpuset.cpus.effective": "0-2,7",
            "user/box/memory.max": str(4 * GB),
            "user/box/memory.current": str(3 * GB),
            "user/box/memory.stat": f"anon {GB}\nactive_file {GB}\ninactive_file {GB // 2}\nshmem {GB // 2}",
        },
    )
    assert limits(tmp_path) == Limits(1.5, frozenset({0, 1, 2, 7}), 4 * GB, 4 * GB - 3 * GB + GB + GB // 2)


def test_the_tightest_level_counts(tmp_path):
    v2(
        tmp_path,
        "/a/b/c",
        {
            "a/b/c/cpu.max": "max 100000",
            "a/b/cpu.max": "400000 100000",
            "a/cpu.max": "50000 100000",
            "a/b/c/memory.max": str(8 * GB),
            "a/b/c/memory.current": str(GB),
            "a/b/memory.max": "max",
            "a/b/memory.current": str(6 * GB),
            "a/memory.max": str(6 * GB),
            "a/memory.current": str(5 * GB),
        },
    )
    # The lowest group may have 8 GB and uses one; its grandparent has one left of 6.
    assert limits(tmp_path) == Limits(0.5, None, 6 * GB, GB)


def test_more_in_use_than_allowed_leaves_nothing(tmp_path):
    v2(tmp_path, "/a", {"a/memory.max": str(GB), "a/memory.current": str(2 * GB)})
    assert limits(tmp_path).headroom == 0


V1_MOUNTS = """\
25 30 0:22 / /sys/fs/cgroup ro shared:9 - tmpfs tmpfs ro,mode=755
33 25 0:29 {memory} /sys/fs/cgroup/memory rw,relatime shared:16 - cgroup cgroup rw,memory
34 25 0:30 {cpu} /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:17 - cgroup cgroup rw,cpu,cpuacct
35 25 0:31 / /sys/fs/cgroup/cpuset rw,relatime shared:18 - cgroup cgroup rw,cpuset
36 25 0:32 / /sys/fs/cgroup/systemd rw,relatime shared:19 - cgroup cgroup rw,name=systemd"""


def v1(root, group, files, part="/"):
    return tree(
        root,
        {
            "proc/self/cgroup": f"4:cpuset:/\n3:cpu,cpuacct:{group}\n2:memory:{group}\n1:name=systemd:{group}",
            "proc/self/mountinfo": V1_MOUNTS.format(memory=part, cpu=part),
        }
        | {f"sys/fs/cgroup/{name}": text for name, text in files.items()},
    )


def test_version_1(tmp_path):
    v1(
        tmp_path,
        "/jobs/7",
        {
            "cpu,cpuacct/jobs/7/cpu.cfs_quota_us": "-1",
            "cpu,cpuacct/jobs/7/cpu.cfs_period_us": "100000",
            "cpu,cpuacct/jobs/cpu.cfs_quota_us": "250000",
            "cpu,cpuacct/jobs/cpu.cfs_period_us": "100000",
            "cpuset/cpuset.cpus": "0-3",
            "memory/jobs/7/memory.limit_in_bytes": str(2 * GB),
            "memory/jobs/7/memory.usage_in_bytes": str(GB),
            "memory/jobs/7/memory.stat": f"active_file 5\ntotal_active_file {GB // 4}\ntotal_inactive_file {GB // 4}",
            "memory/memory.limit_in_bytes": "9223372036854771712",
            "memory/memory.usage_in_bytes": str(30 * GB),
        },
    )
    assert limits(tmp_path) == Limits(2.5, frozenset(range(4)), 2 * GB, GB + GB // 2)


def test_inside_a_container_the_mount_shows_a_part_of_the_hosts_tree(tmp_path):
    v1(
        tmp_path,
        "/docker/0a1b/inner",
        {
            "memory/inner/memory.limit_in_bytes": str(GB),
            "memory/inner/memory.usage_in_bytes": "0",
            "memory/memory.limit_in_bytes": str(3 * GB),
            "memory/memory.usage_in_bytes": "0",
        },
        part="/docker/0a1b",
    )
    assert limits(tmp_path).memory == GB


def test_a_path_that_the_mount_does_not_show_means_its_root(tmp_path):
    v1(tmp_path, "/docker/0a1b", {"memory/memory.limit_in_bytes": str(3 * GB)}, part="/docker/other")
    assert limits(tmp_path).memory == 3 * GB


def test_a_path_that_leaves_the_mount_is_not_followed(tmp_path):
    v2(tmp_path, "/../../etc", {"memory.max": str(GB)})
    tree(tmp_path, {"etc/memory.max": "1"})
    assert limits(tmp_path).memory == GB


def test_both_versions_mounted_together(tmp_path):
    v1(tmp_path, "/a", {"memory/a/memory.limit_in_bytes": str(2 * GB), "unified/a/memory.max": str(GB)})
    mounts = tmp_path / "proc/self/mountinfo"
    mounts.write_text(mounts.read_text() + "40 25 0:40 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n")
    groups = tmp_path / "proc/self/cgroup"
    groups.write_text(groups.read_text() + "0::/a\n")
    assert limits(tmp_path).memory == GB


@pytest.mark.parametrize("text", ["", "garbage", "max", "-5 100000", "100000 0", "1 2 3 x"])
def test_a_quota_that_makes_no_sense_is_none(tmp_path, text):
    v2(tmp_path, "/", {"cpu.max": text, "memory.max": text, "cpuset.cpus.effective": text.replace("-", "x")})
    assert limits(tmp_path) == Limits()


@pytest.mark.parametrize(("text", "numbers"), [("0", {0}), ("0-3,8", {0, 1, 2, 3, 8}), ("", set()), (" 5-5\n", {5})])
def test_lists_of_the_kernel(text, numbers):
    assert number_list(text) == numbers
