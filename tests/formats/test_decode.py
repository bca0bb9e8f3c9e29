"""Decoding equals the gguf package bit for bit, of whole weights, slices of rows and memory maps."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from gguf import quants
from hypothesis import given, settings
from hypothesis import strategies as st

from rung import formats
from rung.formats import Encoded
from rung.formats.codec import PIECE

TYPES = list(quants._type_traits)
by_name = pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.name)
Bytes = npt.NDArray[np.uint8]

# Two bytes of float16: zeros, the smallest subnormal, others, the smallest and largest normal, infinities and NaN.
ODD_HALVES = (0x0000, 0x8000, 0x0001, 0x8001, 0x03FF, 0x0400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00)


def random_blocks(kind: gguf.GGMLQuantizationType, rows: int, blocks: int, seed: int = 0) -> Bytes:
    """Bytes [rows, blocks * size] in which nothing is left out."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    return np.random.default_rng(seed).integers(0, 256, (rows, blocks * size), dtype=np.uint8)


def wrap(kind: gguf.GGMLQuantizationType, data: Bytes) -> Encoded:
    """The bytes as a weight."""
    fmt = formats.gguf_type(int(kind))
    assert fmt is not None
    return Encoded(fmt, (len(data), data.shape[1] // fmt.block_bytes * fmt.block), {"data": data})


def assert_same(ours: npt.NDArray[np.float32], data: Bytes, kind: gguf.GGMLQuantizationType) -> None:
    """The same bits as the gguf package; of two NaN the payload does not count."""
    with np.errstate(all="ignore"):
        theirs = gguf.dequantize(data, kind)
    nan = np.isnan(theirs)
    assert np.array_equal(nan, np.isnan(ours))
    assert np.array_equal(ours.view(np.uint32)[~nan], theirs.view(np.uint32)[~nan])
    assert ours.dtype == np.float32


@by_name
def test_random_bytes_decode_as_gguf_decodes_them(kind: gguf.GGMLQuantizationType) -> None:
    data = random_blocks(kind, 24, 16)
    assert_same(formats.decode(wrap(kind, data)), data, kind)


@by_name
def test_every_bit_of_a_block_means_what_gguf_takes_it_to_mean(kind: gguf.GGMLQuantizationType) -> None:
    size = gguf.GGML_QUANT_SIZES[kind][1]
    data = np.tile(random_blocks(kind, 1, 1), (size * 8, 1))
    for position in range(size):
        data[position * 8 : position * 8 + 8, position] ^= 1 << np.arange(8, dtype=np.uint8)
    assert_same(formats.decode(wrap(kind, data)), data, kind)


@by_name
def test_odd_scales_decode_as_gguf_decodes_them(kind: gguf.GGMLQuantizationType) -> None:
    """Any two bytes may be a scale: subnormal, infinite and NaN ones at each even place, of several blocks."""
    size = gguf.GGML_QUANT_SIZES[kind][1]
    places = range(0, size - 1, 2)
    data = random_blocks(kind, len(places) * len(ODD_HALVES), 1)
    for number, offset in enumerate(places):
        for other, half in enumerate(ODD_HALVES):
            data[number * len(ODD_HALVES) + other, offset : offset + 2] = half & 255, half >> 8
    assert_same(formats.decode(wrap(kind, data)), data, kind)


@by_name
def test_rows_longer_than_a_piece_decode_whole(kind: gguf.GGMLQuantizationType) -> None:
    block = gguf.GGML_QUANT_SIZES[kind][0]
    data = random_blocks(kind, 3, 11 * PIECE // block // 10 + 1)
    assert_same(formats.decode(wrap(kind, data)), data, kind)


@by_name
def test_an_unaligned_read_only_memory_map_decodes(kind: gguf.GGMLQuantizationType, tmp_path: Path) -> None:
    data = random_blocks(kind, 4, 8)
    path = tmp_path / "blocks"
    path.write_bytes(b"\0" + data.tobytes())
    mapped = np.memmap(path, np.uint8, "r", offset=1, shape=data.shape)
    assert_same(formats.decode(wrap(kind, mapped)), data, kind)


def everything() -> list[str]:
    """All formats, with a nested and a large block of the flat ones."""
    return [*formats.FORMATS, "nf4:4096", "fp4:128:nested"]


def sample(name: str) -> Encoded:
    """A weight of 9 rows; those of flat formats end and begin within a block, and within a byte."""
    fmt = formats.get(name)
    if fmt.layout == "rows":
        count = 2 * fmt.block_bytes
        data = np.random.default_rng(1).integers(0, 256, (9, count), dtype=np.uint8)
        return Encoded(fmt, (9, 2 * fmt.block), {"data": data})
    weights = np.random.default_rng(1).standard_normal((9, 1037), dtype=np.float32)
    return formats.encode(weights, fmt)


@pytest.mark.parametrize("name", everything())
@given(start=st.integers(-10, 10), stop=st.integers(-10, 10))
@settings(max_examples=25, deadline=None)
def test_a_slice_of_rows_is_that_slice_of_the_whole(name: str, start: int, stop: int) -> None:
    encoded = sample(name)
    whole = formats.decode(encoded)
    rows = slice(start, stop)
    assert np.array_equal(formats.decode(encoded, rows), whole[rows], equal_nan=True)


@pytest.mark.parametrize("name", everything())
def test_open_slices_and_no_rows(name: str) -> None:
    encoded = sample(name)
    whole = formats.decode(encoded)
    assert np.array_equal(formats.decode(encoded, slice(4, None)), whole[4:], equal_nan=True)
    assert formats.decode(encoded, slice(3, 3)).shape == (0, encoded.shape[1])
