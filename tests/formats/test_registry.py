"""Names, numbers, sizes and what stands in for a format that does not divide a row."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf import quants

from rung import formats
from rung.core.errors import UnknownFormat
from rung.core.types import Format
from rung.formats.families import codebook4, iq, iq4, microscale
from tests.support.rows import each_row

DECODED_BY_GGUF = [gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16, *quants._type_traits]


@pytest.mark.parametrize("kind", DECODED_BY_GGUF, ids=lambda kind: kind.name)
def test_every_type_that_gguf_decodes_is_known_by_number_and_name_and_has_its_size(
    kind: gguf.GGMLQuantizationType,
) -> None:
    fmt = formats.gguf_type(int(kind))
    assert fmt is not None
    assert fmt.name == kind.name.lower()
    assert formats.get(kind.name) is fmt
    assert (fmt.block, fmt.block_bytes) == gguf.GGML_QUANT_SIZES[kind]
    assert fmt.bits == 8 * fmt.block_bytes / fmt.block


@pytest.mark.parametrize("number", [-1, 4, 9, 15, 24, 31, 36, 1000])
def test_removed_internal_and_integer_types_are_no_formats(number: int) -> None:
    assert formats.gguf_type(number) is None


def test_the_encoders_that_were_asked_for_are_there() -> None:
    floats, rows, blocks = ["f32", "f16", "bf16"], ["int8"], ["nf4", "fp4", "nf4:64:nested", "fp4:128:nested"]
    gguf_types = ["q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q4_k", "q5_k", "q6_k", "iq4_nl", "mxfp4"]
    names = floats + rows + blocks + gguf_types
    assert all(formats.get(name).encodes for name in names)


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("Q4_K", "q4_k"),
        (" bf16 ", "bf16"),
        ("nf4", "nf4:64"),
        ("NF4:128", "nf4:128"),
        ("fp4:nested", "fp4:64:nested"),
        ("nf4:4096:nested", "nf4:4096:nested"),
        ("nf4:nested:256", "nf4:256:nested"),
    ],
)
def test_names_are_read_in_any_case_and_printed_in_one_way(name: str, printed: str) -> None:
    fmt = formats.get(name)
    assert fmt.name == printed
    assert formats.get(printed) == fmt
    assert Format.from_json(fmt.to_json()) == fmt


OF_OTHERS = [
    ":".join([kind, str(group), *options])
    for kind in ("u2", "u4", "u8", "e4m3")
    for group in (32, 64, 128)
    for options in ([], ["bf16"], ["ordered"], ["bf16", "ordered"])
]
CODEBOOKS = [
    f"{kind}:{block}{rest}" for kind in ("nf4", "fp4") for block in (64, 128, 4096) for rest in ("", ":nested")
]


@each_row("name", [*formats.FORMATS, *CODEBOOKS, *OF_OTHERS])
def test_a_short_name_is_read_as_the_same_format_and_nothing_can_be_left_out_of_it(name: str) -> None:
    short = formats.short_name(name)
    kind, *options = short.split(":")
    assert formats.get(short) == formats.get(name)
    for at in range(len(options)):
        assert formats.get(":".join([kind, *options[:at], *options[at + 1 :]])) != formats.get(name)


def test_names_of_mixtures_are_short_and_so_is_stored() -> None:
    assert [formats.short_name(name) for name in ("q4_k_m", "stored", "nf4:64")] == ["q4_k_m", "stored", "nf4"]


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("q4k", "q4_k"),
        ("q8", "q8_0"),
        ("nf5", "nf4"),
        ("int4", "int8"),
        ("nf4:63", "64, 128, 256, 512, 1024, 2048, 4096"),
        ("nf4:8192", "4096"),
        ("nf4:", "nf4:BLOCK"),
        ("nf4:64:nested:nested", "nf4:BLOCK:nested"),
        ("fp4:64:128", "fp4:BLOCK"),
        ("q4_0:64", "q4_0"),
    ],
)
def test_an_unknown_format_comes_with_what_may_be_meant(name: str, hint: str) -> None:
    with pytest.raises(UnknownFormat) as caught:
        formats.get(name)
    assert hint in str(caught.value)
    assert "rung formats" in caught.value.ways_out


@pytest.mark.parametrize("name", ["", "  ", "\N{SNOWMAN}", "f" * 10_000, ":nested"])
def test_nonsense_is_an_unknown_format_too(name: str) -> None:
    with pytest.raises(UnknownFormat):
        formats.get(name)


@pytest.mark.parametrize(
    ("name", "columns", "stand_in"),
    [
        ("q4_k", 512, "q4_k"),
        ("q4_k", 96, "q5_0"),
        ("q5_k", 96, "q8_0"),
        ("q6_k", 96, "q8_0"),
        ("q8_0", 100, "f16"),
        ("q2_k", 96, "mxfp4"),
        ("iq4_xs", 96, "iq4_nl"),
        ("q4_0", 1, "f16"),
        ("int8", 33, "int8"),
        ("nf4", 33, "nf4:64"),
    ],
)
def test_the_next_better_format_divides_and_is_no_worse(name: str, columns: int, stand_in: str) -> None:
    fmt = formats.get(name)
    found = formats.next_better(fmt, columns)
    assert found.name == stand_in
    assert found.divides(columns)
    assert found.floor_db >= fmt.floor_db


def test_a_format_that_is_registered_has_a_title_and_a_finite_size() -> None:
    for name, fmt in formats.FORMATS.items():
        assert name == fmt.name
        assert fmt.title
        assert 1 < fmt.bits <= 32
        assert fmt.floor_db > 0


def test_tables_are_those_of_the_gguf_package() -> None:
    for name in ("IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ1_S"):
        theirs = getattr(quants, name)
        theirs.init_grid()
        assert np.array_equal(iq.grid(name.lower()), theirs.grid.reshape(theirs.grid_shape))
    assert iq.even_signs().tobytes() == quants.IQ2_XXS.ksigns
    assert tuple(iq4.CODEBOOK) == quants.IQ4_NL.kvalues
    assert tuple(microscale.E2M1_DOUBLED) == quants.MXFP4.kvalues
    assert np.array_equal(microscale.HALF_E4M3, quants.NVFP4.ue4m3_to_fp32(np.arange(256, dtype=np.uint8)))


def test_codebooks_are_normalized_and_sorted_where_they_must_be() -> None:
    for codebook in codebook4.CODEBOOKS.values():
        assert codebook.dtype == np.float32
        assert np.abs(codebook).max() == 1.0
    assert (np.diff(codebook4.NF4) > 0).all()
    assert (np.diff(codebook4.DYNAMIC) > 0).all()
    assert len(codebook4.DYNAMIC) == 256
