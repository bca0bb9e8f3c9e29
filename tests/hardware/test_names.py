"""Names: the commonest variant with a line that says so, a list where chips differ, what is near where nothing fits."""

import pytest

from rung.core.errors import UnknownDevice
from rung.hardware import catalog
from rung.hardware.catalog.rows import instances

GB = 2**30


@pytest.mark.parametrize(
    ("written", "name", "memory", "other"),
    [
        ("3060", "GeForce RTX 3060 12GB", 12, "GeForce RTX 3060 8GB"),
        ("v100", "Tesla V100 SXM2", 16, "32 GB"),
        ("a100", "NVIDIA A100 40GB", 40, "NVIDIA A100 SXM 80GB"),
        ("gtx 1060", "GeForce GTX 1060 6GB", 6, "GeForce GTX 1060 3GB"),
        ("4060 ti", "GeForce RTX 4060 Ti", 8, "16 GB"),
        ("h100", "NVIDIA H100 SXM", 80, "NVIDIA H100 PCIe"),
    ],
)
def test_a_name_of_several_variants_takes_the_commonest_and_says_so(written, name, memory, other):
    device = catalog.device(written)
    assert (device.name, device.memory) == (name, memory * GB)
    assert other in device.details["note"]


@pytest.mark.parametrize(
    "written", ["GeForce RTX 3060 12GB", "3060 12gb", "2080 ti", "p2200", "Tesla T4", "p3.2xlarge"]
)
def test_a_name_that_leaves_nothing_open_says_nothing(written):
    assert "note" not in catalog.device(written).details


@pytest.mark.parametrize(
    ("written", "name", "memory", "free"),
    [
        ("v100 32gb", "Tesla V100 SXM2", 32, 32510),
        ("Tesla V100-SXM2-16GB", "Tesla V100 SXM2", 16, 16160),
        ("m40 12gb", "Tesla M40", 12, 11448),
        ("4060 ti 16 GB", "GeForce RTX 4060 Ti", 16, 15949),
        ("p3dn.24xlarge", "Tesla V100 SXM2", 32, 32510),
    ],
)
def test_a_size_in_the_name_chooses_the_variant(written, name, memory, free):
    device = catalog.device(written)
    assert (device.name, device.memory, device.free) == (name, memory * GB, free * 2**20)
    assert catalog.device(device.id).memory == device.memory


@pytest.mark.parametrize(
    ("written", "both"),
    [
        ("rtx 6000", ("Quadro RTX 6000", "RTX 6000 Ada")),
        ("rtx4000", ("Quadro RTX 4000", "RTX 4000 Ada")),
        ("titan x", ("GeForce GTX TITAN X", "NVIDIA TITAN X Pascal")),
        ("mi300", ("Instinct MI300A", "Instinct MI300X")),
    ],
)
def test_a_name_of_different_chips_is_refused_with_the_list(written, both):
    with pytest.raises(UnknownDevice, match="different products") as caught:
        catalog.device(written)
    assert all(name in str(caught.value) for name in both)
    assert caught.value.ways_out == (f'rung devices "{both[0]}"',)


@pytest.mark.parametrize(("written", "one"), [("GeForce", "GTX 750 Ti"), ("radeon", "Radeon"), ("rtx 20", "RTX 2060")])
def test_what_many_names_begin_with_is_refused_with_the_way_to_their_list(written, one):
    with pytest.raises(UnknownDevice, match="different products") as caught:
        catalog.device(written)
    assert one in caught.value.facts[0]
    many = len(caught.value.ways_out) == 2
    assert many is (written != "rtx 20")
    if many:
        assert caught.value.ways_out[1] == f"rung devices --catalog {written.lower()}"


def test_a_size_that_is_not_sold_is_refused_with_those_that_are():
    with pytest.raises(UnknownDevice, match="not sold with 10 GB") as caught:
        catalog.device("3060 10gb")
    assert "8 GB and 12 GB" in str(caught.value)


@pytest.mark.parametrize("written", ["rx 6700", "thor", "2080 tj"])
def test_part_of_a_name_is_no_product_but_a_hint(written):
    with pytest.raises(UnknownDevice, match="Did you mean"):
        catalog.device(written)


@pytest.mark.parametrize("written", ["", " ", "gb", "12gb", "sim:", "9" * 500, "rtx rtx", "\x00", "日本"])
def test_nonsense_is_refused(written):
    with pytest.raises(UnknownDevice):
        catalog.device(written)


def test_every_instance_names_a_product_in_a_size_that_is_sold():
    products = {product.name: product for product in catalog.products()}
    for name, (product, memory, number) in instances().items():
        assert product in products, name
        assert number >= 1
        device = catalog.device(name)
        assert device.memory == (memory * GB or products[product].memory)
        assert ("note" in device.details) == (number > 1)


def test_sim_before_a_name_changes_nothing():
    assert catalog.device("sim:p2200") == catalog.device("p2200")


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("rtx3006", "GeForce RTX 3060 12GB"), ("gtx 1008", "GeForce GTX 1080"), ("p2020", "Quadro P2200")],
)
def test_two_swapped_digits_mean_the_product_with_these_digits(typed, meant):
    with pytest.raises(UnknownDevice, match=f"Did you mean {meant}"):
        catalog.device(typed)
