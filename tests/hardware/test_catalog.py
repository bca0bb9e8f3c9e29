"""The catalog: every row whole, its figures computed again, its names unambiguous."""

import re
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from rung.core.errors import UnknownDevice
from rung.core.types import Level, Proof
from rung.hardware import catalog
from rung.hardware.catalog import names
from rung.hardware.catalog.tables import compile_tables
from tests.support.rows import each_row

ARCHITECTURES = catalog.architectures()
PRODUCTS = catalog.products()
GB = 2**30

#: The cards that people ask about most; their figures must have been checked.
COMMON = """
    GeForce GTX 960, GeForce GTX 970, GeForce GTX 980, GeForce GTX 980 Ti, GeForce GTX 1050 Ti, GeForce GTX 1060 6GB,
    GeForce GTX 1070, GeForce GTX 1080, GeForce GTX 1080 Ti, GeForce GTX 1650, GeForce GTX 1660 SUPER, GeForce RTX 2060,
    GeForce RTX 2070, GeForce RTX 2080, GeForce RTX 2080 Ti, GeForce RTX 3050 8GB, GeForce RTX 3060 12GB,
    GeForce RTX 3060 Ti, GeForce RTX 3070, GeForce RTX 3080 10GB, GeForce RTX 3090, GeForce RTX 4060,
    GeForce RTX 4060 Ti, GeForce RTX 4070, GeForce RTX 4080, GeForce RTX 4090, GeForce RTX 5060,
    GeForce RTX 5070, GeForce RTX 5080,
    GeForce RTX 5090, Tesla P4, Tesla P40, Tesla P100 PCIe, Tesla V100 SXM2, Tesla T4, NVIDIA A10, NVIDIA A100 40GB,
    NVIDIA L4, NVIDIA L40S, NVIDIA H100 SXM, NVIDIA H100 PCIe, Quadro P2200, RTX A4000, RTX A6000, Radeon RX 580 8GB,
    Radeon RX 6700 XT, Radeon RX 6800 XT, Radeon RX 7900 XTX, Instinct MI50, Instinct MI210, Instinct MI300X, Apple M1,
    Apple M2, Arc A770 16GB, Arc B580
"""


@each_row("key", ARCHITECTURES)
def test_an_architecture_is_whole(key):
    row = ARCHITECTURES[key]
    kinds = {"nvidia": "cuda", "amd": "rocm", "intel": "xpu", "apple": "mps", "x86": "cpu", "arm": "cpu"}
    assert row.kind == kinds[row.vendor]
    assert set(row.matmul) == set(catalog.DTYPES)
    assert all(Level(level) for level in row.matmul.values())
    assert set(row.notes) <= set(catalog.DTYPES)
    assert set(row.units) <= {"f32", "f16", "bf16", "tf32", "f64", "int8", "int4", "int1", "fp8", "fp6", "fp4"}
    assert row.dot8 in ("", "dp4a", "dot4", "vpdpbusd", "sdot")
    assert not row.override or row.override in ARCHITECTURES
    assert bool(row.isa) == bool(row.machine) == (row.kind == "cpu")
    assert row.f16 in ("", "native", "slow", "none")
    assert row.status in ("checked", "unsure")
    assert row.sources
    assert all(s in catalog.sources() or s.startswith("https://") for s in row.sources)
    if row.vendor == "nvidia":
        assert row.cc.replace(".", "") == key.removeprefix("sm_").split("-")[0]
        assert row.last_driver is not None


@each_row("key", ARCHITECTURES)
def test_what_an_architecture_lacks_has_a_reason(key):
    for dtype, level in ARCHITECTURES[key].matmul.items():
        if level == "absent":
            assert ARCHITECTURES[key].notes[dtype]


@each_row("product", PRODUCTS, lambda p: p.name)
def test_a_product_is_whole(product):
    assert product.arch in ARCHITECTURES
    assert (GB if not product.cores else GB // 2) <= product.memory <= 768 * GB
    assert (10e9 if not product.cores else 3e9) < product.bandwidth < 1e13
    assert (4e10 if not product.cores else 1e10) < product.peaks["f32"] < 2e14
    assert set(product.peaks) <= set(catalog.DTYPES)
    assert product.status in ("checked", "unsure")
    assert product.source in catalog.sources()
    assert all(re.fullmatch(r"(10de|1002|8086):[0-9a-f]{4}", identifier) for identifier in product.pci)
    assert product.memory in product.sizes
    assert len(product.shown) in (0, 1, len(product.sizes))
    for size, shown in zip(product.sizes, product.shown, strict=False):
        assert 0.9 * size < shown <= size  # a card with ECC on shows 6 % less
    native = ARCHITECTURES[product.arch].matmul
    for dtype in product.peaks:  # a rate for what the architecture cannot do would be a contradiction
        assert native[dtype] != "absent", f"{product.name} has a rate for {dtype}"


@each_row("product", [p for p in PRODUCTS if p.units], lambda p: p.name)
def test_a_computed_product_is_what_its_units_give(product):
    units = product.units
    assert product.peaks["f32"] == pytest.approx(
        units["shaders"] * units["clock"] * units["operations"] * 1e9, rel=0.03
    )
    assert product.bandwidth == pytest.approx(units["bus"] * units["rate"] / 8 * 1e9, rel=0.03)


@pytest.mark.parametrize("name", [" ".join(name.split()) for name in COMMON.split(",")])
def test_the_common_cards_are_checked(name):
    product = catalog.find(name)
    assert product, name
    assert product.name == name
    assert product.status == "checked"


#: Tensor cores per SM and clock, dense f16 multiply-adds with f32 accumulation, by generation: NVIDIA's white papers of
#: V100, TU102, GA100, GA102, AD102, GH100, GB202; GeForce halves it from Turing on. 64 or 128 shaders make an SM.
@pytest.mark.parametrize(
    ("name", "per_shader"),
    [("Tesla V100 SXM2", 8), ("Tesla T4", 8), ("GeForce RTX 2080 Ti", 4), ("NVIDIA A100 40GB", 16),
     ("GeForce RTX 3090", 2), ("RTX A6000", 4), ("GeForce RTX 4090", 2), ("NVIDIA L40S", 4), ("GeForce RTX 5090", 2)],
)  # fmt: skip
def test_f16_on_tensor_cores_is_a_multiple_of_f32(name, per_shader):
    product = catalog.find(name)
    assert product.peaks["f16"] == pytest.approx(per_shader * product.peaks["f32"], rel=0.01)


#: From NVIDIA's white papers and data sheets.
@pytest.mark.parametrize(
    ("name", "count"),
    [("Tesla P100 SXM2", 56), ("Tesla P40", 30), ("Tesla V100 SXM2", 80), ("Tesla T4", 40), ("GeForce RTX 2080 Ti", 68),
     ("NVIDIA A100 40GB", 108), ("GeForce RTX 3090", 82), ("NVIDIA L4", 58), ("GeForce RTX 4090", 128),
     ("NVIDIA H100 SXM", 132), ("NVIDIA B200", 148), ("GeForce RTX 5090", 170), ("Jetson AGX Orin 64GB", 16)],
)  # fmt: skip
def test_multiprocessors(name, count):
    assert catalog.device(name).details["multiprocessors"] == count


def test_what_was_checked_says_from_what():
    assert all(p.units or p.cores for p in PRODUCTS if p.status == "checked" or p.source == "recalled")


def test_the_catalog_is_large_enough():
    assert len(ARCHITECTURES) >= 60
    assert len([p for p in PRODUCTS if ARCHITECTURES[p.arch].kind != "cpu"]) >= 180
    assert {p.arch for p in PRODUCTS} >= {"sm_37", "sm_121", "gfx803", "gfx1201", "xe-hpg", "apple7", "x86-avx2"}


def test_names_are_unique_and_mean_one_product():
    assert [n for n, times in Counter(p.name for p in PRODUCTS).items() if times > 1] == []
    forms = Counter(form for product in PRODUCTS for form in names.forms(product))
    assert [form for form, times in forms.items() if times > 1] == []


def test_only_amd_shares_pci_ids_and_boards_of_one_chip():
    #: A2 and A16; Quadro RTX 6000 and 8000; two sizes of the RTX 5060 Ti and of the Arc A770
    known = {"10de:25b6", "10de:1e30", "10de:2d04", "8086:56a0"}
    shared = Counter(identifier for product in PRODUCTS for identifier in product.pci)
    assert {i for i, times in shared.items() if times > 1 and not i.startswith("1002:")} == known


def test_cards_that_are_in_slots_have_a_pci_id():
    """But for modules and processors, and the one whose id nobody has listed."""
    without = [p.name for p in PRODUCTS if not p.pci and ARCHITECTURES[p.arch].kind in ("cuda", "rocm", "xpu")]
    assert {name for name in without if not name.startswith("Jetson")} == {"Instinct MI60"}


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("NVIDIA GeForce RTX 2080 Ti", "GeForce RTX 2080 Ti"),
        ("2080ti", "GeForce RTX 2080 Ti"),
        ("rtx 3060", "GeForce RTX 3060 12GB"),
        ("NVIDIA GeForce GTX 1060 3GB", "GeForce GTX 1060 3GB"),
        ("p2200", "Quadro P2200"),
        ("Tesla V100-SXM2-16GB", "Tesla V100 SXM2"),
        ("Tesla P100-PCIE-16GB", "Tesla P100 PCIe"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 SXM 80GB"),
        ("NVIDIA A100-PCIE-40GB", "NVIDIA A100 40GB"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("AMD Radeon RX 7900 XTX", "Radeon RX 7900 XTX"),
        ("7900xtx", "Radeon RX 7900 XTX"),
        ("Intel(R) Arc(TM) A770 Graphics", "Arc A770 16GB"),
        ("Apple M2", "Apple M2"),
        ("m2 max", "Apple M2 Max"),
        ("RTX3060 12GB", "GeForce RTX 3060 12GB"),
        ("2080 ti", "GeForce RTX 2080 Ti"),
        ("radeon 780m", "Radeon 780M"),
        ("m1 pro", "Apple M1 Pro"),
        ("t4", "Tesla T4"),
        ("p3.2xlarge", "Tesla V100 SXM2"),
        ("g4dn.xlarge", "Tesla T4"),
        ("Standard_NC6s_v3", "Tesla V100 PCIe"),
        ("NVIDIA A100 80GB PCIe", "NVIDIA A100 PCIe 80GB"),
    ],
)
def test_names_as_drivers_and_people_write_them(written, name):
    assert catalog.find(written).name == name


@pytest.mark.parametrize(
    "written",
    [
        "",
        "NVIDIA GeForce RTX 3060 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "RTX",
        "GeForce",
        "gtx 1180",
    ],
)
def test_other_names_are_no_product(written):
    assert catalog.find(written) is None


def test_pci_ids():
    assert catalog.by_pci(0x10DE, 0x1C31).name == "Quadro P2200"
    assert catalog.by_pci(0x10DE, 0xFFFF) is None
    assert catalog.by_pci(0x1002, 0x744C) is None  # three products share it
    assert catalog.by_pci(0x1002, 0x744C, 20 * GB).name == "Radeon RX 7900 XT"
    assert catalog.pci_name(0x1002, 0x744C) == "Radeon RX 7900 XT / Radeon RX 7900 XTX / Radeon RX 7900 GRE"
    assert catalog.by_pci(0x10DE, 0x2D04, 8 * GB).name == "GeForce RTX 5060 Ti 8GB"
    assert catalog.by_pci(0x10DE, 0x2504).name == "GeForce RTX 3060 12GB"  # Lite Hash Rate
    assert catalog.pci_name(0x10DE, 0xFFFF) == ""


#: What a torch build of today does with a matrix product, each from the issue or paper that its row names.
@pytest.mark.parametrize(
    ("name", "dtype", "level"),
    [
        ("GeForce GTX 980", "bf16", "absent"),
        ("Quadro P2200", "bf16", "emulated"),
        ("Quadro P2200", "f16", "emulated"),
        ("Quadro P2200", "int8", "unknown"),
        ("Tesla P100 PCIe", "f16", "native"),
        ("Tesla P100 PCIe", "bf16", "unknown"),
        ("Tesla V100 SXM2", "f16", "native"),
        ("Tesla V100 SXM2", "bf16", "emulated"),
        ("Tesla V100 SXM2", "int8", "unknown"),
        ("Tesla P100 PCIe", "int8", "absent"),
        ("GeForce RTX 2080 Ti", "f16", "native"),
        ("GeForce RTX 2080 Ti", "bf16", "emulated"),
        ("GeForce RTX 2080 Ti", "int8", "native"),
        ("GeForce GTX 1650", "int8", "unknown"),
        ("GeForce RTX 3060 12GB", "bf16", "native"),
        ("GeForce RTX 3060 12GB", "fp8", "absent"),
        ("GeForce RTX 4090", "fp8", "native"),
        ("NVIDIA H100 SXM", "fp8", "native"),
        ("Instinct MI210", "fp8", "absent"),
        ("Radeon RX 6800 XT", "bf16", "emulated"),
        ("Radeon RX 7900 XTX", "bf16", "native"),
        ("Arc A770 16GB", "f64", "absent"),
        ("Apple M1", "f64", "absent"),
    ],
)
def test_what_is_known_of_the_founding_cards(name, dtype, level):
    found = catalog.device(name).capability(f"matmul.{dtype}")
    assert found.level == level
    assert found.proof is (Proof.NONE if level == "unknown" else Proof.TABLE)


def test_a_device_of_the_catalog():
    device = catalog.device("p2200")
    assert (device.id, device.name, device.arch, device.kind) == ("quadro-p2200", "Quadro P2200", "sm_61", "cuda")
    assert not device.real
    assert (device.memory, device.bandwidth, device.peaks["f32"]) == (5 * GB, 200e9, 3.82e12)
    assert device.peaks["bf16"] == pytest.approx(0.54 * 3.82e12)  # relative to f32, as the architecture says
    assert device.details["rates"] == "table"
    assert device.free == 5059 * 2**20
    assert device.software["torch"] == "2.14.0"
    assert device.software["cuda"] == "12.6"
    assert device.software["arch_list"].split()[0] == "sm_50"
    assert [c.name for c in device.capabilities.values() if c.level is Level.UNKNOWN] == ["matmul.int8"]
    assert "dp4a" in device.capability("matmul.int8").source


@each_row("product", PRODUCTS, lambda p: p.name)
def test_every_product_is_a_device_by_its_name_and_its_id(product):
    device = catalog.device(product.name)
    assert device.name == product.name
    assert catalog.device(device.id).name == product.name


def test_a_name_that_is_nearly_right():
    with pytest.raises(UnknownDevice, match="Did you mean GeForce RTX 2080 Ti"):
        catalog.device("2080 tj")
    with pytest.raises(UnknownDevice) as caught:
        catalog.device("zzzz")
    assert "Did you mean" not in str(caught.value)
    assert caught.value.ways_out
    with pytest.raises(UnknownDevice) as caught:
        catalog.device("nvidia")  # a maker is near to no card
    assert "Tesla K80" not in str(caught.value)


def test_a_row_is_like_a_row_above_it():
    with open(Path(catalog.__file__).parent / "architectures.toml", "rb") as file:
        rows = [(row["key"], row.get("like", "")) for row in tomllib.load(file)["architecture"]]
    keys = [key for key, _ in rows]
    for key, like in rows:
        assert not like or keys.index(like) < keys.index(key)
    assert ARCHITECTURES["arm-sve2"].dot8 == "sdot"  # by way of arm-i8mm and arm-dotprod


def test_what_is_read_is_what_people_edit():
    kept = Path(catalog.__file__).with_name("tables.json").read_text(encoding="utf-8")
    assert kept == compile_tables(), 'python -c "from rung.hardware.catalog import tables; tables.write()"'


def test_importing_the_catalog_reads_no_file():
    code = "import sys, rung.hardware.catalog; print('tomllib' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_a_device_of_the_catalog_takes_few_calls():
    """Count calls of Python functions: 370 a product in 2026, with all its capabilities."""
    products, calls = catalog.products(), []
    before = sys.getprofile()
    sys.setprofile(lambda frame, event, value: calls.append(event) if event.endswith("call") else None)
    try:
        for product in products:
            catalog.device(product.name)
    finally:
        sys.setprofile(before)
    assert len(calls) < 1_000 * len(products)


#: MiB as nvidia-smi prints them for idle cards on public pages, "0MiB / 5059MiB", or torch as the card's capacity:
#: "44.39 GiB" of an L40S (several), "44.40" of an L40 (QwenLM/Qwen3-VL#2097), "79.11" of an H100
#: (vllm-project/vllm#27508), "23.64" of an RTX 4090 (3DTopia/Phidias-Diffusion#8), "31.36" of an RTX 5090
#: (TrajectoryCrafter/TrajectoryCrafter#20).
@pytest.mark.parametrize(
    ("name", "shown"),
    [("p2200", 5059), ("quadro p2000", 5059), ("gtx 1080", 8119), ("1080 ti", 11178), ("p100", 16280), ("p40", 22919),
     ("k80", 11441), ("2080 ti", 11019), ("rtx 2060", 5934), ("t4", 15109), ("rtx 3080", 10018), ("3090", 24268),
     ("a10", 22731), ("a6000", 48685), ("a100", 40536), ("a100 80gb", 81251), ("l40s", 45455), ("l40", 45465),
     ("h100", 81008), ("4090", 24207), ("5090", 32109)],
)  # fmt: skip
def test_free_memory_is_what_the_driver_shows(name, shown):
    device = catalog.device(name)
    assert device.free == shown * 2**20
    assert device.details["free_from"] == "seen on idle cards"
