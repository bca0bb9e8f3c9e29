"""All devices of this machine, and what is remembered of them."""

import subprocess
import sys
from dataclasses import replace

import pytest

from rung.core.types import Capability, Device, Level, Proof
from rung.core.value import FrozenDict
from rung.hardware import detect, json_cache, probe_cache
from rung.hardware.families import cuda
from rung.hardware.probe_cache import Findings
from tests.hardware.fake_nvml import P2200, RTX_3060, Nvml
from tests.support.devices import fresh_cache

MATMUL = Capability("matmul.f32", Level.NATIVE, Proof.PROBE, "computed")
FOUND = Findings((MATMUL,), FrozenDict(f32=2e12), 150e9, ("a note",))


cache = fresh_cache()


@pytest.fixture
def p2200(tmp_path):
    return cuda.identify(tmp_path, nvml=Nvml(P2200), environment={})[0]


def test_the_cpu_comes_first():
    found = detect.devices()
    assert found[0].id == "cpu"
    assert len({d.id for d in found}) == len(found)
    assert all(d.real for d in found)


def test_what_a_probe_found_replaces_what_the_table_says(p2200):
    assert probe_cache.recall(p2200) == p2200
    assert probe_cache.write(p2200, FOUND) == ""
    found = probe_cache.recall(p2200)
    assert found.capability("matmul.f32") == MATMUL
    assert found.capability("matmul.bf16").proof is Proof.TABLE
    assert (found.peaks["f32"], found.bandwidth) == (2e12, 150e9)
    assert found.peaks["bf16"] == p2200.peaks["bf16"]
    assert found.details["rates"] == "probe"
    assert found.details["notes"] == "a note"
    assert Device.from_json(found.to_json()) == found


def test_devices_merges_what_is_cached():
    cpu = detect.devices(cached=False)[0]
    probe_cache.write(cpu, FOUND)
    assert detect.devices()[0].capability("matmul.f32") == MATMUL
    assert detect.devices(cached=False)[0].capability("matmul.f32").level is Level.UNKNOWN


@pytest.mark.parametrize(
    "change",
    [
        {"name": "Quadro P2000"},
        {"arch": "sm_75"},
        {"memory": 1},
        {"id": "cuda:1"},
        {"software": FrozenDict(torch="2.13.0+cu130", driver="580.95.05")},
        {"software": FrozenDict(torch="2.13.0+cpu", driver="590")},
        {"details": FrozenDict(uuid="GPU-other")},
        {"capabilities": FrozenDict()},
    ],
    ids=str,
)
def test_another_device_driver_or_build_is_measured_again(p2200, change):
    probe_cache.write(p2200, FOUND)
    assert probe_cache.read(p2200)
    assert probe_cache.read(replace(p2200, **change)) is None


def test_what_changes_by_itself_does_not_matter(p2200):
    probe_cache.write(p2200, FOUND)
    assert probe_cache.read(replace(p2200, free=17)) == FOUND


@pytest.mark.parametrize("variable", ["NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_DISABLE_JIT"])
def test_another_target_of_the_compiler_is_measured_again(p2200, monkeypatch, variable):
    probe_cache.write(p2200, FOUND)
    monkeypatch.setenv(variable, "generic")
    assert probe_cache.read(p2200) is None


def test_another_rung_or_other_sources_are_measured_again(p2200, monkeypatch):
    probe_cache.write(p2200, FOUND)
    with monkeypatch.context() as patch:
        patch.setattr("rung.core.version.__version__", "9.9")
        assert probe_cache.read(p2200) is None
    monkeypatch.setattr(probe_cache, "sources", lambda: "other")
    assert probe_cache.read(p2200) is None


def test_the_sources_are_there():
    for name in probe_cache._SOURCES:
        assert (probe_cache._PACKAGE / name).exists(), name


def test_two_cards_of_one_kind_are_kept_apart(tmp_path):
    twins = cuda.identify(tmp_path, nvml=Nvml(P2200, P2200 | {"uuid": "GPU-2", "bus": 2}), environment={})
    probe_cache.write(twins[0], FOUND)
    assert probe_cache.read(twins[1]) is None


@pytest.mark.parametrize(
    "value", [None, 1, [], {}, {"capabilities": "x"}, {"peaks": 1}, {"capabilities": [{"name": 1}]}]
)
def test_a_proof_of_another_shape_is_none(p2200, value):
    json_cache.write(probe_cache.key(p2200), value)
    assert probe_cache.read(p2200) in (None, Findings())


def test_a_cache_that_cannot_be_written(p2200, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("RUNG_CACHE", str(tmp_path / "file"))
    assert "cannot be written" in probe_cache.write(p2200, FOUND)
    assert probe_cache.recall(p2200) == p2200


def test_accelerators_come_after_the_cpu(monkeypatch, tmp_path):
    two = cuda.identify(tmp_path, nvml=Nvml(P2200, RTX_3060), environment={})
    monkeypatch.setattr(detect, "accelerators", lambda: tuple(two))
    assert [d.id for d in detect.devices()] == ["cpu", "cuda:0", "cuda:1"]


def test_nothing_heavy_is_loaded():
    code = "import sys; from rung.hardware import detect; detect.devices(); print(*sys.modules)"
    for _ in range(2):  # the first one lets a child list the adapters
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not {"torch", "numpy", "numba", "llvmlite", "rich", "subprocess", "importlib.metadata"} & loaded
