"""Processors of the catalog: as people and /proc/cpuinfo name them, whole, and with the rates that their cores give."""

from __future__ import annotations

from collections import Counter

import pytest

from rung.core.errors import UnknownDevice
from rung.hardware import catalog
from rung.hardware.catalog import processors
from rung.kernels import instructions
from rung.kernels.cpu.pack import layouts
from tests.support.rows import each_row

GB = 2**30
FOUND = [product for product in catalog.products() if product.cores]


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("ryzen 5800x", "Ryzen 7 5800X"),
        ("5800x", "Ryzen 7 5800X"),
        ("AMD Ryzen 7 5800X 8-Core Processor", "Ryzen 7 5800X"),
        ("AMD Ryzen 7 8840U w/ Radeon 780M Graphics", "Ryzen 7 7840U"),
        ("AMD Ryzen 5 3500U with Radeon Vega Mobile Gfx", "Ryzen 5 3500U"),
        ("AMD FX(tm)-8350 Eight-Core Processor", "FX-8350"),
        ("AMD Phenom(tm) II X4 965 Processor", "Phenom II X4 965"),
        ("AMD EPYC 7763 64-Core Processor", "EPYC 7763"),
        ("i5-8250u", "Core i5-8250U"),
        ("8250u", "Core i5-8250U"),
        ("Intel(R) Core(TM) i5-8250U CPU @ 1.60GHz", "Core i5-8250U"),
        ("11th Gen Intel(R) Core(TM) i5-1135G7 @ 2.40GHz", "Core i5-1135G7"),
        ("Intel(R) Core(TM)2 Quad CPU    Q8400  @ 2.66GHz", "Core 2 Quad Q8400"),
        ("core i7-4770", "Core i7-4770K"),
        ("i7 920", "Core i7-920"),
        ("Intel(R) Xeon(R) CPU E5-2680 v4 @ 2.40GHz", "Xeon E5-2680 v4"),
        ("Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz", "Xeon Gold 6148"),
        ("Intel(R) N100", "Intel N100"),
        ("n5105", "Celeron N5105"),
        ("raspberry pi 5", "Raspberry Pi 5"),
        ("pi 4", "Raspberry Pi 4"),
        ("pi zero 2", "Raspberry Pi Zero 2 W"),
        ("rk3588", "Orange Pi 5"),
        ("snapdragon 8 gen 2", "Snapdragon 8 Gen 2"),
        ("graviton 3", "Graviton3"),
        ("apple m1 cpu", "Apple M1 CPU"),
        ("steam deck cpu", "Steam Deck CPU"),
    ],
)
def test_names_as_people_and_processors_write_them(written, name):
    assert catalog.device(written).name == name


@pytest.mark.parametrize(("written", "other"), [("m1", "Apple M1"), ("a16", "NVIDIA A16"), ("rx 7900 xtx", "Radeon")])
def test_names_of_cards_still_mean_these(written, other):
    assert catalog.device(written).name.startswith(other)


@pytest.mark.parametrize("written", ["i5", "ryzen 5", "xeon", "snapdragon"])
def test_a_class_of_processors_is_none_of_them(written):
    with pytest.raises(UnknownDevice, match="different products"):
        catalog.device(written)


@pytest.mark.parametrize("written", ["ryzen 5800x,64gb", "5800x 64 GB", "Ryzen 7 5800X 64gb"])
def test_any_memory_can_be_named_where_whoever_builds_the_machine_fits_it(written):
    device = catalog.device(written)
    assert (device.memory, device.id) == (64 * GB, "ryzen-7-5800x-64gb")
    assert "note" not in device.details
    assert catalog.device(device.id) == device


def test_the_memory_that_is_taken_is_said_and_how_to_name_another():
    assert catalog.device("ryzen 5800x").details["note"] == (
        'Ryzen 7 5800X with 32 GB of memory taken; another size is named so: "ryzen 7 5800x 16gb"'
    )
    assert "there is also 2 GB and 4 GB and 16 GB" in catalog.device("pi 5").details["note"]


@pytest.mark.parametrize("written", ["pi 5 3gb", "apple m1 cpu 32gb", "5800x 99999gb", "5800x 0gb"])
def test_memory_that_no_such_machine_has_is_refused(written):
    with pytest.raises(UnknownDevice, match="not sold with"):
        catalog.device(written)


def test_the_everyday_processors_are_there():
    assert len(FOUND) >= 150
    makers = Counter(catalog.architectures()[product.arch].machine for product in FOUND)
    assert makers["x86_64"] >= 100
    assert makers["aarch64"] >= 35


@each_row("product", FOUND, lambda product: product.name)
def test_a_processor_is_whole(product):
    machines = {catalog.architectures()[each.core.arch].machine for each in product.cores}
    assert len(machines) == 1
    for each in product.cores:
        assert 1 <= each.number <= 256
        assert 0.5 <= each.clock <= each.most < 6.5
        assert each.clock * 1e9 <= each.sustained <= each.most * 1e9
    assert product.reads is None or 0.3 <= product.reads <= 0.8
    assert product.status == ("unsure" if product.source == "recalled" else "checked")
    assert product.any_size == (len(product.sizes) == 1 and product.sizes[0] == product.memory) or not product.any_size
    device = catalog.device(product.name)
    assert device.details["cores"] == sum(each.number for each in product.cores)
    assert device.peaks["f32"] <= 64 * 6.5e9 * device.details["cores"]


@each_row("core", processors.cores().values(), lambda core: core.name)
def test_a_design_of_cores_is_whole(core):
    assert catalog.architectures()[core.arch].kind == "cpu"
    assert 0.5 <= core.per_clock <= 4.5
    assert core.f32 in (4, 8, 16, 24, 32, 64)
    like = core.source.removeprefix("like ")
    assert core.source in ("mca", "measured", "recalled") or processors.cores()[like].source in (
        "mca",
        "measured",
        "recalled",
    )
    if core.source.startswith("like "):
        assert processors.cores()[like].per_clock == core.per_clock


def test_cores_of_two_kinds_add_up():
    """Eight cores at 3.6 GHz with 32 operations a clock, and four at 2.7 GHz with 16."""
    assert catalog.device("12700k").peaks["f32"] == pytest.approx((8 * 3.6 * 32 + 4 * 2.7 * 16) * 1e9)
    assert catalog.device("12700k").bandwidth == pytest.approx(128 * 4.8 / 8 * 1e9)


def test_a_newer_processor_multiplies_faster_than_its_elder():
    for older, newer in (
        ("phenom ii", "ryzen 5 1600"),
        ("i7-2600", "i7-4790k"),
        ("i7-4790k", "i7-9700k"),
        ("i7-9700k", "i7-12700k"),
        ("i5-8250u", "i5-1240p"),
        ("pi zero 2", "pi 3"),
        ("pi 3", "pi 4"),
        ("pi 4", "pi 5"),
        ("snapdragon 8 gen 1", "snapdragon 8 gen 3"),
        ("apple m1 cpu", "apple m4 cpu"),
        ("graviton2", "graviton4"),
    ):
        before, after = (instructions.seconds_of_product(catalog.device(name), "q4_0") for name in (older, newer))
        assert after < before, (older, newer)


#: From what each maker lists of its processors, the level that kernels.isa needs by its features.
@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("phenom ii", "generic"),
        ("q8400", "ssse3"),
        ("n5105", "ssse3"),
        ("pentium g4560", "ssse3"),
        ("i7-3770", "avx"),
        ("fx-8350", "avx"),
        ("i7-4770k", "avx2"),
        ("i5-8250u", "avx2"),
        ("ryzen 5800x", "avx2"),
        ("steam deck cpu", "avx2"),
        ("n100", "avx_vnni"),
        ("i7-12700k", "avx_vnni"),
        ("i9-7900x", "avx512"),
        ("i5-1135g7", "avx512_vnni"),
        ("7950x", "avx512_vnni"),
        ("pi 3", "neon"),
        ("pi 4", "neon"),
        ("pi 5", "neon_dotprod"),
        ("graviton2", "neon_dotprod"),
        ("apple m1 cpu", "neon_dotprod"),
        ("apple m2 cpu", "neon_i8mm"),
        ("graviton3", "neon_i8mm"),
        ("snapdragon 8 gen 1", "neon_i8mm"),
    ],
)
def test_the_level_of_a_processor(name, level):
    assert instructions.level(catalog.device(name)) == level


@each_row("product", FOUND, lambda product: product.name)
def test_every_level_of_the_catalog_is_counted_for_every_format(product):
    device = catalog.device(product.name)
    for format in (*layouts.FORMATS, "nf4", "fp4:256", "f32", "f16", "bf16", "e4m3:128"):
        assert 0 < instructions.seconds_of_weight(device, format) < 1e-7, format


@pytest.mark.parametrize("level", sorted({level for level, _ in instructions.table()}))
def test_a_weight_takes_more_instructions_alone_than_in_a_tile(level):
    """Holds for codes that are decoded: what is loaded and unpacked serves all rows of a tile."""
    counted = instructions.table()
    assert counted[level, "q6_k"][0] > counted[level, "q6_k"][1]
    assert counted[level, "codebook64"][0] > counted[level, "codebook64"][1]


def test_levels_with_wider_registers_or_better_products_take_fewer_instructions():
    counted = {level: numbers for (level, layout), numbers in instructions.table().items() if layout == "q4_0"}
    for order in (("avx512_vnni", "avx_vnni", "avx2", "avx", "ssse3", "generic"), ("neon_dotprod", "neon", "generic")):
        for which in (0, 1):
            numbers = [counted[level][which] for level in order]
            assert numbers == sorted(numbers)
