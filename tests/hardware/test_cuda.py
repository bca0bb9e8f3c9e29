"""NVIDIA GPUs from recorded answers of the driver, and cards without one."""

import json

import pytest

from rung.core.types import Device, Level, Proof
from rung.hardware.families import cuda
from tests.hardware.fake_nvml import GB10, GTX_1650, H200, LOST, ORIN, P2200, RTX_3060, UNKNOWN, UNKNOWN_ARCH, Nvml
from tests.hardware.trees import card, tree

GB = 2**30


def identify(tmp_path, *gpus, environment=None, **driver):
    return cuda.identify(tmp_path, nvml=Nvml(*gpus, **driver), environment=environment or {})


def test_a_card_of_the_catalog(tmp_path):
    (found,) = identify(tmp_path, P2200)
    assert (found.id, found.kind, found.name, found.arch, found.real) == (
        "cuda:0",
        "cuda",
        "Quadro P2200",
        "sm_61",
        True,
    )
    assert (found.memory, found.free) == (5059 << 20, (5059 << 20) - GB // 2)
    assert found.bandwidth == 200e9
    assert found.peaks["f32"] == 3.82e12
    assert found.software["driver"] == "580.95.05"
    assert found.details["cuda"] == "13.0"
    assert found.details["pci"] == "0000:01:00"
    assert found.details["pci_id"] == "10de:1c31"
    assert found.details["rates"] == "table"
    assert "name_from" not in found.details
    assert Device.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_nothing_of_it_is_proved(tmp_path):
    (found,) = identify(tmp_path, P2200)
    assert {c.proof for c in found.capabilities.values() if c.level is not Level.UNKNOWN} == {Proof.TABLE}
    assert found.capability("matmul.f32").level is Level.NATIVE
    assert found.capability("matmul.bf16").level is Level.EMULATED
    assert found.capability("matmul.int8").level is Level.UNKNOWN
    assert found.capability("matmul.fp8").level is Level.ABSENT
    assert found.capability("elementwise.fp8").level is Level.UNKNOWN


def test_two_cards_keep_the_order_of_the_bus(tmp_path):
    found = identify(tmp_path, P2200, RTX_3060)
    assert [(d.id, d.name) for d in found] == [("cuda:0", "Quadro P2200"), ("cuda:1", "NVIDIA GeForce RTX 3060")]
    assert found[1].details["pci"] == "0000:41:00"
    assert found[1].capability("matmul.bf16").level is Level.NATIVE


def test_the_product_tells_what_the_compute_capability_does_not(tmp_path):
    (found,) = identify(tmp_path, GTX_1650)
    assert found.arch == "sm_75-tu11x"
    assert found.capability("matmul.int8").level is Level.UNKNOWN


def test_a_driver_that_does_not_say_how_much_memory(tmp_path):
    (found,) = identify(tmp_path, GB10)
    assert (found.memory, found.free) == (128 * GB, None)
    assert found.details["memory_from"] == "catalogue"


def test_a_data_center_card(tmp_path):
    (found,) = identify(tmp_path, H200)
    assert (found.arch, found.bandwidth) == ("sm_90", 4800e9)
    assert found.capability("matmul.fp8").level is Level.NATIVE


def test_a_product_that_nobody_knows_has_what_its_architecture_has(tmp_path):
    (found,) = identify(tmp_path, UNKNOWN)
    assert (found.name, found.memory, found.bandwidth) == ("NVIDIA Thing 9000", 30 * GB, None)
    assert not found.peaks
    assert found.capability("matmul.bf16").level is Level.NATIVE


def test_an_architecture_that_nobody_knows_is_unknown_and_never_yes(tmp_path):
    (found,) = identify(tmp_path, UNKNOWN_ARCH)
    assert found.arch == "sm_990"
    assert not found.capabilities
    assert found.capability("matmul.f32").level is Level.UNKNOWN


@pytest.mark.parametrize(
    ("value", "names"),
    [
        ("0,1", ["Quadro P2200", "NVIDIA GeForce RTX 3060"]),
        ("1", ["NVIDIA GeForce RTX 3060"]),
        ("1,0", ["NVIDIA GeForce RTX 3060", "Quadro P2200"]),
        ("GPU-ffff", ["NVIDIA GeForce RTX 3060"]),
        ("0,7,1", ["Quadro P2200"]),
        ("GPU-", []),
    ],
)
def test_cuda_visible_devices(tmp_path, value, names):
    found = identify(tmp_path, P2200, RTX_3060, environment={"CUDA_VISIBLE_DEVICES": value})
    assert [d.name for d in found] == names
    assert [d.id for d in found] == [f"cuda:{n}" for n in range(len(names))]


@pytest.mark.parametrize("value", ["", "-1", "NoDevFiles"])
def test_no_visible_device_is_none(tmp_path, value):
    assert identify(tmp_path, P2200, environment={"CUDA_VISIBLE_DEVICES": value}) == []


def test_the_library_is_closed_again(tmp_path):
    nvml = Nvml(P2200)
    cuda.identify(tmp_path, nvml=nvml, environment={})
    assert nvml.open == 0


def test_no_card_no_driver_no_device(tmp_path):
    assert cuda.identify(tmp_path, environment={}) == []
    assert identify(tmp_path) == []


def test_a_card_without_its_driver(tmp_path):
    tree(tmp_path, card("0000:01:00.0", "0x10de", "0x1c31", driver="nouveau"))
    tree(tmp_path, card("0000:01:00.1", "0x10de", "0x10f1", kind="0x040300"))  # its sound
    (found,) = cuda.identify(tmp_path, environment={})
    assert (found.name, found.arch, found.memory, found.free) == ("Quadro P2200", "sm_61", 5 * GB, 0)
    assert found.details["name_from"] == found.details["memory_from"] == "catalogue"
    assert "nouveau" in found.details["notes"]
    assert {c.level for c in found.capabilities.values()} == {Level.ABSENT}
    assert "nouveau" in found.capability("matmul.f32").source


def test_a_card_that_the_catalog_does_not_know(tmp_path):
    tree(tmp_path, card("0000:01:00.0", "0x10de", "0xfff0"))
    (found,) = cuda.identify(tmp_path, environment={})
    assert (found.name, found.arch, found.memory) == ("unknown NVIDIA device 10de:fff0", "unknown", 0)
    assert found.details["name_from"] == "pci id"
    assert found.capability("matmul.f32").source == "no NVIDIA driver"


def test_a_driver_that_does_not_answer(tmp_path):
    tree(tmp_path, card("0000:01:00.0", "0x10de", "0x1c31", driver="nvidia"))
    (found,) = identify(tmp_path, refuses="Driver/library version mismatch")
    assert "version mismatch" in found.capability("matmul.f32").source


def test_bytes_are_text_too(tmp_path):
    (found,) = identify(tmp_path, P2200 | {"name": b"Quadro P2200", "uuid": b"GPU-1"}, driver=b"470.1")
    assert (found.name, found.details["uuid"], found.software["driver"]) == ("Quadro P2200", "GPU-1", "470.1")


def test_a_lost_gpu_leaves_the_others_their_numbers(tmp_path):
    lost, whole = identify(tmp_path, LOST, RTX_3060)
    assert (lost.id, lost.name, lost.free) == ("cuda:0", "unknown cuda device", 0)
    assert "GPU is lost" in lost.capability("matmul.f32").source
    assert {c.level for c in lost.capabilities.values()} == {Level.ABSENT}
    assert (whole.id, whole.name) == ("cuda:1", "NVIDIA GeForce RTX 3060")


def test_a_board_without_a_pci_bus(tmp_path):
    (found,) = identify(tmp_path, ORIN)
    assert (found.arch, found.memory) == ("sm_87", 64 * GB)
    assert "pci" not in found.details
    assert found.capability("matmul.bf16").level is Level.NATIVE
