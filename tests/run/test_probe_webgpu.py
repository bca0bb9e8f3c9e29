"""Probes of a GPU through WebGPU, on a software adapter: right values, and planted faults that are found."""

from dataclasses import replace

import pytest

from rung.core.types import Capability, Level, Proof
from rung.hardware import detect, probe_cache
from rung.hardware.families import webgpu
from rung.run import probe
from tests.support.devices import fresh_cache, software_adapter

cache = fresh_cache()
adapter = software_adapter()


def test_what_the_adapter_declares_is_computed_in_a_child_and_kept(adapter):
    found = probe.probe(adapter)
    for name in ("matmul.f32", "attention.f32", "elementwise.f32"):
        assert (found.capability(name).level, found.capability(name).proof) == (Level.NATIVE, Proof.PROBE), name
    int8 = found.capability("matmul.int8")
    assert (int8.level, int8.proof) == (Level.EMULATED, Proof.PROBE)
    for name in ("matmul.f16", "subgroup"):
        declared = adapter.capability(name).level
        assert found.capability(name).level is declared
        assert (found.capability(name).proof is Proof.PROBE) == (declared is Level.NATIVE)
    assert found.bandwidth > 1e6
    assert found.peaks["f32"] > 1e6
    again = next(d for d in detect.devices(software_adapters=True) if d.id == adapter.id)
    assert again.capability("matmul.f32").proof is Proof.PROBE


def test_an_adapter_that_has_gone_proves_nothing_and_is_not_kept(adapter):
    gone = replace(adapter, details=adapter.details | {"adapter": {**adapter.details["adapter"], "name": "other"}})
    found = probe.probe(gone)
    assert found.capability("matmul.f32").level is Level.UNKNOWN
    assert "no longer there" in found.capability("matmul.f32").source
    assert probe_cache.read(gone) is None


def test_int8_is_native_where_the_card_has_the_instruction(adapter):
    fast = Capability("dot8", Level.NATIVE, Proof.TABLE, "dot4I8Packed is dp4a")
    found = probe.measure(adapter.with_capabilities([fast]))
    assert [c.level for c in found.capabilities if c.name == "matmul.int8"] == [Level.NATIVE]


@pytest.fixture
def probes(adapter, monkeypatch):
    """The probes in this process, whose shaders a test may change before they are compiled."""
    from rung.run.probes import webgpu as found

    changes = {}
    device_class = type(webgpu.open_adapter(adapter).request_device_sync())
    create = device_class.create_shader_module

    def changed(self, *, code, **more):
        for old, new in changes.items():
            assert old in code
            code = code.replace(old, new)
        return create(self, code=code, **more)

    monkeypatch.setattr(device_class, "create_shader_module", changed)
    found.start(adapter.to_json())
    found.changes = changes
    return found


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize(
    ("op", "old", "new", "words"),
    [
        ("matmul", "T(sum)", "T(sum * 1.02)", "off by"),
        ("matmul", "T(sum)", "select(T(sum), T(0), row == 0u)", "row 0"),
        ("attention", "T(sum / total)", "T(sum)", "off by"),
        ("elementwise", "inverseSqrt(b * b + T(1))", "sqrt(-b * b - T(1))", "not finite"),
    ],
)
def test_a_driver_that_computes_wrong_numbers_is_found(probes, adapter, dtype, op, old, new, words):
    if adapter.capability(f"{op}.{dtype}").level is Level.ABSENT:
        pytest.skip(f"the adapter declares no {dtype}")
    assert getattr(probes, op)(dtype) == ""
    probes.changes[old] = new
    assert words in getattr(probes, op)(dtype)


def test_a_dot_of_int8_that_saturates_is_found(probes):
    assert probes.matmul("int8") == ""
    probes.changes["sum += dot4I8Packed"] = "sum = min(sum, 30000) + dot4I8Packed"
    assert "row" in probes.matmul("int8")


def test_subgroups_that_do_not_sum_are_found(probes, adapter):
    if adapter.capability("subgroup").level is Level.ABSENT:
        pytest.skip("the adapter has no subgroups")
    assert probes.subgroup() == ""
    probes.changes["subgroupAdd(x[lane])"] = "x[lane]"
    assert probes.subgroup()


def test_the_proof_is_of_this_driver(adapter):
    found = probe_cache.key(adapter)
    other = replace(adapter, software=adapter.software | {"driver": "Mesa 99"})
    assert probe_cache.key(other) != found
