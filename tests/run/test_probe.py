"""Probes: what is right is kept with its proof, and everything else costs one capability."""

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from rung.core.types import Level, Proof
from rung.core.value import FrozenDict
from rung.hardware import catalog, cgroup, detect, probe_cache
from rung.hardware.families import cuda
from rung.run import probe, worker
from rung.run.probes import arrays
from rung.run.worker import Outcome
from tests.hardware.fake_nvml import P2200, Nvml
from tests.support.devices import fresh_cache

DTYPES = ("f32", "f16", "bf16", "f64", "int8", "fp8")


cache = fresh_cache()


@pytest.fixture
def cpu():
    return detect.devices(cached=False)[0]


@pytest.fixture
def p2200(tmp_path):
    return cuda.identify(tmp_path, nvml=Nvml(P2200), environment={})[0]


# ---- from outcomes to capabilities


def outcomes(monkeypatch, special, default=None):
    """Answers every job as on a good device, but for those in ``special`` (function and dtype, or a rate)."""

    def run(jobs, timeout, *, prepare=None, most_lost=None, environment=None, progress=lambda done: None):
        answers = []
        for job in jobs:
            name = job.function.rpartition(":")[2]
            if "rates" in job.function:
                name = f"rate.{name}"
            key = f"{name}.{job.arguments.get('dtype') or job.arguments.get('name', '')}".rstrip(".")
            good = Outcome("returned", 1e12 if name == "rate.matmul" else 1e11 if name == "rate.bandwidth" else "")
            answers.append(special.get(key, default or good))
            progress(len(answers))
        return answers

    monkeypatch.setattr(worker, "run", run)


def test_a_good_device(monkeypatch, p2200):
    outcomes(monkeypatch, {})
    found = probe.probe(p2200)
    assert {c.level for c in found.capabilities.values()} == {Level.NATIVE}
    assert {c.proof for c in found.capabilities.values()} == {Proof.PROBE}
    assert dict(found.peaks) == dict.fromkeys(DTYPES, 1e12)
    assert found.bandwidth == 1e11
    assert found.details["rates"] == "probe"
    assert probe_cache.recall(p2200) == found


@pytest.mark.parametrize(
    ("outcome", "level", "reason"),
    [
        (Outcome("returned", "wrong numbers, row 3 is off by 0.4"), Level.ABSENT, "row 3 is off"),
        (
            Outcome("raised", error="RuntimeError: CUBLAS_STATUS_NOT_SUPPORTED\nmore"),
            Level.ABSENT,
            "refused: CUBLAS_STATUS_NOT_SUPPORTED",
        ),
        (Outcome("crashed", error="the process aborted: LLVM ERROR"), Level.ABSENT, "the process aborted: LLVM ERROR"),
        (Outcome("crashed", error="segmentation fault"), Level.ABSENT, "segmentation fault"),
        (Outcome("timeout", error="no answer within 15 s"), Level.ABSENT, "no answer within 15 s"),
        (Outcome("raised", error="OutOfMemoryError: CUDA out of memory. Tried ..."), Level.UNKNOWN, "out of memory"),
        (Outcome("raised", error="NotImplementedError: " + "x" * 500), Level.ABSENT, "xxx"),
        (
            Outcome("crashed", error="the process was killed, as the kernel does when memory runs out"),
            Level.UNKNOWN,
            "killed",
        ),
        (Outcome("skipped", error="not tried: 5 attempts before it"), Level.UNKNOWN, "not tried"),
    ],
    ids=["wrong", "raised", "aborted", "segfault", "hang", "memory", "long", "killed", "skipped"],
)
def test_trouble_costs_one_capability(monkeypatch, p2200, outcome, level, reason):
    outcomes(monkeypatch, {"matmul.bf16": outcome})
    found = probe.probe(p2200)
    bf16 = found.capability("matmul.bf16")
    assert bf16.level is level
    assert reason in bf16.source
    assert "\n" not in bf16.source
    assert len(bf16.source) <= 200
    assert bf16.proof is (Proof.NONE if level is Level.UNKNOWN else Proof.PROBE)
    others = [c for c in found.capabilities.values() if c.name != "matmul.bf16"]
    assert {c.level for c in others} == {Level.NATIVE}
    assert ("bf16" in found.peaks) == (level is Level.UNKNOWN), "no rate of what is absent"


def test_what_stayed_unknown_is_tried_again_next_time(monkeypatch, p2200):
    outcomes(monkeypatch, {"attention.f16": Outcome("raised", error="OutOfMemoryError: out of memory")})
    probe.probe(p2200)
    assert probe_cache.read(p2200) is None


def test_a_hang_is_believed_for_an_hour(monkeypatch, p2200):
    """The preparation may have hung on a busy machine; every capability was absent for good then."""
    outcomes(monkeypatch, {}, default=Outcome("timeout", error="no answer within 60 s"))
    found = probe.probe(p2200)
    assert {c.level for c in found.capabilities.values()} == {Level.ABSENT}
    assert "tried again after an hour" in found.capability("matmul.f32").source
    outcomes(monkeypatch, {})
    assert probe.probe(p2200) == found, "within that hour nobody waits for it again"
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3601)
    assert probe_cache.recall(p2200).capability("matmul.f32").proof is not Proof.PROBE
    assert {c.level for c in probe.probe(p2200).capabilities.values()} == {Level.NATIVE}
    monkeypatch.setattr(time, "time", lambda: now + 10**9)
    assert probe_cache.read(p2200), "other findings hold"


def test_a_dtype_that_is_far_slower_than_f32_is_emulated(monkeypatch, p2200):
    outcomes(monkeypatch, {"rate.matmul.f16": Outcome("returned", 5e10), "rate.matmul.bf16": Outcome("returned", 9e11)})
    found = probe.probe(p2200)
    assert found.capability("matmul.f16").level is Level.EMULATED
    assert "20.0 times slower than f32" in found.capability("matmul.f16").source
    assert found.capability("attention.f16").level is Level.EMULATED
    assert found.capability("elementwise.f16").level is Level.NATIVE
    assert found.capability("matmul.bf16").level is Level.NATIVE
    assert found.peaks["f16"] == 5e10


def test_f64_may_be_slow_and_is_native(monkeypatch, p2200):
    outcomes(monkeypatch, {"rate.matmul.f64": Outcome("returned", 3e10)})
    assert probe.probe(p2200).capability("matmul.f64").level is Level.NATIVE


def test_a_rate_that_could_not_be_measured_is_a_note(monkeypatch, p2200):
    outcomes(monkeypatch, {"rate.matmul.f32": Outcome("timeout", error="no answer within 15 s"),
                           "rate.bandwidth": Outcome("crashed", error="segmentation fault")})  # fmt: skip
    found = probe.probe(p2200)
    assert found.capability("matmul.f32").level is Level.NATIVE
    assert "the rate of f32 is not known: no answer" in found.details["notes"]
    assert "the bandwidth is not known" in found.details["notes"]
    assert found.bandwidth == p2200.bandwidth


def test_a_build_without_code_for_the_card(monkeypatch, p2200):
    why = "torch 2.13.0+cu130 has no code for sm_61: it is built for sm_75, sm_80"
    outcomes(monkeypatch, {}, default=Outcome("raised", error=f"LookupError: {why}"))
    found = probe.probe(p2200)
    assert {(c.level, c.source) for c in found.capabilities.values()} == {(Level.ABSENT, why)}
    assert probe_cache.read(p2200), "that is a finding: it holds until the build changes"


def test_a_driver_that_is_too_old(monkeypatch, p2200):
    why = "The NVIDIA driver on your system is too old (found version 11040)."
    outcomes(monkeypatch, {}, default=Outcome("raised", error=f"LookupError: {why}"))
    assert probe.probe(p2200).capability("matmul.f32").source == why


@pytest.mark.parametrize(
    "outcome",
    [
        Outcome("crashed", error="no child process: [Errno 11] Resource temporarily unavailable"),
        Outcome("timeout", error="the child did not start"),
        Outcome("raised", error="ModuleNotFoundError: No module named 'torch'"),
    ],
    ids=["no process", "no start", "no torch"],
)
def test_what_says_nothing_about_the_device_leaves_it_unknown(monkeypatch, p2200, outcome):
    outcomes(monkeypatch, {}, default=outcome)
    found = probe.probe(p2200)
    assert {c.level for c in found.capabilities.values()} == {Level.UNKNOWN}
    assert probe_cache.read(p2200) is None


# ---- without the software


def test_no_torch_says_so_and_starts_nothing(monkeypatch, p2200):
    monkeypatch.setattr(worker, "run", lambda *a, **k: pytest.fail("nothing to run"))
    bare = replace(p2200, software=FrozenDict())
    found = probe.probe(bare)
    assert found.capability("matmul.f32").level is Level.UNKNOWN
    assert "pip install 'rung[run]'" in found.capability("matmul.f32").source
    assert "pip install 'rung[run]'" in found.details["notes"]
    assert probe_cache.read(bare) is None


def test_without_torch_numpy_computes_what_a_processor_can(cpu):
    software = FrozenDict({name: at for name, at in cpu.software.items() if not name.startswith("torch")})
    found = probe.probe(replace(cpu, software=software), fresh=True)
    for name in ("matmul.f32", "elementwise.f32", "matmul.f64"):
        assert (found.capability(name).level, found.capability(name).proof) == (Level.NATIVE, Proof.PROBE)
    assert found.peaks["f32"] > 1e8
    assert found.bandwidth > 1e8
    assert found.capability("matmul.bf16").level is Level.UNKNOWN
    assert probe_cache.read(replace(cpu, software=software)) is not None


@pytest.mark.parametrize("work", [arrays.matmul, arrays.elementwise])
def test_numbers_of_numpy_that_are_wrong_are_named(monkeypatch, work):
    assert work("f32") == ""
    monkeypatch.setattr(arrays, "DTYPES", {"f32": np.float16})  # too coarse for f32's tolerance
    assert "wrong numbers, row" in work("f32")


def test_no_numba_leaves_the_instruction_sets_unknown(monkeypatch, cpu):
    outcomes(monkeypatch, {})
    found = probe.probe(replace(cpu, software=FrozenDict(torch="2.13")))
    isa = [c for c in found.capabilities.values() if c.name.startswith("isa.") and c.level is not Level.ABSENT]
    assert isa or not any(c.level is Level.NATIVE for c in cpu.capabilities.values())
    assert all(c.level is Level.UNKNOWN and "numba is not installed" in c.source for c in isa)


# ---- kept, fresh, elsewhere


def test_an_earlier_probe_is_read_and_fresh_measures_again(monkeypatch, p2200):
    outcomes(monkeypatch, {})
    first = probe.probe(p2200)
    outcomes(monkeypatch, {"matmul.f16": Outcome("returned", "wrong numbers")})
    assert probe.probe(p2200) == first
    assert probe.probe(p2200, fresh=True).capability("matmul.f16").level is Level.ABSENT
    assert probe.probe(p2200).capability("matmul.f16").level is Level.ABSENT


def test_a_simulated_device_is_not_measured(monkeypatch):
    monkeypatch.setattr(worker, "run", lambda *a, **k: pytest.fail("nothing to run"))
    device = catalog.device("p2200")
    assert probe.probe(device, fresh=True) == device


def test_a_cache_that_cannot_be_written_costs_a_note(monkeypatch, p2200, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "file"))
    outcomes(monkeypatch, {})
    found = probe.probe(p2200)
    assert found.capability("matmul.f32").level is Level.NATIVE
    assert "cannot be written" in found.details["notes"]


def test_the_progress_says_what_is_tried(monkeypatch, cpu):
    outcomes(monkeypatch, {})
    said = []
    probe.probe(cpu, fresh=True, progress=said.append)
    assert list(dict.fromkeys(said))[-2:] == ["values", "rates"]


def test_a_busy_processor_is_noted(monkeypatch, cpu):
    outcomes(monkeypatch, {})
    monkeypatch.setattr(probe.os, "getloadavg", lambda: (50.0, 0.0, 0.0))
    assert "rates are too low" in probe.probe(cpu, fresh=True).details["notes"]
    monkeypatch.setattr(probe.os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    assert "notes" not in probe.probe(cpu, fresh=True).details


TWO = """
import sys, time
sys.path[:] = {path!r}
from rung.hardware import detect
from rung.hardware.probe_cache import Findings
from rung.core.types import Capability, Level, Proof
from rung.run import probe

def measure(device, progress):
    print("measured", flush=True)
    time.sleep(1.0)
    return Findings((Capability("matmul.f32", Level.NATIVE, Proof.PROBE, ""),))

probe.measure = measure
assert probe.probe(detect.devices()[0]).capability("matmul.f32").level is Level.NATIVE
"""


def test_two_processes_at_once_measure_once():
    code = TWO.format(path=sys.path)
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=60)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    assert sorted(said) == ["", "measured\n"]


# ---- for real


def test_this_machine_for_real(cpu):
    found = probe.probe(cpu, fresh=True)
    f32 = found.capability("matmul.f32")
    assert (f32.level, f32.proof) == (Level.NATIVE, Proof.PROBE)
    for dtype in DTYPES:
        assert found.capability(f"matmul.{dtype}").level is not Level.UNKNOWN
        assert found.capability(f"matmul.{dtype}").source
    assert found.peaks["f32"] > 1e8
    assert found.bandwidth > 1e8
    declared = [c.name for c in cpu.capabilities.values() if c.name.startswith("isa.") and c.level is Level.NATIVE]
    if cpu.arch == "x86_64":
        assert all(found.capability(name).proof is Proof.PROBE for name in declared)
        assert all(found.capability(name).level is Level.NATIVE for name in declared)
    assert detect.devices()[0].capability("matmul.f32") == f32


def test_a_card_that_this_torch_is_not_built_for(p2200):
    if torch.version.cuda:
        pytest.skip("this torch is built for CUDA")
    found = probe.probe(p2200, fresh=True)
    reasons = {c.source for c in found.capabilities.values()}
    assert reasons == {f"torch {torch.__version__} is built without CUDA"}


@pytest.mark.skipif("avx512f" not in cgroup.read(Path("/proc/cpuinfo")), reason="needs a processor with AVX-512")
def test_a_compiler_that_is_told_to_make_less(monkeypatch):
    monkeypatch.setenv("NUMBA_CPU_NAME", "haswell")
    monkeypatch.setenv("NUMBA_CPU_FEATURES", "+avx2,+fma,+f16c,+avx")
    device = detect.devices(cached=False)[0]
    assert device.capability("isa.avx2").level is Level.UNKNOWN
    found = {c.name: c for c in probe.prove_instruction_sets(device, lambda what: None)}
    assert found["isa.avx2"].level is Level.NATIVE
    assert found["isa.avx512_vnni"].level is Level.ABSENT
    assert found["isa.avx512_vnni"].source.startswith("the compiler's target has no avx512bw")
