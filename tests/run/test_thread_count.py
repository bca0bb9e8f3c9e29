"""How many threads compute: measured once where cores are unlike or many, never elsewhere."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from rung.core.types import Capability, Level, Proof
from rung.core.value import FrozenDict
from rung.engine import planning
from rung.hardware import detect, thread_count
from rung.hardware.families import cpu
from rung.kernels.cpu import thread_pool
from rung.kernels.cpu.thread_pool import Team
from rung.run import worker
from tests.hardware.trees import cores, tree

ALDER_LAKE = [("cpu_core", 8, 5_000_000), ("cpu_atom", 8, 3_800_000)]


def machine(root, groups, **options):
    files, count = cores(groups, **options)
    found = cpu.identify(tree(root, files), machine="x86_64", system="linux", affinity=range(count), environment={})
    proved = Capability("matmul.f32", Level.NATIVE, Proof.PROBE)
    return replace(found, capabilities=FrozenDict({proved.name: proved}))


def here(monkeypatch, device):
    """Let this machine have that processor and no card."""
    monkeypatch.setattr(detect, "cpu", SimpleNamespace(identify=lambda: device))
    monkeypatch.setattr(detect, "accelerators", tuple)
    monkeypatch.setattr(detect.probe_cache, "recall", lambda device: device)


@pytest.fixture
def jobs(monkeypatch, tmp_path):
    """The rates that a child would answer, and the jobs that it was given."""
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "cache"))
    received, answers = [], {}

    def run(jobs, timeout):
        received.extend(jobs)
        return [worker.Outcome("returned", answers) if answers else worker.Outcome("crashed", error="SIGILL")]

    monkeypatch.setattr(worker, "run", run)
    return received, answers


@pytest.mark.parametrize(
    ("rates", "best"),
    [
        ({"8": 60.0, "12": 61.0, "16": 55.0}, 8),
        ({"8": 40.0, "12": 58.0, "16": 62.0}, 16),
        ({"8": 40.0, "12": 61.0, "16": 62.0}, 12),
    ],
)
def test_the_fewest_that_are_nearly_the_fastest_and_only_once(monkeypatch, tmp_path, jobs, rates, best):
    received, answers = jobs
    answers |= rates
    device = machine(tmp_path, ALDER_LAKE, threads_per_core=[2, 1])
    here(monkeypatch, device)
    assert planning.compute_threads(None) == 8  # the rule, before anything is measured
    for _ in range(2):
        planning.proven_devices(lambda device: None)
        assert planning.compute_threads(None) == best
    assert [dict(job.arguments) for job in received] == [{"counts": [8, 12, 16]}]
    other = machine(tmp_path / "other", ALDER_LAKE[:1], threads_per_core=[2])
    assert thread_count.kept(other) is None


def test_a_child_that_dies_leaves_the_rule(monkeypatch, tmp_path, jobs):
    device = machine(tmp_path, ALDER_LAKE, threads_per_core=[2, 1])
    here(monkeypatch, device)
    planning.proven_devices(lambda device: None)
    assert planning.compute_threads(None) == 8


def test_a_plain_machine_is_never_measured(monkeypatch, tmp_path, jobs):
    device = machine(tmp_path, [("", 4, 0)], threads_per_core=[2])
    here(monkeypatch, device)
    planning.proven_devices(lambda device: None)
    assert (planning.compute_threads(None), jobs[0]) == (4, [])


def test_rates_are_measured_here_with_one_thread_and_two():
    found = thread_pool.rates([1, 2])
    assert set(found) == {"1", "2"}
    assert all(1e8 < rate < 1e12 for rate in found.values())
    data = np.ones(thread_pool.STEP * thread_pool.STEPS // 4, np.float32)
    program = thread_pool.reading(data, 2)
    Team(2).run(program)
    assert program.keep[-1].sum() == thread_pool.STEP // 4, "the last step reads each of its bytes once"
