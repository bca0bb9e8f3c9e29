"""Intel GPUs from sysfs, Apple's from sysctl."""

import pytest

from rung.core.types import Level, Proof
from rung.hardware.families import mps, xpu
from tests.hardware.trees import card, tree

GB = 2**30


def test_a_card_whose_driver_says_its_memory(tmp_path):
    tree(tmp_path, card("0000:03:00.0", "0x8086", "0xe20b", driver="xe",
                        more={"tile0/physical_vram_size_bytes": f"{hex(12 * GB)}\n"}))  # fmt: skip
    (found,) = xpu.identify(tmp_path)
    assert (found.id, found.kind, found.name, found.arch) == ("xpu:0", "xpu", "Arc B580", "xe2-hpg")
    assert (found.memory, found.free) == (12 * GB, None)
    assert found.details["name_from"] == "catalogue"
    assert "memory_from" not in found.details
    assert found.bandwidth == 456e9
    assert found.software["driver"] == "xe"
    assert found.capability("matmul.f32").proof is Proof.TABLE


def test_tiles_add_up(tmp_path):
    more = {f"tile{n}/physical_vram_size_bytes": f"{64 * GB}\n" for n in range(2)}
    tree(tmp_path, card("0000:03:00.0", "0x8086", "0x0bd5", kind="0x038000", driver="xe", more=more))
    (found,) = xpu.identify(tmp_path)
    assert (found.name, found.memory) == ("Data Center GPU Max 1550", 128 * GB)


def test_where_the_kernel_does_not_show_it_the_memory_is_the_catalogs(tmp_path):
    tree(tmp_path, card("0000:03:00.0", "0x8086", "0x56a5", driver="i915"))
    (found,) = xpu.identify(tmp_path)
    assert (found.name, found.memory, found.details["memory_from"]) == ("Arc A380", 6 * GB, "catalogue")
    assert found.capability("matmul.f64").level is Level.ABSENT


def test_a_card_without_its_driver(tmp_path):
    tree(tmp_path, card("0000:03:00.0", "0x8086", "0x56a0"))
    (found,) = xpu.identify(tmp_path)
    assert found.capability("matmul.f32").source == "no Intel GPU driver"
    assert {c.level for c in found.capabilities.values()} == {Level.ABSENT}


def test_graphics_inside_a_processor_that_nobody_knows_are_left_out(tmp_path):
    tree(tmp_path, card("0000:00:02.0", "0x8086", "0x3e92", driver="i915"))
    tree(tmp_path, card("0000:00:1f.3", "0x8086", "0xa348", kind="0x040300"))
    assert xpu.identify(tmp_path) == []


def test_an_unknown_card_with_memory_of_its_own_is_named_by_its_id(tmp_path):
    tree(tmp_path, card("0000:03:00.0", "0x8086", "0xeeee", driver="i915",
                        more={"drm/card1/lmem_total_bytes": f"{8 * GB}\n"}))  # fmt: skip
    (found,) = xpu.identify(tmp_path)
    assert (found.name, found.memory, found.arch) == ("unknown Intel device 8086:eeee", 8 * GB, "unknown")
    assert not found.capabilities


def mac(**more):
    answers = {"hw.optional.arm64": "1", "machdep.cpu.brand_string": "Apple M2 Pro", "hw.memsize": str(32 * GB),
               "kern.osproductversion": "15.1"} | more  # fmt: skip
    return mps.identify(system="darwin", ask=lambda name: answers.get(name, ""))


def test_an_apple_processor():
    (found,) = mac()
    assert (found.id, found.kind, found.name, found.arch) == ("mps", "mps", "Apple M2 Pro", "apple8")
    assert found.details["arch_from"] == "catalogue"
    assert (found.memory, found.free) == (32 * GB, 32 * GB * 2 // 3)
    assert found.bandwidth == 200e9
    assert found.software["driver"] == "macOS 15.1"
    assert found.capability("matmul.bf16").level is Level.EMULATED
    assert found.capability("matmul.f64").level is Level.ABSENT


@pytest.mark.parametrize(
    ("more", "free"),
    [
        ({"hw.memsize": str(64 * GB)}, 48 * GB),
        ({"iogpu.wired_limit_mb": "28672"}, 28 * GB),
        ({"iogpu.wired_limit_mb": "0"}, 32 * GB * 2 // 3),
        ({"iogpu.wired_limit_mb": "999999"}, 32 * GB),
    ],
)
def test_what_the_gpu_may_hold(more, free):
    (found,) = mac(**more)
    assert found.free == free


def test_a_newer_processor_than_the_catalog():
    (found,) = mac(**{"machdep.cpu.brand_string": "Apple M9 Ultra"})
    assert (found.name, found.arch, found.memory) == ("Apple M9 Ultra", "unknown", 32 * GB)
    assert not found.capabilities


def test_elsewhere_there_is_none():
    assert mps.identify(system="linux", ask=lambda name: "1") == []
    assert mac(**{"hw.optional.arm64": ""}) == []
