"""AMD GPUs from recorded files of KFD and DRM."""

import pytest

from rung.core.types import Level, Proof
from rung.hardware.families import rocm
from tests.hardware.trees import card, tree

GB = 2**30
NODES = "sys/class/kfd/kfd/topology/nodes"
CPU_NODE = "cpu_cores_count 16\nsimd_count 0\ngfx_target_version 0\nvendor_id 0\ndevice_id 0\nlocation_id 0\n"


def gpu_node(number, version, device, *, bus=3, simds=192, memory=24 * GB):
    properties = (
        f"cpu_cores_count 0\nsimd_count {simds}\nsimd_per_cu 2\ngfx_target_version {version}\nvendor_id 4098\n"
        f"device_id {device}\nlocation_id {bus << 8}\ndomain 0\ndrm_render_minor 128\nunique_id 123\n"
    )
    return {
        f"{NODES}/{number}/properties": properties,
        f"{NODES}/{number}/mem_banks/0/properties": f"heap_type 1\nsize_in_bytes {memory}\nflags 0\nwidth 384\n",
        f"{NODES}/{number}/mem_banks/1/properties": "heap_type 4\nsize_in_bytes 65536\nflags 0\n",
    }


def drm(bus, device, total=24 * GB, used=GB, name=""):
    more = {"mem_info_vram_total": f"{total}\n", "mem_info_vram_used": f"{used}\n", "product_name": f"{name}\n"}
    return card(f"0000:{bus:02x}:00.0", "0x1002", device, driver="amdgpu", more=more)


def machine(root, *parts):
    files = {f"{NODES}/0/properties": CPU_NODE, "sys/module/amdgpu/version": "6.16.6\n"}
    for part in parts:
        files |= part
    return tree(root, files)


@pytest.mark.parametrize(
    ("version", "name"),
    [(80003, "gfx803"), (90000, "gfx900"), (90006, "gfx906"), (90008, "gfx908"), (90010, "gfx90a"), (90402, "gfx942"),
     (90500, "gfx950"), (100300, "gfx1030"), (100302, "gfx1032"), (110000, "gfx1100"), (110501, "gfx1151"),
     (120001, "gfx1201")],
)  # fmt: skip
def test_targets(version, name):
    assert rocm.target(version) == name


def test_a_card_with_everything(tmp_path):
    machine(tmp_path, gpu_node(1, 110000, 0x744C), drm(3, "0x744c"))
    (found,) = rocm.identify(tmp_path, environment={})
    assert (found.id, found.kind, found.arch) == ("rocm:0", "rocm", "gfx1100")
    assert found.name == "Radeon RX 7900 XTX"  # the id is also the XT's, which has 20 GB
    assert found.details["name_from"] == "catalogue"
    assert (found.memory, found.free) == (24 * GB, 23 * GB)
    assert found.bandwidth == 960e9
    assert found.details["compute_units"] == 96
    assert found.software["driver"] == "6.16.6"
    assert found.capability("matmul.bf16").proof is Proof.TABLE


def test_the_drivers_name_comes_first(tmp_path):
    machine(
        tmp_path, gpu_node(1, 90402, 0x74A1, memory=192 * GB), drm(3, "0x74a1", 192 * GB, name="AMD Instinct MI300X")
    )
    (found,) = rocm.identify(tmp_path, environment={})
    assert (found.name, found.arch, found.bandwidth) == ("AMD Instinct MI300X", "gfx942", 5300e9)
    assert "name_from" not in found.details


def test_products_that_share_an_id_and_a_size_keep_both_names_and_no_rates(tmp_path):
    machine(tmp_path, gpu_node(1, 120001, 0x7550, memory=16 * GB), drm(3, "0x7550", 16 * GB))
    (found,) = rocm.identify(tmp_path, environment={})
    assert found.name == "Radeon RX 9070 / Radeon RX 9070 XT"
    assert found.details["name_from"] == "pci id"
    assert found.bandwidth is None
    assert not found.peaks
    assert found.capability("matmul.fp8").level is Level.NATIVE


def test_without_drm_files_the_memory_is_kfds_and_what_is_free_is_not_known(tmp_path):
    machine(tmp_path, gpu_node(1, 90006, 0x66A1, memory=16 * GB))
    (found,) = rocm.identify(tmp_path, environment={})
    assert (found.memory, found.free) == (16 * GB, None)


def test_an_unknown_target_is_unknown(tmp_path):
    machine(tmp_path, gpu_node(1, 130000, 0x9999))
    (found,) = rocm.identify(tmp_path, environment={})
    assert (found.arch, found.name) == ("gfx1300", "unknown AMD device 1002:9999")
    assert not found.capabilities


def test_order_and_visibility(tmp_path):
    machine(tmp_path, gpu_node(2, 90006, 0x66A1, bus=9), gpu_node(10, 110000, 0x744C, bus=3))
    both = rocm.identify(tmp_path, environment={})
    assert [(d.id, d.arch) for d in both] == [("rocm:0", "gfx906"), ("rocm:1", "gfx1100")]
    (second,) = rocm.identify(tmp_path, environment={"HIP_VISIBLE_DEVICES": "1"})
    assert (second.id, second.arch) == ("rocm:0", "gfx1100")
    environment = {"ROCR_VISIBLE_DEVICES": "1", "HIP_VISIBLE_DEVICES": "0"}
    assert [d.arch for d in rocm.identify(tmp_path, environment=environment)] == ["gfx1100"]
    assert rocm.identify(tmp_path, environment={"HIP_VISIBLE_DEVICES": "5"}) == []


def test_a_card_without_a_compute_driver(tmp_path):
    tree(tmp_path, drm(3, "0x67df", 8 * GB))
    (found,) = rocm.identify(tmp_path, environment={})
    assert (found.id, found.name, found.arch, found.free) == ("rocm:0", "Radeon RX 580 8GB", "gfx803", 0)
    assert {c.level for c in found.capabilities.values()} == {Level.ABSENT}
    assert "KFD" in found.capability("matmul.f32").source


def test_a_processor_alone_is_no_gpu(tmp_path):
    assert rocm.identify(machine(tmp_path), environment={}) == []
    assert rocm.identify(tmp_path / "empty", environment={}) == []


def test_a_gpu_that_rocm_does_not_know_is_no_device_to_compute_on(tmp_path):
    assert rocm.identify(machine(tmp_path, gpu_node(1, 0, 0x1638)), environment={}) == []
