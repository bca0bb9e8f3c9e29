"""Adapters of WebGPU: which there are, what each is called, and what is known when a driver fails."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from rung.core.errors import UnknownDevice, UsageError
from rung.core.types import Device, Level
from rung.core.value import FrozenDict
from rung.hardware import detect
from rung.hardware.families import webgpu
from rung.hardware.families.webgpu import Adapter, Listing
from tests.support.devices import fresh_cache, software_adapter

cache = fresh_cache()
adapter = software_adapter()

CPU = Device("cpu", "cpu", "a processor", "x86_64", 32 << 30, 20 << 30)
LIMITS = FrozenDict({"max-buffer-size": 2**31 - 1})
RTX = Adapter(0, "NVIDIA GeForce RTX 3060", "580.95", "Vulkan", "DiscreteGPU", 0x10DE, 0x2503, ("shader-f16",), LIMITS)
RX = Adapter(
    1, "AMD Radeon RX 480 Graphics (RADV POLARIS10)", "radv", "Vulkan", "DiscreteGPU", 0x1002, 0x67DF, (), LIMITS
)
IRIS = Adapter(2, "Intel(R) UHD Graphics", "Mesa", "Vulkan", "IntegratedGPU", 0x8086, 0x9A49, (), LIMITS)
LAVAPIPE = Adapter(3, "llvmpipe (LLVM 15)", "Mesa 22.3.6", "Vulkan", "CPU", 0x10005, 0, ("shader-f16",), LIMITS)
OPENGL = Adapter(4, "NVIDIA GeForce RTX 3060", "OpenGL 4.6", "OpenGL", "DiscreteGPU", 0x10DE, 0x2503)


def found(*adapters, others=(CPU,), software=False):
    listing = Listing(tuple(replace(each, index=n) for n, each in enumerate(adapters)))
    cards = webgpu.identify(others, listing=lambda root: listing)
    return cards + webgpu.software_adapters((*others, *cards), listing=lambda root: listing) if software else cards


def names(devices):
    return [(device.id, device.name) for device in devices]


def test_real_adapters_are_numbered_before_software_which_has_to_be_asked_for():
    every = (LAVAPIPE, IRIS, RTX)
    assert names(found(*every)) == [("webgpu:0", RTX.name), ("webgpu:1", IRIS.name)]
    assert names(found(*every, software=True))[2] == ("webgpu:2", LAVAPIPE.name)
    assert found(LAVAPIPE) == []


def test_a_card_is_there_once_through_vulkan_never_through_opengl():
    directx = replace(RTX, backend="D3D12", driver="32.0.15")
    amdvlk = replace(RX, driver="AMD open-source driver")
    assert names(found(OPENGL)) == []
    devices = found(OPENGL, directx, RTX, RX, amdvlk)
    assert names(devices) == [("webgpu:0", RTX.name), ("webgpu:1", "AMD Radeon RX 480 Graphics")]
    assert [device.details["adapter"]["backend"] for device in devices] == ["Vulkan", "Vulkan"]
    assert [device.software["driver"] for device in devices] == ["580.95", "radv"]
    assert names(found(directx)) == [("webgpu:0", RTX.name)]


def test_two_cards_of_one_model_are_two_and_each_has_its_own_twin():
    twins = [
        Device(f"cuda:{n}", "cuda", RTX.name, "sm_86", 12 << 30, free, details=FrozenDict(pci_id="10de:2503"))
        for n, free in enumerate((11 << 30, 5 << 30))
    ]
    devices = found(RTX, RTX, OPENGL, others=(CPU, *twins))
    assert [(d.id, d.details["card"], d.free) for d in devices] == [
        ("webgpu:0", "cuda:0", 11 << 30),
        ("webgpu:1", "cuda:1", 5 << 30),
    ]
    assert [d.details["adapter"]["index"] for d in devices] == [0, 1]


def test_what_the_maker_s_driver_knows_of_the_card_counts_for_it():
    twin = Device(
        "cuda:0",
        "cuda",
        "NVIDIA GeForce RTX 3060",
        "sm_86",
        12 << 30,
        11 << 30,
        360e9,
        FrozenDict(f32=12e12),
        details=FrozenDict(pci_id="10de:2503"),
    )
    (device,) = found(RTX, others=(CPU, twin))
    assert (device.memory, device.free, device.bandwidth, device.peaks) == (12 << 30, 11 << 30, 360e9, twin.peaks)
    assert device.capability("dot8").level is Level.NATIVE
    assert not device.torch_computes
    assert "torch" not in device.software


def test_memory_of_a_card_that_no_other_family_knows():
    alone, integrated, software = found(RX, IRIS, LAVAPIPE, software=True)
    assert alone.arch == "gfx803"
    assert integrated.memory == CPU.memory // 2
    assert integrated.free == 16 << 30
    assert (software.memory, software.free) == (CPU.memory, CPU.free)


@pytest.mark.parametrize(("adapter", "level"), [(RTX, Level.NATIVE), (RX, Level.ABSENT)])
def test_f16_is_a_feature_and_f32_is_not(adapter, level):
    (device,) = found(adapter)
    assert device.capability("matmul.f32").level is Level.NATIVE
    assert device.capability("matmul.f16").level is level
    assert device.capability("matmul.bf16").level is Level.ABSENT
    assert Device.from_json(json.loads(json.dumps(device.to_json()))).id == device.id


def test_why_there_is_none_is_a_sentence():
    assert webgpu.absence(listing=lambda root: Listing((RTX,))) == ""
    assert "no driver" in webgpu.absence(listing=lambda root: Listing((OPENGL,)))
    assert webgpu.absence(listing=lambda root: Listing((), "it hung")) == "it hung"


#: A package ``wgpu`` whose listing does what a test says.
_FAKE = """
import os, signal, time
class gpu:
    @staticmethod
    def enumerate_adapters_sync():
        with open(os.environ["COUNT"], "a") as file:
            file.write("x")
        {body}
"""
_ADAPTER = """
        class A:
            info = {"device": "a card", "description": "1.0", "backend_type": "Vulkan",
                    "adapter_type": "DiscreteGPU", "vendor_id": 0x10de, "device_id": 0x2503}
            features = {"shader-f16", "other"}
            limits = {"max-buffer-size": 5}
        print("a driver prints this")
        return [A()]
"""
_SEE = """
import json, sys
from rung.hardware.families import webgpu
found = webgpu.listed()
print(json.dumps([[a.name for a in found.adapters], found.trouble, "wgpu" in sys.modules]))
"""


@pytest.fixture
def list_adapters(tmp_path, cache):
    """Return a function that lists adapters with a planted ``wgpu`` and counts the listings."""
    if not webgpu.listed().adapters and "loader" in webgpu.absence():
        pytest.skip("there is no Vulkan loader here")

    def see(body, **environment):
        (tmp_path / "fake" / "wgpu").mkdir(parents=True, exist_ok=True)
        (tmp_path / "fake" / "wgpu" / "__init__.py").write_text(_FAKE.replace("{body}", body), encoding="utf-8")
        count = tmp_path / "count"
        path = os.pathsep.join([str(tmp_path / "fake"), *filter(None, sys.path)])
        variables = {**os.environ, "PYTHONPATH": path, "RUNG_CACHE": str(cache), "COUNT": str(count), **environment}
        done = subprocess.run([sys.executable, "-c", _SEE], env=variables, capture_output=True, text=True, check=True)
        return json.loads(done.stdout), len(count.read_text())

    return see


def test_adapters_are_listed_once_until_the_drivers_change(list_adapters):
    assert list_adapters(_ADAPTER.strip()) == ([["a card"], "", False], 1)
    assert list_adapters(_ADAPTER.strip()) == ([["a card"], "", False], 1)
    assert list_adapters(_ADAPTER.strip(), VK_DRIVER_FILES="/other.json") == ([["a card"], "", False], 2)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "signal 11"),
        ("raise RuntimeError('no such layer')", "no such layer"),
        ("os._exit(3)", "status 3"),
    ],
)
def test_a_driver_that_fails_costs_the_listing_and_is_not_asked_at_every_command(list_adapters, body, words):
    (adapters, trouble, loaded), count = list_adapters(body)
    assert (adapters, loaded, count) == ([], False, 1)
    assert words in trouble
    assert list_adapters(body)[1] == 1


def test_a_listing_of_another_version_is_made_anew(list_adapters, cache):
    list_adapters(_ADAPTER.strip())
    for file in cache.rglob("*.json"):
        file.write_text(file.read_text().replace('"vendor"', '"maker"'))
    assert list_adapters(_ADAPTER.strip()) == ([["a card"], "", False], 2)


def test_a_software_adapter_is_opened_and_one_that_has_gone_is_named(adapter):
    opened = webgpu.open_adapter(adapter)
    assert opened.limits["max-buffer-size"] == adapter.details["adapter"]["limits"]["max-buffer-size"]
    gone = replace(adapter, details=adapter.details | {"adapter": {**adapter.details["adapter"], "name": "other"}})
    with pytest.raises(LookupError, match="no longer there"):
        webgpu.open_adapter(gone)


def test_a_card_that_is_not_here_through_webgpu():
    from rung.hardware import catalog
    from rung.hardware.select import catalog_device, select_device, select_groups

    card, reached = select_groups(["p2200", "p2200 webgpu"])
    assert (reached[0].kind, reached[0].arch, reached[0].real) == ("webgpu", "sm_61", False)
    assert reached[0].id != card[0].id
    assert (reached[0].free, reached[0].bandwidth) == (card[0].free, card[0].bandwidth)
    assert reached[0].capability("dot8").level is Level.NATIVE
    assert reached[0].capability("matmul.f16").level is Level.UNKNOWN
    assert not reached[0].torch_computes
    assert select_device("p2200 webgpu") == catalog_device("p2200 webgpu") == reached[0]
    with pytest.raises(UnknownDevice, match="not reached"):
        select_device("mi210 webgpu")
    with pytest.raises(UnknownDevice):
        select_device("p9999 webgpu")
    with pytest.raises(UsageError, match="builds of torch"):
        select_device("p2200 webgpu", "torch 2.6")
    cards = [catalog.device(p.name) for p in catalog.products() if catalog.architectures()[p.arch].kind != "cpu"]
    assert sum(webgpu.reached(each) is not None for each in cards) >= 0.93 * len(cards)


def test_nothing_chooses_a_software_adapter(adapter):
    from rung.hardware.select import select_device, select_groups

    assert adapter.id not in [device.id for device in detect.devices()]
    assert (adapter,) not in select_groups(())
    assert select_device(adapter.id).arch == webgpu.SOFTWARE
    assert select_groups((adapter.id,))[0][0].arch == webgpu.SOFTWARE
    assert [device.kind for device in select_groups((f"{adapter.id}+cpu",))[0]] == ["webgpu", "cpu"]
    for other in ("p2200 webgpu", "rtx 3060"):
        with pytest.raises(UsageError, match="shares layers with the processor alone"):
            select_groups((f"{adapter.id}+{other}",))
